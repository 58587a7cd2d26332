#include "core/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "core/check.h"
#include "core/json.h"
#include "core/text.h"

namespace tensorcache {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are mapped as they are in the file");

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as in the format's own reader
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr size_t kWritePiece = size_t{1} << 24;  // between two reports of progress

struct DTypeInfo {
  std::string_view name;
  int64_t bytes;
};

// In the order of the enum.
constexpr auto kDTypes = std::to_array<DTypeInfo>({
    {"F64", 8},
    {"F32", 4},
    {"F16", 2},
    {"BF16", 2},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"I64", 8},
    {"I32", 4},
    {"I16", 2},
    {"I8", 1},
    {"U64", 8},
    {"U32", 4},
    {"U16", 2},
    {"U8", 1},
    {"BOOL", 1},
});
static_assert(kDTypes.size() == static_cast<size_t>(DType::kBool) + 1);

// Bytes of a tensor, or nothing if they do not fit an int64.
std::optional<int64_t> TensorBytes(DType dtype, std::span<const int64_t> shape) {
  int64_t bytes = DTypeBytes(dtype);
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

Result<std::vector<int64_t>> ReadSizes(const Json& tensor, const char* key) {
  const auto found = tensor.find(key);
  if (found == tensor.end() || !found->is_array()) return Corrupt(fmt::format("no array '{}'", key));
  std::vector<int64_t> sizes;
  for (const Json& size : *found) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX) {
      return Corrupt(
          fmt::format("'{}' holds {}, which is not a size", key, size.is_number() ? size.dump() : size.type_name()));
    }
    sizes.push_back(size.get<int64_t>());
  }
  return sizes;
}

Result<StoredTensor> ReadTensor(const std::string& name, const Json& json, std::span<const std::byte> data) {
  if (!json.is_object()) return Corrupt("not an object");
  for (const auto& [key, value] : json.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") return Corrupt("unknown key " + Quoted(key));
  }
  const auto dtype_json = json.find("dtype");
  if (dtype_json == json.end() || !dtype_json->is_string()) return Corrupt("no string 'dtype'");
  const auto dtype = DTypeFromName(dtype_json->get_ref<const std::string&>());
  if (!dtype) return Corrupt("unknown dtype " + Quoted(dtype_json->get_ref<const std::string&>()));
  TC_ASSIGN_OR_RETURN(std::vector<int64_t> shape, ReadSizes(json, "shape"));
  TC_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, ReadSizes(json, "data_offsets"));
  if (offsets.size() != 2) return Corrupt(fmt::format("{} data_offsets instead of 2", offsets.size()));
  const int64_t begin = offsets[0], end = offsets[1];
  if (begin > end) return Corrupt(fmt::format("begins at {}, after its end {}", begin, end));
  if (end > std::ssize(data)) return Corrupt(fmt::format("ends at {}, past the data's {} bytes", end, data.size()));
  const auto bytes = TensorBytes(*dtype, shape);
  if (!bytes) return Corrupt("its shape has too many elements");
  if (*bytes != end - begin) {
    return Corrupt(
        fmt::format("{} {} needs {} bytes, its data_offsets hold {}", DTypeName(*dtype), shape, *bytes, end - begin));
  }
  return StoredTensor{name, *dtype, std::move(shape), data.subspan(begin, end - begin)};
}

Status ReadMetadata(const Json& json, std::map<std::string, std::string>* metadata) {
  if (!json.is_object()) return Corrupt("not an object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return Corrupt(fmt::format("the value of {} is not a string", Quoted(key)));
    (*metadata)[key] = value.get<std::string>();
  }
  return OkStatus();
}

// The format wants every byte of the data to belong to exactly one tensor.
Status CheckCoverage(std::span<const StoredTensor> tensors, std::span<const std::byte> data) {
  std::vector<const StoredTensor*> by_position;
  for (const StoredTensor& tensor : tensors) by_position.push_back(&tensor);
  const auto position = [&](const StoredTensor* tensor) {
    return std::pair(tensor->data.data() - data.data(), tensor->data.size());
  };
  std::ranges::sort(by_position, std::less<>(), position);
  std::ptrdiff_t covered = 0;
  std::string_view previous;
  for (const StoredTensor* tensor : by_position) {
    const auto [begin, size] = position(tensor);
    const std::string name = Quoted(tensor->name);
    if (begin < covered) return Corrupt(fmt::format("tensors {} and {} overlap", Quoted(previous), name));
    if (begin > covered) {
      return Corrupt(fmt::format("{} bytes before tensor {} belong to no tensor", begin - covered, name));
    }
    covered = begin + static_cast<std::ptrdiff_t>(size);
    previous = tensor->name;
  }
  const std::ptrdiff_t left = std::ssize(data) - covered;
  return left == 0 ? OkStatus() : Corrupt(fmt::format("the last {} bytes belong to no tensor", left));
}

