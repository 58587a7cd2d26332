// Reads the fields of a request, strictly: a field of another type or out of range, one that is known and not done here, and
// one that nobody knows are errors that name it. null stands for a field that is not there, as OpenAI's clients have it.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "server/error.h"

namespace tensorcache::server {

// Of numbers, inclusive.
template <class T>
struct Range {
  T low, high;
};

class FieldReader {
 public:
  // `object` must outlive the reader. `path` stands before the names in errors: "stream_options.".
  explicit FieldReader(const Json& object, std::string path = "");

  // Each sets *value if the field is there, and leaves it otherwise. After the first error nothing is read any more.
  void Bool(std::string_view name, bool* value);
  void Integer(std::string_view name, Range<int64_t> range, int64_t* value);
  void Integer(std::string_view name, Range<int64_t> range, std::optional<int64_t>* value);
  void Number(std::string_view name, Range<double> range, double* value);
  void String(std::string_view name, std::string* value);
  // The value itself, for fields that have several types; null if it is not there.
  const Json* Any(std::string_view name);
  // A field that has no effect here: any value will do.
  void Ignore(std::string_view name) { Any(name); }
  // A field that is known and not done, unless it has the value that changes nothing.
  void Unsupported(std::string_view name, const Json& harmless = nullptr);
  // An error about a field.
  void Fail(std::string_view name, std::string_view problem);
  void Fail(ApiError error);

  bool ok() const { return !error_.has_value(); }
  // The name as errors have it.
  std::string PathOf(std::string_view name) const { return path_ + std::string(name); }
  // The first error, or else the first field that nobody asked for.
  MaybeError Finish();

 private:
  const Json& object_;
  std::string path_;
  std::vector<std::string> known_;
  MaybeError error_;
};

// "a number, found the string 'x'": what a field is instead.
std::string Expected(std::string_view expected, const Json& found);

}  // namespace tensorcache::server
