#include "core/checksum.h"

#include <lzma.h>

namespace tensorcache {

void Crc64::Add(std::span<const std::byte> bytes) {
  value_ = lzma_crc64(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), value_);
}

}  // namespace tensorcache
