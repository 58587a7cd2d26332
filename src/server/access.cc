#include "server/access.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cctype>

#include "core/check.h"
#include "core/file.h"
#include "core/text.h"

namespace tensorcache::server {
namespace {

constexpr int64_t kMaxKeyFile = 1 << 20;

// 1 if they are equal, else 0. Looks at every byte of `given`.
size_t Equal(std::string_view key, std::string_view given) {
  unsigned difference = key.size() == given.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  }
  return difference == 0 ? 1 : 0;
}

}  // namespace

uint64_t RandomNumber() {
  uint64_t number = 0;
  TC_CHECK(getrandom(&number, sizeof(number), 0) == sizeof(number));
  return number;
}

std::string RandomId() { return fmt::format("{:016x}{:016x}", RandomNumber(), RandomNumber()); }

Result<AccessKeys> AccessKeys::Parse(std::string_view text, const std::string& name) {
  AccessKeys keys;
  for (int line = 1; !text.empty(); ++line) {
    std::string_view key = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), key.size() + 1));
    while (!key.empty() && (key.back() == '\r' || key.back() == ' ' || key.back() == '\t')) key.remove_suffix(1);
    if (key.empty() || key.starts_with('#')) continue;
    const bool fits = std::ranges::all_of(key, [](unsigned char c) { return std::isgraph(c); });
    if (!fits || key.size() < kShortestKey) {
      return InvalidArgument(fmt::format("{}: line {} is no key; a key has {} or more visible characters of ASCII",
                                         name, line, kShortestKey));
    }
    keys.keys_.emplace_back(key);
  }
  if (keys.empty()) return InvalidArgument(fmt::format("{} has no key; write one a line", name));
  return keys;
}

Result<AccessKeys> AccessKeys::Read(const std::string& path) {
  TC_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMaxKeyFile));
  return Parse(text, Quoted(path));
}

std::optional<size_t> AccessKeys::OwnerOf(std::string_view authorization) const {
  if (keys_.empty()) return 0;
  constexpr std::string_view kScheme = "Bearer ";
  if (!authorization.starts_with(kScheme)) return std::nullopt;
  authorization.remove_prefix(kScheme.size());
  size_t owner = keys_.size();
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (Equal(keys_[i], authorization) == 1) owner = i;
  }
  if (owner == keys_.size()) return std::nullopt;
  return owner;
}

}  // namespace tensorcache::server
