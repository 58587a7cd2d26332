#include "server/jinja/functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>

namespace tensorcache::server::jinja {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\f\v";

// ----- strings ----------------------------------------------------------------------------------------------------------

Value Strip(const Text& text, const Value& characters, bool left, bool right) {
  const bool blanks = characters.is_undefined() || characters.is_none();
  const std::string_view strip = blanks ? kBlanks : std::string_view(characters.String("strip").bytes);
  size_t begin = 0, end = text.size();
  while (left && begin < end && strip.find(text.bytes[begin]) != strip.npos) ++begin;
  while (right && end > begin && strip.find(text.bytes[end - 1]) != strip.npos) --end;
  return Value::Of(text.Part(begin, end - begin));
}

// Letters of ASCII alone; others stay.
Value ToCase(Text text, bool upper) {
  for (char& c : text.bytes)
    c = static_cast<char>(upper ? std::toupper(static_cast<unsigned char>(c))
                                : std::tolower(static_cast<unsigned char>(c)));
  return Value::Of(std::move(text));
}

Value Capitalize(Text text, bool every_word) {
  bool first = true;
  for (char& c : text.bytes) {
    const auto byte = static_cast<unsigned char>(c);
    c = static_cast<char>(first ? std::toupper(byte) : std::tolower(byte));
    first = every_word && std::isalpha(byte) == 0 && byte < 0x80;
  }
  return Value::Of(std::move(text));
}

Value Replace(const Text& text, const Text& from, const Text& to, int64_t most) {
  if (from.size() == 0) throw TemplateError("replace: there is nothing to look for");
  Text out;
  size_t at = 0;
  for (int64_t count = 0; most < 0 || count < most; ++count) {
    const size_t found = text.bytes.find(from.bytes, at);
    if (found == std::string::npos) break;
    out += text.Part(at, found - at);
    out += to;
    at = found + from.size();
  }
  out += text.Part(at);
  return Value::Of(std::move(out));
}

Value Split(const Text& text, const Value& separator, int64_t most, bool from_right) {
  List parts;
  if (separator.is_undefined() || separator.is_none()) {
    for (size_t at = text.bytes.find_first_not_of(kBlanks); at != std::string::npos;) {
      if (most >= 0 && std::ssize(parts) == most) {
        parts.push_back(Strip(text.Part(at), Value(), false, true));
        break;
      }
      const size_t end = std::min(text.bytes.find_first_of(kBlanks, at), text.size());
      parts.push_back(Value::Of(text.Part(at, end - at)));
      at = text.bytes.find_first_not_of(kBlanks, end);
    }
    return Value::Of(std::move(parts));
  }
  const std::string& mark = separator.String("split").bytes;
  if (mark.empty()) throw TemplateError("split: the separator is empty");
  if (from_right) {
    size_t end = text.size();
    while (most < 0 || std::ssize(parts) < most) {
      const size_t found = end < mark.size() ? std::string::npos : text.bytes.rfind(mark, end - mark.size());
      if (found == std::string::npos) break;
      parts.push_back(Value::Of(text.Part(found + mark.size(), end - found - mark.size())));
      end = found;
    }
    parts.push_back(Value::Of(text.Part(0, end)));
    std::reverse(parts.begin(), parts.end());
    return Value::Of(std::move(parts));
  }
  size_t at = 0;
  while (most < 0 || std::ssize(parts) < most) {
    const size_t found = text.bytes.find(mark, at);
    if (found == std::string::npos) break;
    parts.push_back(Value::Of(text.Part(at, found - at)));
    at = found + mark.size();
  }
  parts.push_back(Value::Of(text.Part(at)));
  return Value::Of(std::move(parts));
}

Value Join(const List& items, const Text& separator, const Value& attribute) {
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += separator;
    out += (attribute.is_undefined() ? items[i] : MemberOf(items[i], attribute.String("join").bytes)).Str();
  }
  return Value::Of(std::move(out));
}

Value Indent(const Text& text, const Value& width, bool first, bool blank) {
  const Text indent =
      width.is_string()
          ? *width.text()
          : Text(std::string(
                static_cast<size_t>(std::clamp<int64_t>(width.is_undefined() ? 4 : width.Integer(), 0, 1000)), ' '));
  Text out;
  for (size_t at = 0, line = 0; at <= text.size(); ++line) {
    const size_t end = std::min(text.bytes.find('\n', at), text.size());
    if ((line > 0 || first) && (end > at || blank)) out += indent;
    out += text.Part(at, end - at + 1);
    at = end + 1;
  }
  return Value::Of(std::move(out));
}

