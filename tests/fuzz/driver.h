// What the fuzz targets share. A target is one file that defines Seeds, Words and Run; driver.cc hands them to libFuzzer.
// A broken promise is a TC_CHECK, as everywhere.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/safetensors.h"
#include "tensorcache/status.h"

namespace tensorcache::fuzz {

// Inputs to start from: what is valid, and what nearly is.
std::vector<std::string> Seeds();
// What an input may consist of, and bytes alone would hardly come to be.
std::vector<std::string> Words();
// Reads one input. Must do the same for the same input.
void Run(std::string_view input);

// An error says in one line of UTF-8 what is wrong.
void CheckMessage(const Status& status);

// An input that stands for several files: `count` parts with zero bytes between them. The last one has the rest, whatever
// bytes it is of; those that are not there are empty.
std::vector<std::string_view> Split(std::string_view input, size_t count);
std::string Join(std::initializer_list<std::string_view> parts);

// A folder in memory, of this process alone.
const std::string& Folder();
std::string PathOf(std::string_view name);
// Writes a file into it; returns its path.
std::string Put(std::string_view name, std::string_view content);
std::string Get(const std::string& path);
// Removes a file or folder of it.
void Remove(std::string_view name);

// Reads every byte.
void Touch(std::span<const std::byte> bytes);

// The bytes of a number as they are in memory.
template <class T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Tensors for seeds: float32, of small numbers that differ.
struct SeedTensor {
  std::string name;
  std::vector<int64_t> shape;
};
// A safetensors file as its header (JSON, without the length before it) and its data: what is changed in the one need not
// wait for the change of a length before it.
struct SplitSafetensors {
  std::string header, data;
};
SplitSafetensors MakeSafetensors(const std::vector<SeedTensor>& tensors);
// The file of a header and data.
std::string JoinSafetensors(std::string_view header, std::string_view data);

}  // namespace tensorcache::fuzz
