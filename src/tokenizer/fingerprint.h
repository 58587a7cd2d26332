// FNV-1a, 64 bits: the tokenizers' fingerprints. Not against forgery.
#pragma once

#include <cstdint>
#include <string_view>

namespace tensorcache::tokenizer {

class Fingerprint {
 public:
  // Values of different kinds and lengths cannot run into each other: each text is preceded by its length.
  void Add(std::string_view text) {
    Add(text.size());
    for (const char byte : text) AddByte(static_cast<uint8_t>(byte));
  }
  void Add(uint64_t value) {
    for (int i = 0; i < 8; ++i) AddByte(static_cast<uint8_t>(value >> 8 * i));
  }
  uint64_t value() const { return value_; }

 private:
  void AddByte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001B3; }

  uint64_t value_ = 0xCBF29CE484222325;
};

}  // namespace tensorcache::tokenizer