bool StartsOrEnds(const Text& text, const Value& with, bool starts) {
  if (with.is_list()) {
    return std::ranges::any_of(*with.list(), [&](const Value& one) { return StartsOrEnds(text, one, starts); });
  }
  const std::string& part = with.String(starts ? "startswith" : "endswith").bytes;
  return starts ? text.bytes.starts_with(part) : text.bytes.ends_with(part);
}

// ----- lists ------------------------------------------------------------------------------------------------------------

int64_t LengthOf(const Value& value) {
  if (const Text* text = value.text()) return std::ssize(CharacterStarts(text->bytes)) - 1;
  if (const List* list = value.list()) return std::ssize(*list);
  if (const Dict* dict = value.dict()) return std::ssize(dict->items());
  if (value.is_undefined()) return 0;
  throw TemplateError(fmt::format("{} has no length", value.TypeName()));
}

Value PairsOf(const Value& value) {
  List pairs;
  if (value.is_undefined()) return Value::Of(std::move(pairs));
  if (!value.is_dict()) throw TemplateError(fmt::format("items wants a mapping, found {}", value.TypeName()));
  for (const auto& [key, item] : value.dict()->items()) pairs.push_back(Value::Of(List{Value::Of(key), item}));
  return Value::Of(std::move(pairs));
}

// As strings without regard to case, unless told otherwise.
Value SortKey(const Value& value, const Arguments& arguments, size_t place) {
  const Value attribute = arguments.Get(place, "attribute");
  const Value key =
      attribute.is_undefined() || attribute.is_none() ? value : MemberOf(value, attribute.String("sort").bytes);
  const bool as_is = arguments.Get(place - 1, "case_sensitive").Truth();
  return key.is_string() && !as_is ? ToCase(*key.text(), false) : key;
}

Value Sort(List items, const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) keyed.emplace_back(SortKey(item, arguments, 2), item);
  for (const auto& [key, item] : keyed) (void)Less(key, keyed[0].first);  // all have an order, before sorting begins
  std::stable_sort(keyed.begin(), keyed.end(), [](const auto& a, const auto& b) { return Less(a.first, b.first); });
  if (arguments.Get(0, "reverse").Truth()) {
    std::reverse(keyed.begin(), keyed.end());
    // Equal ones stay in their order.
    std::stable_sort(keyed.begin(), keyed.end(), [](const auto& a, const auto& b) { return Less(b.first, a.first); });
  }
  List sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return Value::Of(std::move(sorted));
}

Value Unique(const List& items, const Arguments& arguments) {
  constexpr size_t kMost = 1000;  // each is compared with all
  List unique, keys;
  for (const Value& item : items) {
    const Value key = SortKey(item, arguments, 1);
    if (std::ranges::any_of(keys, [&](const Value& other) { return Equal(key, other); })) continue;
    if (keys.size() == kMost) throw TemplateError("unique: too many values");
    keys.push_back(key);
    unique.push_back(item);
  }
  return Value::Of(std::move(unique));
}

Value Extreme(const List& items, bool largest) {
  if (items.empty()) return Value();
  const Value* best = &items[0];
  for (const Value& item : items) {
    if (largest ? Less(*best, item) : Less(item, *best)) best = &item;
  }
  return *best;
}

