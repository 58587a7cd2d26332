// Who may ask: API keys, and random names that nobody guesses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensorcache/status.h"

namespace tensorcache::server {

// 128 bits of the kernel's randomness as 32 hexadecimal digits.
std::string RandomId();
// 64 of them.
uint64_t RandomNumber();

class AccessKeys {
 public:
  static constexpr size_t kShortestKey = 16;

  // No keys: everybody may ask, as owner 0.
  AccessKeys() = default;
  // One key a line; blank lines and lines that begin with # are passed over. Errors never show a key.
  static Result<AccessKeys> Parse(std::string_view text, const std::string& name);
  static Result<AccessKeys> Read(const std::string& path);

  bool empty() const { return keys_.empty(); }
  // Whose key the value of an Authorization header has ("Bearer KEY"); nothing: nobody's. The time it takes does not depend
  // on how much of a key was right.
  std::optional<size_t> OwnerOf(std::string_view authorization) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace tensorcache::server
