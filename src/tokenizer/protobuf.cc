#include "tokenizer/protobuf.h"

namespace tensorcache::tokenizer {

std::optional<uint64_t> ProtoReader::Varint() {
  uint64_t value = 0;
  for (size_t i = 0; i < 10 && i < rest_.size(); ++i) {
    const auto byte = static_cast<uint8_t>(rest_[i]);
    value |= uint64_t{byte & 0x7Fu} << 7 * i;
    if (byte < 0x80) {
      rest_.remove_prefix(i + 1);
      return value;
    }
  }
  return std::nullopt;
}

std::optional<uint64_t> ProtoReader::Fixed(size_t size) {
  if (rest_.size() < size) return std::nullopt;
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<uint8_t>(rest_[i])} << 8 * i;
  rest_.remove_prefix(size);
  return value;
}

std::optional<ProtoField> ProtoReader::Next() {
  const std::string_view start = rest_;
  const auto tag = Varint();
  if (!tag || *tag >> 3 == 0 || *tag >> 3 > UINT32_MAX >> 3) return std::nullopt;
  ProtoField field{.number = static_cast<uint32_t>(*tag >> 3), .kind = static_cast<ProtoField::Kind>(*tag & 7)};
  std::optional<uint64_t> value;
  switch (field.kind) {
    case ProtoField::Kind::kNumber:
    case ProtoField::Kind::kBytes: value = Varint(); break;
    case ProtoField::Kind::kFixed64: value = Fixed(8); break;
    case ProtoField::Kind::kFixed32: value = Fixed(4); break;
  }
  if (!value) return std::nullopt;
  if (field.IsBytes()) {
    if (*value > rest_.size()) return std::nullopt;
    field.bytes = rest_.substr(0, *value);
    rest_.remove_prefix(*value);
  } else {
    field.value = *value;
  }
  field.encoded = start.substr(0, start.size() - rest_.size());
  return field;
}

std::string ProtoVarint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

namespace {

std::string Tag(uint32_t field, ProtoField::Kind kind) {
  return ProtoVarint(uint64_t{field} << 3 | static_cast<uint64_t>(kind));
}

}  // namespace

std::string ProtoNumber(uint32_t field, uint64_t value) {
  return Tag(field, ProtoField::Kind::kNumber) + ProtoVarint(value);
}

std::string ProtoBytes(uint32_t field, std::string_view bytes) {
  return Tag(field, ProtoField::Kind::kBytes) + ProtoVarint(bytes.size()) + std::string(bytes);
}

std::string ProtoFloat(uint32_t field, float value) {
  std::string bytes = Tag(field, ProtoField::Kind::kFixed32);
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(std::bit_cast<uint32_t>(value) >> 8 * i);
  return bytes;
}

}  // namespace tensorcache::tokenizer
