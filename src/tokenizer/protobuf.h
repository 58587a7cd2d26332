// The wire format of protocol buffers, as far as SentencePiece models need it.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tensorcache::tokenizer {

struct ProtoField {
  enum class Kind { kNumber = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  uint32_t number = 0;
  Kind kind = Kind::kNumber;
  uint64_t value = 0;        // of a number or fixed field
  std::string_view bytes;    // of kBytes: text or a message
  std::string_view encoded;  // the field itself

  bool IsBytes() const { return kind == Kind::kBytes; }
  float AsFloat() const { return std::bit_cast<float>(static_cast<uint32_t>(value)); }
};

// The fields of a message one after the other.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view message) : rest_(message) {}

  bool AtEnd() const { return rest_.empty(); }
  // The next field; nothing if the message is damaged.
  std::optional<ProtoField> Next();

 private:
  std::optional<uint64_t> Varint();
  std::optional<uint64_t> Fixed(size_t size);

  std::string_view rest_;
};

// Fields to be put one after the other.
std::string ProtoVarint(uint64_t value);
std::string ProtoNumber(uint32_t field, uint64_t value);
std::string ProtoBytes(uint32_t field, std::string_view bytes);
std::string ProtoFloat(uint32_t field, float value);

}  // namespace tensorcache::tokenizer
