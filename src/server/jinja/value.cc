#include "server/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tensorcache::server::jinja {
namespace {

// Python's repr() of a float.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-4 || size >= 1e16)) {
    std::string text = fmt::format("{:e}", value);
    for (int digits = 0; digits < 17; ++digits) {
      text = fmt::format("{:.{}e}", value, digits);
      if (std::stod(text) == value) break;
    }
    return text;
  }
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == text.npos ? text + ".0" : text;
}

// In quotes as Python's repr() has it, or as JSON has it.
Text QuotedText(const Text& text, bool json) {
  const bool has_single = text.bytes.find('\'') != std::string::npos,
             has_double = text.bytes.find('"') != std::string::npos;
  const char quote = json || (has_single && !has_double) ? '"' : '\'';
  Text out(std::string_view(&quote, 1));
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes[i];
    std::string escaped;
    if (c == quote || c == '\\') {
      escaped = std::string("\\") + c;
    } else if (c == '\n') {
      escaped = "\\n";
    } else if (c == '\t') {
      escaped = "\\t";
    } else if (c == '\r') {
      escaped = "\\r";
    } else if (json && c == '\b') {
      escaped = "\\b";
    } else if (json && c == '\f') {
      escaped = "\\f";
    } else if (static_cast<unsigned char>(c) < 0x20 || (!json && c == 0x7F)) {
      escaped = json ? fmt::format("\\u{:04x}", c) : fmt::format("\\x{:02x}", c);
    } else {
      escaped = c;
    }
    out += Text(escaped, text.marks[i]);
  }
  out += Text(std::string_view(&quote, 1));
  return out;
}

// What str() gives of a value that is no string.
void PutText(const Value& value, Text* out);

void PutRepr(const Value& value, Text* out) {
  if (const Text* text = value.text()) {
    *out += QuotedText(*text, false);
  } else {
    PutText(value, out);
  }
}

void PutText(const Value& value, Text* out) {
  auto between = [out, is_first = true]() mutable {
    if (!std::exchange(is_first, false)) *out += Text(", ");
  };
  if (value.is_undefined()) return;
  if (value.is_none()) {
    *out += Text("None");
  } else if (value.is_bool()) {
    *out += Text(value.Truth() ? "True" : "False");
  } else if (value.is_integer()) {
    *out += Text(std::to_string(value.Integer()));
  } else if (value.is_float()) {
    *out += Text(FloatText(value.Number()));
  } else if (const List* list = value.list()) {
    *out += Text("[");
    for (const Value& item : *list) {
      between();
      PutRepr(item, out);
    }
    *out += Text("]");
  } else if (value.is_dict() && value.name_space() == nullptr) {
    *out += Text("{");
    for (const auto& [key, item] : value.dict()->items()) {
      between();
      *out += QuotedText(key, false);
      *out += Text(": ");
      PutRepr(item, out);
    }
    *out += Text("}");
  } else {
    throw TemplateError(fmt::format("{} has no text", value.TypeName()));
  }
}

void PutLine(Text* out, int64_t indent, int64_t depth) {
  if (indent >= 0) *out += Text("\n" + std::string(static_cast<size_t>(indent * depth), ' '));
}

void PutJson(const Value& value, int64_t indent, int64_t depth, Text* out) {
  const Text comma(indent >= 0 ? "," : ", ");
  if (const Text* text = value.text()) {
    *out += QuotedText(*text, true);
  } else if (const List* list = value.list()) {
    *out += Text("[");
    for (size_t i = 0; i < list->size(); ++i) {
      if (i > 0) *out += comma;
      PutLine(out, indent, depth + 1);
      PutJson((*list)[i], indent, depth + 1, out);
    }
    if (!list->empty()) PutLine(out, indent, depth);
    *out += Text("]");
  } else if (const Dict* dict = value.dict()) {
    *out += Text("{");
    bool first = true;
    for (const auto& [key, item] : dict->items()) {
      if (!std::exchange(first, false)) *out += comma;
      PutLine(out, indent, depth + 1);
      *out += QuotedText(key, true);
      *out += Text(": ");
      PutJson(item, indent, depth + 1, out);
    }
    if (!first) PutLine(out, indent, depth);
    *out += Text("}");
  } else if (value.is_none()) {
    *out += Text("null");
  } else if (value.is_bool()) {
    *out += Text(value.Truth() ? "true" : "false");
  } else if (value.is_number()) {
    *out += value.Str();
  } else {
    throw TemplateError(fmt::format("tojson: {} has no JSON", value.TypeName()));
  }
}

}  // namespace

Text Text::Part(size_t begin, size_t count) const {
  Text part;
  part.bytes = bytes.substr(begin, count);
  part.marks = marks.substr(begin, count);
  return part;
}

Text& Text::operator+=(const Text& other) {
  if (size() + other.size() > kLargest) throw TemplateError("a text becomes too long");
  bytes += other.bytes;
  marks += other.marks;
  return *this;
}

std::vector<size_t> CharacterStarts(std::string_view utf8) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < utf8.size(); ++i) {
    if ((static_cast<unsigned char>(utf8[i]) & 0xC0) != 0x80) starts.push_back(i);
  }
  starts.push_back(utf8.size());
  return starts;
}

const Value* Dict::Find(std::string_view key) const {
  const auto found = places_.find(key);
  return found == places_.end() ? nullptr : &items_[found->second].second;
}

void Dict::Set(const Text& key, Value value) {
  const auto [found, is_new] = places_.emplace(key.bytes, items_.size());
  if (is_new) {
    items_.emplace_back(key, std::move(value));
  } else {
    items_[found->second].second = std::move(value);
  }
}

