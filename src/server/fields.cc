#include "server/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/text.h"

namespace tensorcache::server {
namespace {

std::string Describe(const Json& json) {
  if (json.is_object()) return "an object";
  if (json.is_array()) return "an array";
  if (json.is_string()) return "the string " + Quoted(json.get_ref<const std::string&>());
  return json.dump();
}

// As an integer, unless it does not fit one.
std::optional<int64_t> IntegerOf(const Json& json) {
  if (!json.is_number_integer()) return std::nullopt;
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return json.get<int64_t>();
}

}  // namespace

std::string Expected(std::string_view expected, const Json& found) {
  return fmt::format("expected {}, found {}", expected, Describe(found));
}

FieldReader::FieldReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (object_.is_object()) return;
  const std::string name = path_.empty() ? "" : path_.substr(0, path_.size() - 1);
  error_ = InvalidValue(
      name, fmt::format("{}: {}", name.empty() ? "the request" : Quoted(name), Expected("an object", object_)));
}

const Json* FieldReader::Any(std::string_view name) {
  known_.emplace_back(name);
  if (!ok()) return nullptr;
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void FieldReader::Bool(std::string_view name, bool* value) {
  const Json* json = Any(name);
  if (json == nullptr) return;
  if (!json->is_boolean()) return Fail(name, Expected("true or false", *json));
  *value = json->get<bool>();
}

void FieldReader::Integer(std::string_view name, Range<int64_t> range, std::optional<int64_t>* value) {
  const Json* json = Any(name);
  if (json == nullptr) return;
  const std::optional<int64_t> number = IntegerOf(*json);
  if (!number || *number < range.low || *number > range.high) {
    return Fail(name, Expected(fmt::format("a whole number from {} to {}", range.low, range.high), *json));
  }
  *value = *number;
}

void FieldReader::Integer(std::string_view name, Range<int64_t> range, int64_t* value) {
  std::optional<int64_t> number = *value;
  Integer(name, range, &number);
  *value = *number;
}

void FieldReader::Number(std::string_view name, Range<double> range, double* value) {
  const Json* json = Any(name);
  if (json == nullptr) return;
  const double number = json->is_number() ? json->get<double>() : range.low;
  if (!json->is_number() || !(number >= range.low && number <= range.high)) {
    return Fail(name, Expected(fmt::format("a number from {} to {}", range.low, range.high), *json));
  }
  *value = number;
}

void FieldReader::String(std::string_view name, std::string* value) {
  const Json* json = Any(name);
  if (json == nullptr) return;
  if (!json->is_string()) return Fail(name, Expected("a string", *json));
  *value = json->get_ref<const std::string&>();
}

void FieldReader::Unsupported(std::string_view name, const Json& harmless) {
  const Json* json = Any(name);
  if (json == nullptr || *json == harmless) return;
  Fail(UnsupportedParameter(PathOf(name),
                            fmt::format("{} is not supported by this server; leave it out", Quoted(PathOf(name)))));
}

void FieldReader::Fail(std::string_view name, std::string_view problem) {
  Fail(InvalidValue(PathOf(name), fmt::format("{}: {}", Quoted(PathOf(name)), problem)));
}

void FieldReader::Fail(ApiError error) {
  if (ok()) error_ = std::move(error);
}

MaybeError FieldReader::Finish() {
  if (!ok()) return error_;
  for (const auto& [name, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const std::vector<std::string_view> names(known_.begin(), known_.end());
    return UnknownParameter(PathOf(name),
                            fmt::format("there is no field {}{}", Quoted(PathOf(name)), DidYouMean(name, names)));
  }
  return std::nullopt;
}

}  // namespace tensorcache::server