Status Prefixed(std::string_view prefix, const Status& status) {
  return status.ok() ? status : Status(status.code(), fmt::format("{}: {}", prefix, status.message()));
}

// The header's text; nothing is allocated for it before its length is known to be true.
Result<std::string_view> HeaderText(std::span<const std::byte> bytes) {
  if (bytes.size() < kLengthBytes) return Corrupt("not a safetensors file: shorter than 8 bytes");
  uint64_t length;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) {
    return Corrupt(
        fmt::format("not a safetensors file: a header of {} bytes, allowed are {}", length, kMaxHeaderBytes));
  }
  if (length > bytes.size() - kLengthBytes) {
    return Corrupt(fmt::format("truncated: a header of {} bytes in a file of {}", length, bytes.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  if (!text.starts_with('{')) return Corrupt("not a safetensors file: the header does not start with '{'");
  return text;
}

}  // namespace

std::string_view DTypeName(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

int64_t DTypeBytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }

std::optional<DType> DTypeFromName(std::string_view name) {
  const auto found = std::ranges::find(kDTypes, name, &DTypeInfo::name);
  if (found == kDTypes.end()) return std::nullopt;
  return static_cast<DType>(found - kDTypes.begin());
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  TC_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  TC_ASSIGN_OR_RETURN(SafetensorsFile file, FromMemory(mapped.bytes(), path));
  file.file_ = std::move(mapped);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::FromMemory(std::span<const std::byte> bytes, std::string source) {
  const auto text = HeaderText(bytes);
  if (!text.ok()) return Prefixed(source, text.status());
  const auto data = bytes.subspan(kLengthBytes + text->size());
  // A value takes a few bytes of header but up to 100 of memory; real files have under ten values a tensor.
  constexpr JsonLimits kLimits = {.max_depth = 3, .max_values = 4'000'000};
  TC_ASSIGN_OR_RETURN(const Json header, ParseJson(*text, source + ": header", kLimits));

  SafetensorsFile file;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadataKey) {
      TC_RETURN_IF_ERROR(Prefixed(fmt::format("{}: {}", source, kMetadataKey), ReadMetadata(json, &file.metadata_)));
      continue;
    }
    auto tensor = ReadTensor(name, json, data);
    if (!tensor.ok()) return Prefixed(fmt::format("{}: tensor {}", source, Quoted(name)), tensor.status());
    file.tensors_.push_back(std::move(tensor).value());
  }
  TC_RETURN_IF_ERROR(Prefixed(source, CheckCoverage(file.tensors_, data)));
  for (const StoredTensor& tensor : file.tensors_) file.names_.push_back(tensor.name);
  file.source_ = std::move(source);
  return file;
}

Result<TensorRef> SafetensorsFile::Find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(names_, name);
  if (found == names_.end() || *found != name) {
    const std::string hint = DidYouMean(name, names_);
    return NotFound(fmt::format("{}: no tensor {}{}", source_, Quoted(name),
                                hint.empty() ? fmt::format(" among its {}", names_.size()) : hint));
  }
  const StoredTensor& tensor = tensors_[static_cast<size_t>(found - names_.begin())];
  return TensorRef{tensor.dtype, tensor.shape, tensor.data};
}

Result<TensorRef> SafetensorsFile::Find(std::string_view name, DType dtype, std::span<const int64_t> shape) const {
  TC_ASSIGN_OR_RETURN(const TensorRef tensor, Find(name));
  if (tensor.dtype != dtype || !std::ranges::equal(tensor.shape, shape)) {
    return InvalidArgument(fmt::format("{}: tensor {} is {} {}, expected {} {}", source_, Quoted(name),
                                       DTypeName(tensor.dtype), tensor.shape, DTypeName(dtype), shape));
  }
  return tensor;
}

