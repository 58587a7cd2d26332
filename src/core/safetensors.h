// The safetensors format: an 8-byte little-endian header length, a JSON header {"name": {"dtype", "shape",
// "data_offsets"}}, and the tensors' bytes, little-endian and row-major.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file.h"
#include "tensorcache/status.h"

namespace tensorcache {

enum class DType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool
};

std::string_view DTypeName(DType dtype);  // as in files: "BF16"
int64_t DTypeBytes(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);

// The dtype of float, double and the integers.
template <class T>
  requires std::integral<T> || std::same_as<T, float> || std::same_as<T, double>
consteval DType DTypeOf() {
  static_assert(!std::same_as<T, bool>, "the bytes of a file may hold more than 0 and 1");
  constexpr int kLogBytes = std::countr_zero(sizeof(T));
  if (std::floating_point<T>) return sizeof(T) == 8 ? DType::kF64 : DType::kF32;
  if (std::signed_integral<T>) return std::array{DType::kI8, DType::kI16, DType::kI32, DType::kI64}[kLogBytes];
  return std::array{DType::kU8, DType::kU16, DType::kU32, DType::kU64}[kLogBytes];
}

// A tensor inside an open file; valid as long as the SafetensorsFile. The file decides where the data starts, so it may
// be aligned to nothing: use memcpy, or SafetensorsFile::Values, which checks.
struct TensorRef {
  DType dtype;
  std::span<const int64_t> shape;
  std::span<const std::byte> data;
};

// One entry of a file. Does not own the data.
struct StoredTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// An open file whose header was checked completely: every tensor lies inside the file, has the size of its dtype and
// shape, and the tensors cover the data without overlap or hole. Data is read from disk as it is touched.
class SafetensorsFile {
 public:
  // kCorrupt names the file, the tensor and what is wrong with it.
  static Result<SafetensorsFile> Open(const std::string& path);
  // Over bytes that the caller keeps alive; `source` stands for the path in messages.
  static Result<SafetensorsFile> FromMemory(std::span<const std::byte> bytes, std::string source);

  // Sorted. Valid as long as this object.
  const std::vector<std::string_view>& names() const { return names_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // kNotFound names the nearest tensor.
  Result<TensorRef> Find(std::string_view name) const;
  // Find, and kInvalidArgument if dtype or shape are not the expected ones.
  Result<TensorRef> Find(std::string_view name, DType dtype, std::span<const int64_t> shape) const;
  // The elements in place. kUnsupported if the file does not align them.
  template <class T>
  Result<std::span<const T>> Values(std::string_view name, std::span<const int64_t> shape) const {
    TC_ASSIGN_OR_RETURN(const TensorRef tensor, Find(name, DTypeOf<T>(), shape));
    TC_RETURN_IF_ERROR(CheckAligned(name, tensor));
    return std::span(reinterpret_cast<const T*>(tensor.data.data()), tensor.data.size() / sizeof(T));
  }

 private:
  SafetensorsFile() = default;
  Status CheckAligned(std::string_view name, const TensorRef& tensor) const;

  std::string source_;
  std::optional<MappedFile> file_;
  std::vector<StoredTensor> tensors_;    // sorted by name
  std::vector<std::string_view> names_;  // of tensors_
  std::map<std::string, std::string> metadata_;
};

// Writes a file from tensors that stay where they are. The same tensors and metadata give the same bytes, in whatever
// order they were added: larger elements first (so that all are aligned), then by name.
class SafetensorsWriter {
 public:
  // Writes all bytes of one tensor to where it is told.
  using Fill = std::function<void(std::span<std::byte>)>;
  // How much of the data is in the file.
  using Progress = std::function<void(int64_t bytes_done, int64_t bytes_total)>;

  // `data` must hold the shape's elements and stay valid until Write. Names are unique UTF-8.
  void Add(std::string name, DType dtype, std::vector<int64_t> shape, const void* data);
  template <class T>
  void Add(std::string name, std::vector<int64_t> shape, const T* data) {
    Add(std::move(name), DTypeOf<T>(), std::move(shape), static_cast<const void*>(data));
  }
  // For a tensor that is made when its turn has come: each Write calls `fill` once, and keeps the bytes no longer than it
  // takes to write them.
  void AddMade(std::string name, DType dtype, std::vector<int64_t> shape, Fill fill);
  void SetMetadata(std::string key, std::string value);

  // Bytes of all tensors.
  int64_t data_bytes() const;

  // Replaces `path` atomically (AtomicFile); streams the data, so that no copy of it is made. `progress` may be empty.
  Status Write(const std::string& path, const Progress& progress = {}) const;

 private:
  struct Entry {
    DType dtype;
    std::vector<int64_t> shape;
    size_t bytes;
    const std::byte* data;  // or null,
    Fill fill;              // and this makes it
  };
  using NamedEntry = std::pair<const std::string, Entry>;
  void AddEntry(std::string name, Entry entry);
  std::vector<const NamedEntry*> InOrder() const;
  std::string Header(std::span<const NamedEntry* const> entries) const;

  std::map<std::string, Entry> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace tensorcache
