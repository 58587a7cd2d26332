// Strict JSON on top of nlohmann-json: what two readers could understand differently is an error, with its line and
// column.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tensorcache/status.h"

namespace tensorcache {

using Json = nlohmann::json;                 // keys sorted; what is parsed
using OrderedJson = nlohmann::ordered_json;  // keys in the order they were set; what is written for people

struct JsonLimits {
  int max_depth = 64;
  int64_t max_values = INT64_MAX;  // scalars, arrays, objects and keys; each takes up to about 100 bytes of memory
};

// Parses one JSON value. Invalid UTF-8, a key twice in one object (at any depth), anything after the value, NaN,
// Infinity, comments, numbers too large for a double, and what exceeds the limits give kCorrupt. `source` names the
// text in messages.
Result<Json> ParseJson(std::string_view text, std::string_view source, const JsonLimits& limits = {});

// Reads and parses a file of at most `max_bytes`.
Result<Json> ReadJsonFile(const std::string& path, int64_t max_bytes = int64_t{64} << 20);

// Empties `json`, when it goes out of scope, without asking for memory. Json's own destructor asks for some and ends the
// program if there is none; what must outlive that declares one of these behind each value that it parsed.
class JsonEmptier {
 public:
  explicit JsonEmptier(Json* json) : json_(json) {}
  ~JsonEmptier() { Empty(*json_); }
  JsonEmptier(const JsonEmptier&) = delete;
  JsonEmptier& operator=(const JsonEmptier&) = delete;

 private:
  // Recursive: ParseJson bounds the depth.
  static void Empty(Json& json) noexcept;

  Json* json_;
};

// As it is written to files for people. A string that is not UTF-8, such as a file's name, keeps its readable part.
template <class AnyJson>
std::string JsonText(const AnyJson& json, int indent = 2) {
  return json.dump(indent, ' ', false, AnyJson::error_handler_t::replace) + "\n";
}

}  // namespace tensorcache
