// Values of templates: Python's, as far as chat templates use them. Strings remember which of their bytes came from outside, so
// that these never become control tokens, wherever a template takes them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/json.h"

namespace tensorcache::server::jinja {

// What is wrong with a template, or with what it is given; inside the engine alone (Template turns it into a Status).
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// UTF-8, and for each byte whether it came from outside.
struct Text {
  std::string bytes;
  std::string marks;  // as long: kOutside or kTemplate

  static constexpr char kTemplate = 0, kOutside = 1;
  Text() = default;
  explicit Text(std::string_view text, char mark = kTemplate) : bytes(text), marks(text.size(), mark) {}
  // No text of a template grows beyond this: TemplateError.
  static constexpr size_t kLargest = size_t{32} << 20;

  Text Part(size_t begin, size_t count = std::string::npos) const;
  Text& operator+=(const Text& other);
  size_t size() const { return bytes.size(); }
};

// Where its characters begin, and its size: one more entry than characters.
std::vector<size_t> CharacterStarts(std::string_view utf8);

class Value;
struct Arguments;
using List = std::vector<Value>;

// Keys in the order in which they came.
class Dict {
 public:
  const Value* Find(std::string_view key) const;
  void Set(const Text& key, Value value);
  const std::vector<std::pair<Text, Value>>& items() const { return items_; }

 private:
  std::vector<std::pair<Text, Value>> items_;
  std::map<std::string, size_t, std::less<>> places_;
};

using Function = std::function<Value(Arguments& arguments)>;

struct Undefined {
  std::string name;
};
struct None {};
// What namespace() makes: the only dict that templates may change.
struct Namespace {
  std::shared_ptr<Dict> dict;
};

class Value {
 public:
  using Any =
      std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>, std::shared_ptr<const List>,
                   std::shared_ptr<const Dict>, Namespace, std::shared_ptr<const Function>>;

  Value() = default;
  explicit Value(Any any) : any_(std::move(any)) {}
  static Value OfNone() { return Value(None{}); }
  static Value Of(bool value) { return Value(Any(value)); }
  static Value Of(int64_t value) { return Value(Any(value)); }
  static Value Of(double value) { return Value(Any(value)); }
  static Value Of(Text text) { return Value(Any(std::make_shared<const Text>(std::move(text)))); }
  static Value Of(std::string_view text) { return Of(Text(text)); }
  static Value Of(const char* text) { return Of(Text(text)); }  // which would be a bool
  // TemplateError for what is too deep.
  static Value Of(List list);
  static Value Of(Dict dict);
  static Value OfNamespace(Dict dict);
  static Value Of(Function function) { return Value(Any(std::make_shared<const Function>(std::move(function)))); }
  // Strings of JSON, keys too, are of `mark`.
  template <class AnyJson>
  static Value OfJson(const AnyJson& json, char mark);

  bool is_undefined() const { return std::holds_alternative<Undefined>(any_); }
  bool is_none() const { return std::holds_alternative<None>(any_); }
  bool is_bool() const { return std::holds_alternative<bool>(any_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(any_); }
  bool is_float() const { return std::holds_alternative<double>(any_); }
  bool is_number() const { return is_bool() || is_integer() || is_float(); }
  bool is_string() const { return text() != nullptr; }
  bool is_list() const { return list() != nullptr; }
  bool is_dict() const { return dict() != nullptr; }
  const Text* text() const { return Held<Text>(); }
  const List* list() const { return Held<List>(); }
  const Dict* dict() const;  // also of a namespace
  Dict* name_space() const;  // of a namespace alone
  const Function* function() const { return Held<Function>(); }

  bool Truth() const;
  // Numbers as Python sees them; TemplateError for anything else.
  int64_t Integer() const;
  double Number() const;
  // The string; TemplateError for anything else. `what` wants it.
  const Text& String(std::string_view what) const;
  // Each item of a list, key of a dict or character of a string; none of what is undefined.
  List Items() const;
  // What Python's str() gives.
  Text Str() const;
  std::string_view TypeName() const;
  // Lists and mappings inside each other; kTooDeep for a namespace, so that nothing can hold one and none itself.
  int depth() const { return depth_; }
  static constexpr int kTooDeep = 64;

 private:
  template <class T>
  const T* Held() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&any_);
    return held == nullptr ? nullptr : held->get();
  }

  Any any_;
  int depth_ = 0;
};

bool Equal(const Value& a, const Value& b);
// a < b, of two numbers or two strings.
bool Less(const Value& a, const Value& b);
// As json.dumps writes it with ensure_ascii=False; indent < 0: on one line.
Text ToJsonText(const Value& value, int64_t indent);

// What a function or filter is called with.
struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at `place` or called `name`; undefined if there is none.
  Value Get(size_t place, std::string_view name) const;
};

template <class AnyJson>
Value Value::OfJson(const AnyJson& json, char mark) {
  if (json.is_boolean()) return Of(json.template get<bool>());
  if (json.is_number_integer()) return Of(json.template get<int64_t>());
  if (json.is_number()) return Of(json.template get<double>());
  if (json.is_string()) return Of(Text(json.template get_ref<const std::string&>(), mark));
  if (json.is_array()) {
    List list;
    for (const auto& item : json) list.push_back(OfJson(item, mark));
    return Of(std::move(list));
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& [key, item] : json.items()) dict.Set(Text(key, mark), OfJson(item, mark));
    return Of(std::move(dict));
  }
  return OfNone();
}

}  // namespace tensorcache::server::jinja
