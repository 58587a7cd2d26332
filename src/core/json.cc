#include "core/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/text.h"

namespace tensorcache {
namespace {

// Walks the text and reports how far it got. The parser tells its position only in its own errors.
class TrackingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackingIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  TrackingIterator& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  TrackingIterator operator++(int) {
    TrackingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TrackingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// Builds the value from the parser's events and stops at the first thing that is not allowed. The parser itself does
// not recurse, so depth is bounded here before any recursive code sees the value.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  const std::string& error() const { return error_; }
  Json TakeValue() { return std::move(root_); }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Fail("binary value"); }
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (!Count()) return false;
    const auto [member, is_new] = open_.back()->emplace(name, nullptr);
    if (!is_new) return Fail(fmt::format("duplicate key {}", Quoted(name)));
    member_ = &*member;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& exception) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: what; last read: 'text'" -> "what"
    std::string_view message = exception.what();
    message.remove_prefix(std::min(message.size(), message.find("] ") + 2));
    if (message.starts_with("parse error at ")) message.remove_prefix(message.find(": ") + 2);
    return Fail(std::string(message.substr(0, message.find("; last read"))));
  }

 private:
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  bool Count() {
    if (++values_ > limits_.max_values) return Fail(fmt::format("more than {} values", limits_.max_values));
    return true;
  }

  bool Add(Json value) { return Count() && Place(std::move(value)) != nullptr; }

  bool Open(Json container) {
    if (!Count()) return false;
    if (std::ssize(open_) >= limits_.max_depth) return Fail(fmt::format("nested deeper than {}", limits_.max_depth));
    open_.push_back(Place(std::move(container)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  Json* Place(Json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_object()) return &(*member_ = std::move(value));
    open_.back()->push_back(std::move(value));
    return &open_.back()->back();
  }

  const JsonLimits limits_;
  Json root_;
  const JsonEmptier emptier_{&root_};
  std::vector<Json*>
      open_;                // the containers around the current position; only the innermost grows, so these stay valid
  Json* member_ = nullptr;  // the value of the last key
  int64_t values_ = 0;
  std::string error_;
};

Status ErrorAt(std::string_view source, std::string_view before, std::string_view error) {
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = std::max<size_t>(1, newline == before.npos ? before.size() : before.size() - newline - 1);
  return Corrupt(fmt::format("{}: line {}, column {}: {}", source, line, column, error));
}

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view source, const JsonLimits& limits) {
  if (const size_t offset = Utf8ErrorOffset(text); offset != text.size()) {
    return ErrorAt(source, text.substr(0, offset + 1), "not UTF-8");
  }
  const char* const begin = text.data();
  const char* reached = begin;
  Builder builder(limits);
  const bool ok =
      Json::sax_parse(TrackingIterator(begin, &reached), TrackingIterator(begin + text.size(), &reached), &builder);
  if (!ok) return ErrorAt(source, text.substr(0, reached - begin), builder.error());
  return builder.TakeValue();
}

void JsonEmptier::Empty(Json& json) noexcept {
  if (!json.is_structured()) return;
  for (Json& child : json) Empty(child);
  json.clear();
}

Result<Json> ReadJsonFile(const std::string& path, int64_t max_bytes) {
  TC_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, max_bytes));
  return ParseJson(text, path);
}

}  // namespace tensorcache