Value Value::Of(List list) {
  constexpr size_t kLongest = 1'000'000;
  if (list.size() > kLongest) throw TemplateError("a list becomes too long");
  int depth = 0;
  for (const Value& item : list) depth = std::max(depth, item.depth());
  if (depth + 1 >= kTooDeep) throw TemplateError("lists are nested too deeply");
  Value value(Any(std::make_shared<const List>(std::move(list))));
  value.depth_ = depth + 1;
  return value;
}

Value Value::Of(Dict dict) {
  int depth = 0;
  for (const auto& [key, item] : dict.items()) depth = std::max(depth, item.depth());
  if (depth + 1 >= kTooDeep) throw TemplateError("mappings are nested too deeply");
  Value value(Any(std::make_shared<const Dict>(std::move(dict))));
  value.depth_ = depth + 1;
  return value;
}

Value Value::OfNamespace(Dict dict) {
  Value value(Any(Namespace{std::make_shared<Dict>(std::move(dict))}));
  value.depth_ = kTooDeep;
  return value;
}

const Dict* Value::dict() const {
  if (const auto* held = std::get_if<Namespace>(&any_)) return held->dict.get();
  return Held<Dict>();
}

Dict* Value::name_space() const {
  const auto* held = std::get_if<Namespace>(&any_);
  return held == nullptr ? nullptr : held->dict.get();
}

bool Value::Truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return Number() != 0;
  if (const Text* held = text()) return held->size() > 0;
  if (const List* held = list()) return !held->empty();
  if (name_space() != nullptr) return true;
  if (const Dict* held = dict()) return !held->items().empty();
  return true;
}

int64_t Value::Integer() const {
  if (const auto* held = std::get_if<int64_t>(&any_)) return *held;
  if (const auto* held = std::get_if<bool>(&any_)) return *held ? 1 : 0;
  throw TemplateError(fmt::format("expected a whole number, found {}", TypeName()));
}

double Value::Number() const {
  if (const auto* held = std::get_if<double>(&any_)) return *held;
  if (!is_number()) throw TemplateError(fmt::format("expected a number, found {}", TypeName()));
  return static_cast<double>(Integer());
}

const Text& Value::String(std::string_view what) const {
  if (const Text* held = text()) return *held;
  throw TemplateError(fmt::format("{} wants a string, found {}", what, TypeName()));
}

List Value::Items() const {
  if (const List* held = list()) return *held;
  List items;
  if (const Dict* held = dict()) {
    for (const auto& [key, value] : held->items()) items.push_back(Of(key));
  } else if (const Text* held = text()) {
    const std::vector<size_t> starts = CharacterStarts(held->bytes);
    for (size_t i = 0; i + 1 < starts.size(); ++i)
      items.push_back(Of(held->Part(starts[i], starts[i + 1] - starts[i])));
  } else if (!is_undefined()) {
    throw TemplateError(fmt::format("{} has no items", TypeName()));
  }
  return items;
}

Text Value::Str() const {
  if (const Text* held = text()) return *held;
  Text out;
  PutText(*this, &out);
  return out;
}

std::string_view Value::TypeName() const {
  if (is_undefined()) return "an undefined value";
  if (is_none()) return "none";
  if (is_bool()) return "a boolean";
  if (is_integer()) return "a whole number";
  if (is_float()) return "a number";
  if (is_string()) return "a string";
  if (is_list()) return "a list";
  if (name_space() != nullptr) return "a namespace";
  if (is_dict()) return "a mapping";
  return "a function";
}

namespace {

// `budget`: comparisons that may be made; parts that are shared would take ever more.
bool EqualWithin(const Value& a, const Value& b, int64_t* budget) {
  if (--*budget < 0) throw TemplateError("a comparison takes too long");
  if (a.is_number() && b.is_number()) return a.Number() == b.Number();
  if (a.is_string() && b.is_string()) return a.text()->bytes == b.text()->bytes;
  if (a.is_list() && b.is_list()) {
    if (a.list()->size() != b.list()->size()) return false;
    for (size_t i = 0; i < a.list()->size(); ++i) {
      if (!EqualWithin((*a.list())[i], (*b.list())[i], budget)) return false;
    }
    return true;
  }
  if (a.name_space() != nullptr || b.name_space() != nullptr) return a.name_space() == b.name_space();
  if (a.is_dict() && b.is_dict()) {
    if (a.dict()->items().size() != b.dict()->items().size()) return false;
    for (const auto& [key, value] : a.dict()->items()) {
      const Value* other = b.dict()->Find(key.bytes);
      if (other == nullptr || !EqualWithin(value, *other, budget)) return false;
    }
    return true;
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

}  // namespace

bool Equal(const Value& a, const Value& b) {
  int64_t budget = 1'000'000;
  return EqualWithin(a, b, &budget);
}

bool Less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.Number() < b.Number();
  if (a.is_string() && b.is_string()) return a.text()->bytes < b.text()->bytes;
  throw TemplateError(fmt::format("{} and {} have no order", a.TypeName(), b.TypeName()));
}

Text ToJsonText(const Value& value, int64_t indent) {
  Text out;
  PutJson(value, indent, 0, &out);
  return out;
}

Value Arguments::Get(size_t place, std::string_view name) const {
  if (place < positional.size()) return positional[place];
  for (const auto& [key, value] : named) {
    if (key == name) return value;
  }
  return Value();
}

}  // namespace tensorcache::server::jinja