Arguments Behind(const Arguments& arguments, size_t count) {
  Arguments rest{.positional = {}, .named = arguments.named};
  for (size_t i = count; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
  return rest;
}

Value Map(const List& items, const Arguments& arguments) {
  List out;
  const Value attribute = arguments.Get(SIZE_MAX, "attribute");
  for (const Value& item : items) {
    if (attribute.is_undefined()) {
      out.push_back(ApplyFilter(arguments.Get(0, "").String("map").bytes, item, Behind(arguments, 1)));
      continue;
    }
    Value member = MemberOf(item, attribute.String("map").bytes);
    const Value otherwise = arguments.Get(SIZE_MAX, "default");
    out.push_back(member.is_undefined() && !otherwise.is_undefined() ? otherwise : member);
  }
  return Value::Of(std::move(out));
}

// select, reject, and with `attribute` selectattr and rejectattr.
Value Select(const List& items, const Arguments& arguments, bool attribute, bool wanted) {
  const size_t before = attribute ? 1 : 0;
  const Value test = arguments.Get(before, "");
  List out;
  for (const Value& item : items) {
    const Value subject = attribute ? MemberOf(item, arguments.Get(0, "").String("selectattr").bytes) : item;
    const bool passes = test.is_undefined()
                            ? subject.Truth()
                            : ApplyTest(test.String("select").bytes, subject, Behind(arguments, before + 1));
    if (passes == wanted) out.push_back(item);
  }
  return Value::Of(std::move(out));
}

Value Sum(const List& items, const Arguments& arguments) {
  const Value attribute = arguments.Get(0, "attribute");
  double sum = 0;
  bool whole = true;
  for (const Value& item : items) {
    const Value number =
        attribute.is_undefined() || attribute.is_none() ? item : MemberOf(item, attribute.String("sum").bytes);
    sum += number.Number();
    whole = whole && !number.is_float();
  }
  return whole ? Value::Of(static_cast<int64_t>(sum)) : Value::Of(sum);
}

// ----- numbers ----------------------------------------------------------------------------------------------------------

Value Round(const Value& value, const Arguments& arguments) {
  const Value precision = arguments.Get(0, "precision"), method = arguments.Get(1, "method");
  const double scale = std::pow(10.0, precision.is_undefined() ? 0.0 : precision.Number());
  const std::string how = method.is_undefined() ? "common" : method.String("round").bytes;
  const double scaled = value.Number() * scale;
  return Value::Of((how == "ceil"    ? std::ceil(scaled)
                    : how == "floor" ? std::floor(scaled)
                                     : std::nearbyint(scaled)) /
                   scale);
}

// Of a number, or of a string that is one; `otherwise` if it is none.
Value ToNumber(const Value& value, const Value& otherwise, bool whole) {
  const Value none = !otherwise.is_undefined() ? otherwise : whole ? Value::Of(int64_t{0}) : Value::Of(0.0);
  double number = 0;
  if (value.is_number()) {
    if (whole && !value.is_float()) return Value::Of(value.Integer());
    number = value.Number();
  } else if (const Text* text = value.text()) {
    char* end = nullptr;
    const std::string trimmed = Strip(*text, Value(), true, true).text()->bytes;
    number = std::strtod(trimmed.c_str(), &end);
    if (trimmed.empty() || *end != '\0') return none;
  } else {
    return none;
  }
  if (!whole) return Value::Of(number);
  return std::abs(number) < 9e18 ? Value::Of(static_cast<int64_t>(number)) : none;
}

Value Absolute(const Value& value) {
  return value.is_float() ? Value::Of(std::abs(value.Number()))
                          : Value::Of(value.Integer() < 0 ? -value.Integer() : value.Integer());
}

// ----- the tables -------------------------------------------------------------------------------------------------------

using Filter = Value (*)(const Value& subject, const Arguments& arguments);

Value Default(const Value& subject, const Arguments& a) {
  const bool also_false = a.Get(1, "boolean").Truth();
  if (!subject.is_undefined() && (!also_false || subject.Truth())) return subject;
  const Value otherwise = a.Get(0, "default_value");
  return otherwise.is_undefined() ? Value::Of("") : otherwise;
}

Value ReplaceIn(const Value& subject, const Arguments& a) {
  const Value count = a.Get(2, "count");
  return Replace(subject.Str(), a.Get(0, "old").Str(), a.Get(1, "new").Str(),
                 count.is_undefined() || count.is_none() ? -1 : count.Integer());
}

Value Reversed(const Value& subject, const Arguments&) {
  List items = subject.Items();
  std::reverse(items.begin(), items.end());
  return subject.is_string() ? Join(items, Text(), Value()) : Value::Of(std::move(items));
}

Value AsJson(const Value& subject, const Arguments& a) {
  const Value indent = a.Get(SIZE_MAX, "indent").is_undefined() ? a.Get(0, "") : a.Get(SIZE_MAX, "indent");
  const bool none = indent.is_undefined() || indent.is_none() || indent.is_bool();
  return Value::Of(ToJsonText(subject, none ? -1 : std::clamp<int64_t>(indent.Integer(), 0, 16)));
}

Value SortedPairs(const Value& subject, const Arguments&) {
  List pairs = *PairsOf(subject).list();
  std::stable_sort(pairs.begin(), pairs.end(), [](const Value& a, const Value& b) {
    return Less(ToCase(*(*a.list())[0].text(), false), ToCase(*(*b.list())[0].text(), false));
  });
  return Value::Of(std::move(pairs));
}

const std::map<std::string_view, Filter>& Filters() {
  static const std::map<std::string_view, Filter> filters{
      {"abs", [](const Value& s, const Arguments&) { return Absolute(s); }},
      {"capitalize", [](const Value& s, const Arguments&) { return Capitalize(s.Str(), false); }},
      {"count", [](const Value& s, const Arguments&) { return Value::Of(LengthOf(s)); }},
      {"d", Default},
      {"default", Default},
      {"dictsort", SortedPairs},
      {"first",
       [](const Value& s, const Arguments&) {
         const List l = s.Items();
         return l.empty() ? Value() : l.front();
       }},
      {"float", [](const Value& s, const Arguments& a) { return ToNumber(s, a.Get(0, "default"), false); }},
      {"indent",
       [](const Value& s, const Arguments& a) {
         return Indent(s.Str(), a.Get(0, "width"), a.Get(1, "first").Truth(), a.Get(2, "blank").Truth());
       }},
      {"int", [](const Value& s, const Arguments& a) { return ToNumber(s, a.Get(0, "default"), true); }},
      {"items", [](const Value& s, const Arguments&) { return PairsOf(s); }},
      {"join",
       [](const Value& s, const Arguments& a) { return Join(s.Items(), a.Get(0, "d").Str(), a.Get(1, "attribute")); }},
      {"last",
       [](const Value& s, const Arguments&) {
         const List l = s.Items();
         return l.empty() ? Value() : l.back();
       }},
      {"length", [](const Value& s, const Arguments&) { return Value::Of(LengthOf(s)); }},
      {"list", [](const Value& s, const Arguments&) { return Value::Of(s.Items()); }},
      {"lower", [](const Value& s, const Arguments&) { return ToCase(s.Str(), false); }},
      {"map", [](const Value& s, const Arguments& a) { return Map(s.Items(), a); }},
      {"max", [](const Value& s, const Arguments&) { return Extreme(s.Items(), true); }},
      {"min", [](const Value& s, const Arguments&) { return Extreme(s.Items(), false); }},
      {"reject", [](const Value& s, const Arguments& a) { return Select(s.Items(), a, false, false); }},
      {"rejectattr", [](const Value& s, const Arguments& a) { return Select(s.Items(), a, true, false); }},
      {"replace", ReplaceIn},
      {"reverse", Reversed},
      {"round", Round},
      {"safe", [](const Value& s, const Arguments&) { return Value::Of(s.Str()); }},
      {"select", [](const Value& s, const Arguments& a) { return Select(s.Items(), a, false, true); }},
      {"selectattr", [](const Value& s, const Arguments& a) { return Select(s.Items(), a, true, true); }},
      {"sort", [](const Value& s, const Arguments& a) { return Sort(s.Items(), a); }},
      {"string", [](const Value& s, const Arguments&) { return Value::Of(s.Str()); }},
      {"sum", [](const Value& s, const Arguments& a) { return Sum(s.Items(), a); }},
      {"title", [](const Value& s, const Arguments&) { return Capitalize(s.Str(), true); }},
      {"tojson", AsJson},
      {"trim", [](const Value& s, const Arguments& a) { return Strip(s.Str(), a.Get(0, "chars"), true, true); }},
      {"unique", [](const Value& s, const Arguments& a) { return Unique(s.Items(), a); }},
      {"upper", [](const Value& s, const Arguments&) { return ToCase(s.Str(), true); }},
  };
  return filters;
}

using Test = bool (*)(const Value& subject, const Arguments& arguments);

const std::map<std::string_view, Test>& Tests() {
  constexpr Test kEqual = [](const Value& s, const Arguments& a) { return Equal(s, a.Get(0, "")); };
  constexpr Test kLess = [](const Value& s, const Arguments& a) { return Less(s, a.Get(0, "")); };
  constexpr Test kGreater = [](const Value& s, const Arguments& a) { return Less(a.Get(0, ""), s); };
  static const std::map<std::string_view, Test> tests{
      {"boolean", [](const Value& s, const Arguments&) { return s.is_bool(); }},
      {"callable", [](const Value& s, const Arguments&) { return s.function() != nullptr; }},
      {"defined", [](const Value& s, const Arguments&) { return !s.is_undefined(); }},
      {"divisibleby",
       [](const Value& s, const Arguments& a) {
         const int64_t by = a.Get(0, "num").Integer();
         if (by == 0) throw TemplateError("divisibleby 0");
         return by == -1 || s.Integer() % by == 0;
       }},
      {"eq", kEqual},
      {"equalto", kEqual},
      {"even", [](const Value& s, const Arguments&) { return s.Integer() % 2 == 0; }},
      {"false", [](const Value& s, const Arguments&) { return s.is_bool() && !s.Truth(); }},
      {"float", [](const Value& s, const Arguments&) { return s.is_float(); }},
      {"ge", [](const Value& s, const Arguments& a) { return !Less(s, a.Get(0, "")); }},
      {"gt", kGreater},
      {"greaterthan", kGreater},
      {"in", [](const Value& s, const Arguments& a) { return Contains(a.Get(0, ""), s); }},
      {"integer", [](const Value& s, const Arguments&) { return s.is_integer(); }},
      {"iterable", [](const Value& s,
                      const Arguments&) { return s.is_string() || s.is_list() || s.is_dict() || s.is_undefined(); }},
      {"le", [](const Value& s, const Arguments& a) { return !Less(a.Get(0, ""), s); }},
      {"lessthan", kLess},
      {"lt", kLess},
      {"mapping", [](const Value& s, const Arguments&) { return s.is_dict() && s.name_space() == nullptr; }},
      {"ne", [](const Value& s, const Arguments& a) { return !Equal(s, a.Get(0, "")); }},
      {"none", [](const Value& s, const Arguments&) { return s.is_none(); }},
      {"number", [](const Value& s, const Arguments&) { return s.is_number(); }},
      {"odd", [](const Value& s, const Arguments&) { return s.Integer() % 2 != 0; }},
      {"sameas",
       [](const Value& s, const Arguments& a) {
         const Value other = a.Get(0, "other");
         return s.is_bool() == other.is_bool() && Equal(s, other);
       }},
      {"sequence", [](const Value& s,
                      const Arguments&) { return s.is_string() || s.is_list() || s.is_dict() || s.is_undefined(); }},
      {"string", [](const Value& s, const Arguments&) { return s.is_string(); }},
      {"true", [](const Value& s, const Arguments&) { return s.is_bool() && s.Truth(); }},
      {"undefined", [](const Value& s, const Arguments&) { return s.is_undefined(); }},
  };
  return tests;
}

int64_t CountOr(const Value& value, int64_t otherwise) { return value.is_undefined() ? otherwise : value.Integer(); }

// Where a text is in another, in characters; -1 if it is not there.
Value FindText(const Text& text, const std::string& part) {
  const size_t at = text.bytes.find(part);
  if (at == std::string::npos) return Value::Of(int64_t{-1});
  return Value::Of(static_cast<int64_t>(CharacterStarts(std::string_view(text.bytes).substr(0, at)).size()) - 1);
}

Value CountText(const Text& text, const std::string& part) {
  int64_t count = 0;
  if (part.empty()) return Value::Of(LengthOf(Value::Of(text)) + 1);
  for (size_t at = text.bytes.find(part); at != std::string::npos; at = text.bytes.find(part, at + part.size()))
    ++count;
  return Value::Of(count);
}

const std::map<std::string_view, Filter>& TextMethods() {
  static const std::map<std::string_view, Filter> methods{
      {"capitalize", [](const Value& s, const Arguments&) { return Capitalize(*s.text(), false); }},
      {"count",
       [](const Value& s, const Arguments& a) { return CountText(*s.text(), a.Get(0, "").String("count").bytes); }},
      {"endswith",
       [](const Value& s, const Arguments& a) { return Value::Of(StartsOrEnds(*s.text(), a.Get(0, ""), false)); }},
      {"find",
       [](const Value& s, const Arguments& a) { return FindText(*s.text(), a.Get(0, "").String("find").bytes); }},
      {"isdigit",
       [](const Value& s, const Arguments&) {
         return Value::Of(s.Truth() &&
                          std::ranges::all_of(s.text()->bytes, [](unsigned char c) { return std::isdigit(c); }));
       }},
      {"join", [](const Value& s, const Arguments& a) { return Join(a.Get(0, "").Items(), *s.text(), Value()); }},
      {"lower", [](const Value& s, const Arguments&) { return ToCase(*s.text(), false); }},
      {"lstrip", [](const Value& s, const Arguments& a) { return Strip(*s.text(), a.Get(0, ""), true, false); }},
      {"replace", ReplaceIn},
      {"rsplit",
       [](const Value& s, const Arguments& a) {
         return Split(*s.text(), a.Get(0, "sep"), CountOr(a.Get(1, "maxsplit"), -1), true);
       }},
      {"rstrip", [](const Value& s, const Arguments& a) { return Strip(*s.text(), a.Get(0, ""), false, true); }},
      {"split",
       [](const Value& s, const Arguments& a) {
         return Split(*s.text(), a.Get(0, "sep"), CountOr(a.Get(1, "maxsplit"), -1), false);
       }},
      {"startswith",
       [](const Value& s, const Arguments& a) { return Value::Of(StartsOrEnds(*s.text(), a.Get(0, ""), true)); }},
      {"strip", [](const Value& s, const Arguments& a) { return Strip(*s.text(), a.Get(0, ""), true, true); }},
      {"title", [](const Value& s, const Arguments&) { return Capitalize(*s.text(), true); }},
      {"upper", [](const Value& s, const Arguments&) { return ToCase(*s.text(), true); }},
  };
  return methods;
}

const std::map<std::string_view, Filter>& DictMethods() {
  static const std::map<std::string_view, Filter> methods{
      {"get",
       [](const Value& s, const Arguments& a) {
         const Value* found = s.dict()->Find(a.Get(0, "").String("get").bytes);
         if (found != nullptr) return *found;
         const Value otherwise = a.Get(1, "default");
         return otherwise.is_undefined() ? Value::OfNone() : otherwise;
       }},
      {"items", [](const Value& s, const Arguments&) { return PairsOf(s); }},
      {"keys", [](const Value& s, const Arguments&) { return Value::Of(s.Items()); }},
      {"values",
       [](const Value& s, const Arguments&) {
         List values;
         for (const auto& [key, value] : s.dict()->items()) values.push_back(value);
         return Value::Of(std::move(values));
       }},
  };
  return methods;
}

const std::map<std::string_view, Filter>* MethodsOf(const Value& subject) {
  if (subject.is_string()) return &TextMethods();
  if (subject.is_dict() && subject.name_space() == nullptr) return &DictMethods();
  return nullptr;
}

}  // namespace

