#include "core/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/text.h"

namespace tensorcache::config_internal {
namespace {

std::string Subject(const std::string& path) { return path.empty() ? "the config" : Quoted(path); }

std::string Describe(const Json& json) {
  if (json.is_object()) return "an object";
  if (json.is_array()) return "an array";
  if (json.is_string()) return "the string " + Quoted(json.get_ref<const std::string&>());
  return json.dump();  // null, true, false or a number
}

}  // namespace

std::string OneOf(std::span<const std::string_view> names) { return fmt::format("one of {}", fmt::join(names, ", ")); }

Status TypeError(const std::string& path, std::string_view expected, const Json& found) {
  return InvalidArgument(fmt::format("{}: expected {}, found {}", Subject(path), expected, Describe(found)));
}

Status ReadInteger(const Json& json, const std::string& path, int64_t min, uint64_t max, uint64_t* bits) {
  if (!json.is_number_integer()) return TypeError(path, "an integer", json);
  const bool in_range = json.is_number_unsigned()
                            ? json.get<uint64_t>() <= max
                            : json.get<int64_t>() >= min && (json.get<int64_t>() < 0 || json.get<uint64_t>() <= max);
  if (!in_range) return TypeError(path, fmt::format("an integer from {} to {}", min, max), json);
  *bits = json.is_number_unsigned() ? json.get<uint64_t>() : static_cast<uint64_t>(json.get<int64_t>());
  return OkStatus();
}

Status ReadNumber(const Json& json, const std::string& path, double max, double* value) {
  if (!json.is_number()) return TypeError(path, "a number", json);
  const auto number = json.get<double>();
  if (!(std::abs(number) <= max)) return TypeError(path, fmt::format("a number from {} to {}", -max, max), json);
  *value = number;
  return OkStatus();
}

Status UnknownNumber(const std::string& path, int64_t number, std::span<const std::string_view> names) {
  return InvalidArgument(fmt::format("{} is number {}; it must be {}", path, number, OneOf(names)));
}

Status ReadName(const Json& json, const std::string& path, std::span<const std::string_view> names, size_t* index) {
  const std::string expected = OneOf(names);
  if (!json.is_string()) return TypeError(path, expected, json);
  const auto& name = json.get_ref<const std::string&>();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    const Status error = TypeError(path, expected, json);
    return InvalidArgument(error.message() + DidYouMean(name, names));
  }
  *index = static_cast<size_t>(found - names.begin());
  return OkStatus();
}

Status UnknownKey(const std::string& path, std::string_view key, std::span<const std::string_view> known) {
  std::string hint = DidYouMean(key, known);
  if (known.empty()) {
    hint = fmt::format("; {} has no keys", Subject(path));
  } else if (hint.empty()) {
    hint = fmt::format("; {} has {}", Subject(path), fmt::join(known, ", "));
  }
  return InvalidArgument(fmt::format("unknown key {}{}", Quoted(Join(path, key)), hint));
}

const Json* FindMember(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

bool Contains(std::span<const std::string_view> keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

std::string Join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

double ShortestDouble(float value) {
  char text[32];
  const auto written = std::to_chars(text, text + sizeof(text), value);
  double shortest = value;
  std::from_chars(text, written.ptr, shortest);
  // Near the largest float, or by double rounding, the short form could read back as another value.
  const bool reads_back =
      std::abs(shortest) <= std::numeric_limits<float>::max() && static_cast<float>(shortest) == value;
  return reads_back ? shortest : value;
}

std::string ToText(const OrderedJson& json) { return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

Status SplitAssignment(std::string_view assignment, std::vector<std::string_view>* keys, std::string_view* value) {
  const size_t equals = assignment.find('=');
  if (!IsValidUtf8(assignment)) return InvalidArgument(fmt::format("{} is not UTF-8", Quoted(assignment)));
  if (equals == assignment.npos || equals == 0) {
    return InvalidArgument(fmt::format("{}: expected key=value, such as cache.window=128", Quoted(assignment)));
  }
  *value = assignment.substr(equals + 1);
  std::string_view rest = assignment.substr(0, equals);
  while (true) {
    const size_t dot = rest.find('.');
    keys->push_back(rest.substr(0, dot));
    if (dot == rest.npos) return OkStatus();
    rest.remove_prefix(dot + 1);
  }
}

Json OverrideValue(std::string_view text, bool is_string_field) {
  if (!is_string_field || text.starts_with('"')) {
    Result<Json> json = ParseJson(text, "value");
    if (json.ok()) return std::move(json).value();
  }
  return std::string(text);
}

Status StructReader::Finish() const {
  if (!status_.ok()) return status_;
  for (const auto& [key, value] : json_.items()) {
    if (!Contains(known_, key) && !Contains(old_, key)) return UnknownKey(path_, key, known_);
  }
  return OkStatus();
}

}  // namespace tensorcache::config_internal