Status SafetensorsFile::CheckAligned(std::string_view name, const TensorRef& tensor) const {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data.data());
  if (address % static_cast<uintptr_t>(DTypeBytes(tensor.dtype)) == 0) return OkStatus();
  return Unsupported(fmt::format(
      "{}: tensor {} is not aligned to its {} elements; write the file again with a current safetensors library",
      source_, Quoted(name), DTypeName(tensor.dtype)));
}

void SafetensorsWriter::Add(std::string name, DType dtype, std::vector<int64_t> shape, const void* data) {
  AddEntry(std::move(name),
           {.dtype = dtype, .shape = std::move(shape), .bytes = 0, .data = static_cast<const std::byte*>(data)});
}

void SafetensorsWriter::AddMade(std::string name, DType dtype, std::vector<int64_t> shape, Fill fill) {
  TC_CHECK(fill != nullptr);
  AddEntry(std::move(name),
           {.dtype = dtype, .shape = std::move(shape), .bytes = 0, .data = nullptr, .fill = std::move(fill)});
}

void SafetensorsWriter::AddEntry(std::string name, Entry entry) {
  TC_CHECK(IsValidUtf8(name) && name != kMetadataKey);
  for (const int64_t size : entry.shape) TC_CHECK(size >= 0);
  const auto bytes = TensorBytes(entry.dtype, entry.shape);
  TC_CHECK(bytes.has_value());
  entry.bytes = static_cast<size_t>(*bytes);
  TC_CHECK(entry.data != nullptr || entry.fill != nullptr || entry.bytes == 0);
  const bool is_new = tensors_.emplace(std::move(name), std::move(entry)).second;
  TC_CHECK(is_new);
}

void SafetensorsWriter::SetMetadata(std::string key, std::string value) {
  TC_CHECK(IsValidUtf8(key) && IsValidUtf8(value));
  metadata_[std::move(key)] = std::move(value);
}

int64_t SafetensorsWriter::data_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, entry] : tensors_) bytes += static_cast<int64_t>(entry.bytes);
  return bytes;
}

std::vector<const SafetensorsWriter::NamedEntry*> SafetensorsWriter::InOrder() const {
  std::vector<const NamedEntry*> entries;
  entries.reserve(tensors_.size());
  for (const NamedEntry& entry : tensors_) entries.push_back(&entry);
  std::ranges::sort(entries, std::less<>(), [](const NamedEntry* entry) {
    return std::pair(-DTypeBytes(entry->second.dtype), std::string_view(entry->first));
  });
  return entries;
}

std::string SafetensorsWriter::Header(std::span<const NamedEntry* const> entries) const {
  std::string header = "{";
  if (!metadata_.empty()) header += fmt::format("\"{}\":{}", kMetadataKey, Json(metadata_).dump());
  size_t offset = 0;
  for (const NamedEntry* named : entries) {
    const auto& [name, entry] = *named;
    const size_t end = offset + entry.bytes;
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", header == "{" ? "" : ",",
                          Json(name).dump(), DTypeName(entry.dtype), fmt::join(entry.shape, ","), offset, end);
    offset = end;
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the data starts aligned
  return header;
}

Status SafetensorsWriter::Write(const std::string& path, const Progress& progress) const {
  const std::vector<const NamedEntry*> entries = InOrder();
  const std::string header = Header(entries);
  if (header.size() > kMaxHeaderBytes) {
    return Unsupported(fmt::format("cannot write {}: too many tensors for one file", Quoted(path)));
  }
  TC_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  const uint64_t length = header.size();
  TC_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(&length, 1))));
  TC_RETURN_IF_ERROR(file.Append(header));
  const int64_t total = data_bytes();
  int64_t done = 0;
  std::vector<std::byte> made;
  for (const NamedEntry* named : entries) {
    const Entry& entry = named->second;
    if (entry.fill) {
      try {
        made.resize(entry.bytes);
      } catch (const std::bad_alloc&) {
        return IoError(fmt::format("cannot write {}: not enough memory for tensor {} of {} bytes", Quoted(path),
                                   Quoted(named->first), entry.bytes));
      }
      entry.fill(made);
    }
    std::span<const std::byte> rest(entry.fill ? made.data() : entry.data, entry.bytes);
    while (!rest.empty()) {
      const size_t piece = std::min(rest.size(), kWritePiece);
      TC_RETURN_IF_ERROR(file.Append(rest.first(piece)));
      rest = rest.subspan(piece);
      done += static_cast<int64_t>(piece);
      if (progress) progress(done, total);
    }
  }
  return file.Commit();
}

}  // namespace tensorcache