Value ApplyFilter(std::string_view name, const Value& subject, const Arguments& arguments) {
  const auto found = Filters().find(name);
  if (found == Filters().end()) throw TemplateError(fmt::format("there is no filter '{}'", name));
  return found->second(subject, arguments);
}

bool ApplyTest(std::string_view name, const Value& subject, const Arguments& arguments) {
  const auto found = Tests().find(name);
  if (found == Tests().end()) throw TemplateError(fmt::format("there is no test '{}'", name));
  return found->second(subject, arguments);
}

bool HasFilter(std::string_view name) { return Filters().contains(name); }
bool HasTest(std::string_view name) { return Tests().contains(name); }

bool HasMethod(const Value& subject, std::string_view name) {
  const auto* methods = MethodsOf(subject);
  return methods != nullptr && methods->contains(name);
}

Value CallMethod(const Value& subject, std::string_view name, const Arguments& arguments) {
  if (!HasMethod(subject, name))
    throw TemplateError(fmt::format("{} has no '{}' to be called", subject.TypeName(), name));
  return MethodsOf(subject)->at(name)(subject, arguments);
}

Value MemberOf(const Value& subject, std::string_view name) {
  if (subject.is_undefined()) throw TemplateError(fmt::format("'{}' of what is not defined", name));
  const Dict* dict = subject.dict();
  const Value* found = dict == nullptr ? nullptr : dict->Find(name);
  return found == nullptr ? Value(Undefined{std::string(name)}) : *found;
}

bool Contains(const Value& haystack, const Value& needle) {
  if (const Text* text = haystack.text()) return text->bytes.find(needle.String("in").bytes) != std::string::npos;
  if (const Dict* dict = haystack.dict()) return needle.is_string() && dict->Find(needle.text()->bytes) != nullptr;
  return std::ranges::any_of(haystack.Items(), [&](const Value& item) { return Equal(item, needle); });
}

}  // namespace tensorcache::server::jinja
