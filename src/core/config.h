// Config structs that read and write JSON. A struct names its fields once:
//
//   struct CacheConfig {
//     int window = 512;
//     WriteRule rule = WriteRule::kOuter;
//     template <class V>
//     void Fields(V& v) {
//       v("window", window, "keys kept exactly");
//       v("rule", rule, "how an evicted pair is written");
//     }
//   };
//   constexpr auto EnumNames(WriteRule) {  // beside the enum
//     return std::to_array<std::pair<WriteRule, std::string_view>>({{WriteRule::kOuter, "outer"}, {WriteRule::kDelta,
//     "delta"}});
//   }
//
// and gets ParseConfig, ReadConfigFile, ApplyOverride, ToJson and ConfigKeys. A field is a bool, an integer, a float or
// double, a std::string, an enum with EnumNames, a struct with Fields, or a std::vector or std::optional of one of
// these. Neither the struct nor the enum needs this header.
//
// Names that a struct had in earlier versions go on being read, though never written, if it lists them:
//
//   template <class V>
//   void OldKeys(V& v) {
//     v("window_size", window);
//   }
//
// A choice that was true or false there is listed as a FlagFor (tensorcache/choices.h).
//
// And a struct may have a field that stands for the whole: with `void Short(V& v) { v(rule); }`, "write": "delta" is read as
// "write": {"rule": "delta"}.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/json.h"
#include "tensorcache/choices.h"
#include "tensorcache/status.h"

namespace tensorcache {

// Sets the fields whose keys are in `json`; the others keep their value. An unknown key, a value of another type or a
// number out of range gives kInvalidArgument naming the key's path, and leaves *config as it was.
template <class T>
Status ParseConfig(const Json& json, T* config);

// ParseConfig of a file; errors start with its path.
template <class T>
Status ReadConfigFile(const std::string& path, T* config);

// Applies "cache.window=128", as given to `--set`. The value is JSON; strings and enums need no quotes.
template <class T>
Status ApplyOverride(std::string_view assignment, T* config);

// Every field, in the order of Fields. ParseConfig of the result gives the same config.
template <class T>
OrderedJson ToJson(T config);

// The same as text without spaces, in the keys of OldKeys where a struct has them: what an earlier version wrote. Makes no Json,
// whose destructor ends the program if there is no memory.
template <class T>
std::string ToOldJsonText(T config);

// The path of the key that "a.b=c" sets, in today's names: an old key's stands for the new one's. kInvalidArgument if there is
// no such key.
template <class T>
Result<std::string> KeyOf(std::string_view assignment, T config);

// The name of an enum's value, as in configs.
template <class T>
std::string_view NameOf(T value) {
  for (const auto& [named, name] : EnumNames(value)) {
    if (named == value) return name;
  }
  internal::CheckFailed("EnumNames", 0, "an enum value without a name");
}

// Refuses a choice that is none of its names: a number that was cast, which no compiler looks at.
template <class T>
Status CheckNames(T config);

struct ConfigKey {
  std::string path;   // "cache.window"
  std::string type;   // "an integer"
  std::string value;  // as JSON
  std::string help;
};

// Every key of every nested struct, with its current value: the text of a help page.
template <class T>
std::vector<ConfigKey> ConfigKeys(T config);

namespace config_internal {

struct AnyVisitor {
  template <class T>
  void operator()(std::string_view, T&, std::string_view = "") {}
  template <class T>
  void operator()(T&) {}
};

template <class T>
concept Struct = requires(T value, AnyVisitor v) { value.Fields(v); };
template <class T>
concept HasOldKeys = requires(T value, AnyVisitor v) { value.OldKeys(v); };
template <class T>
concept HasShort = requires(T value, AnyVisitor v) { value.Short(v); };
template <class T>
concept Enum = std::is_enum_v<T> && requires(T value) { EnumNames(value); };
template <class T>
concept Integer = std::integral<T> && !std::same_as<T, bool>;

template <class T>
constexpr bool kIsVector = false;
template <class T>
constexpr bool kIsVector<std::vector<T>> = true;
template <class T>
constexpr bool kIsOptional = false;
template <class T>
constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
constexpr bool kIsFlag = false;
template <class T>
constexpr bool kIsFlag<FlagFor<T>> = true;

// The parts that do not depend on the field's type (config.cc). `path` is the key's path, "" for the whole config.
std::string OneOf(std::span<const std::string_view> names);  // "one of a, b, c"
Status TypeError(const std::string& path, std::string_view expected, const Json& found);
Status ReadInteger(const Json& json, const std::string& path, int64_t min, uint64_t max, uint64_t* bits);
Status ReadNumber(const Json& json, const std::string& path, double max, double* value);
Status UnknownNumber(const std::string& path, int64_t number, std::span<const std::string_view> names);
Status ReadName(const Json& json, const std::string& path, std::span<const std::string_view> names, size_t* index);
Status UnknownKey(const std::string& path, std::string_view key, std::span<const std::string_view> known);
const Json* FindMember(const Json& object, std::string_view key);
bool Contains(std::span<const std::string_view> keys, std::string_view key);
std::string Join(const std::string& path, std::string_view key);
// The double that prints as `value` does: 0.1f becomes 0.1, not 0.10000000149011612.
double ShortestDouble(float value);
// One line; bytes that are not UTF-8 are replaced.
std::string ToText(const OrderedJson& json);
// Splits "a.b=c" into key path and value.
Status SplitAssignment(std::string_view assignment, std::vector<std::string_view>* keys, std::string_view* value);
// The text as JSON. What is not JSON, and for a string field what is not in quotes, stands for itself.
Json OverrideValue(std::string_view text, bool is_string_field);

template <Enum T>
std::vector<std::string_view> NamesOf() {
  std::vector<std::string_view> names;
  for (const auto& [value, name] : EnumNames(T{})) names.push_back(name);
  return names;
}

// The type in words, for messages and help.
template <class T>
std::string TypeName() {
  if constexpr (std::same_as<T, bool> || kIsFlag<T>) {
    return "true or false";
  } else if constexpr (Integer<T>) {
    return "an integer";
  } else if constexpr (std::floating_point<T>) {
    return "a number";
  } else if constexpr (std::same_as<T, std::string>) {
    return "a string";
  } else if constexpr (Enum<T>) {
    return OneOf(NamesOf<T>());
  } else if constexpr (kIsVector<T>) {
    return "an array";
  } else if constexpr (kIsOptional<T>) {
    return TypeName<typename T::value_type>() + " or null";
  } else {
    static_assert(Struct<T>, "not a type that a config field can have");
    return "an object";
  }
}

template <Struct T>
Status ReadStruct(const Json& json, const std::string& path, T* out);

template <class T>
Status Read(const Json& json, const std::string& path, T* out) {
  if constexpr (std::same_as<T, bool>) {
    if (!json.is_boolean()) return TypeError(path, TypeName<T>(), json);
    *out = json.get<bool>();
  } else if constexpr (kIsFlag<T>) {
    if (!json.is_boolean()) return TypeError(path, TypeName<T>(), json);
    out->field = json.get<bool>() ? out->when_true : out->when_false;
  } else if constexpr (Integer<T>) {
    uint64_t bits = 0;
    using Limits = std::numeric_limits<T>;
    TC_RETURN_IF_ERROR(ReadInteger(json, path, static_cast<int64_t>(Limits::min()), Limits::max(), &bits));
    *out = static_cast<T>(bits);
  } else if constexpr (std::floating_point<T>) {
    double value = 0;
    TC_RETURN_IF_ERROR(ReadNumber(json, path, std::numeric_limits<T>::max(), &value));
    *out = static_cast<T>(value);
  } else if constexpr (std::same_as<T, std::string>) {
    if (!json.is_string()) return TypeError(path, TypeName<T>(), json);
    *out = json.get_ref<const std::string&>();
  } else if constexpr (Enum<T>) {
    size_t index = 0;
    TC_RETURN_IF_ERROR(ReadName(json, path, NamesOf<T>(), &index));
    *out = EnumNames(T{})[index].first;
  } else if constexpr (kIsVector<T>) {
    if (!json.is_array()) return TypeError(path, TypeName<T>(), json);
    T values;
    for (size_t i = 0; i < json.size(); ++i) {
      typename T::value_type element{};
      TC_RETURN_IF_ERROR(Read(json[i], path + "[" + std::to_string(i) + "]", &element));
      values.push_back(std::move(element));
    }
    *out = std::move(values);
  } else if constexpr (kIsOptional<T>) {
    if (json.is_null()) {
      out->reset();
    } else {
      typename T::value_type value = out->value_or(typename T::value_type{});
      TC_RETURN_IF_ERROR(Read(json, path, &value));
      *out = std::move(value);
    }
  } else {
    return ReadStruct(json, path, out);
  }
  return OkStatus();
}

class StructReader {
 public:
  StructReader(const Json& json, const std::string& path) : json_(json), path_(path) {}

  template <class T>
  void operator()(std::string_view key, T& field, std::string_view /*help*/) {
    known_.push_back(key);
    Set(key, field);
  }
  // An old key, after all of today's: what is a key of today's is not read again.
  template <class T>
  void operator()(std::string_view key, T& field) {
    if (Contains(known_, key)) return;
    old_.push_back(key);
    Set(key, field);
  }

  // The first error, in the order of Fields; then the first unknown key.
  Status Finish() const;

 private:
  template <class T>
  void Set(std::string_view key, T& field) {
    if (!status_.ok()) return;
    if (const Json* value = FindMember(json_, key)) status_ = Read(*value, Join(path_, key), &field);
  }

  const Json& json_;
  const std::string& path_;
  std::vector<std::string_view> known_, old_;
  Status status_;
};

// Reads the one field that stands for its struct.
struct ShortReader {
  template <class T>
  void operator()(T& field) {
    status = Read(json, path, &field);
  }
  const Json& json;
  const std::string& path;
  Status status;
};

template <Struct T>
Status ReadStruct(const Json& json, const std::string& path, T* out) {
  if constexpr (HasShort<T>) {
    if (!json.is_object()) {
      ShortReader reader{json, path, {}};
      out->Short(reader);
      return reader.status;
    }
  }
  if (!json.is_object()) return TypeError(path, TypeName<T>(), json);
  StructReader reader(json, path);
  out->Fields(reader);
  if constexpr (HasOldKeys<T>) out->OldKeys(reader);
  return reader.Finish();
}

// Follows `keys` into a struct and calls leaf(path, field) for the field that the last of them names.
template <class Leaf>
class KeyFollower {
 public:
  KeyFollower(std::span<const std::string_view> keys, std::string path, Leaf& leaf)
      : keys_(keys), path_(std::move(path)), leaf_(leaf) {}

  template <Struct T>
  Status Follow(T& config) {
    config.Fields(*this);
    if constexpr (HasOldKeys<T>) {
      if (!found_) config.OldKeys(*this);
    }
    return found_ ? status_ : UnknownKey(path_, keys_.front(), known_);
  }

  template <class T>
  void operator()(std::string_view key, T& field, std::string_view /*help*/) {
    known_.push_back(key);
    (*this)(key, field);
  }
  template <class T>
  void operator()(std::string_view key, T& field) {
    if (found_ || key != keys_.front()) return;
    found_ = true;
    status_ = Enter(Join(path_, key), field);
  }

 private:
  template <class T>
  Status Enter(const std::string& path, T& field) {
    if (keys_.size() == 1) return leaf_(path, field);
    if constexpr (kIsOptional<T>) {
      auto value = field.value_or(typename T::value_type{});
      TC_RETURN_IF_ERROR(Enter(path, value));
      field = std::move(value);
      return OkStatus();
    } else if constexpr (Struct<T>) {
      return KeyFollower(keys_.subspan(1), path, leaf_).Follow(field);
    } else {
      return UnknownKey(path, keys_[1], {});
    }
  }

  std::span<const std::string_view> keys_;
  std::string path_;
  Leaf& leaf_;
  std::vector<std::string_view> known_;
  bool found_ = false;
  Status status_;
};

// Sets a field to a value that was given as text.
struct FieldSetter {
  template <class T>
  Status operator()(const std::string& path, T& field) {
    if constexpr (kIsOptional<T>) {
      if (text == "null") {
        field.reset();
        return OkStatus();
      }
      auto value = field.value_or(typename T::value_type{});
      TC_RETURN_IF_ERROR((*this)(path, value));
      field = std::move(value);
      return OkStatus();
    } else {
      return Read(OverrideValue(text, std::same_as<T, std::string> || Enum<T>), path, &field);
    }
  }
  std::string_view text;
};

// Notes where a field is; of a struct, the field that stands for it, or none.
struct FieldFinder {
  template <class T>
  Status operator()(const std::string&, T& field) {
    if constexpr (HasShort<T>) {
      if (!text.starts_with('{')) field.Short(*this);
    } else if constexpr (kIsFlag<T>) {
      address = &field.field;
    } else if constexpr (!Struct<T>) {
      address = &field;
    }
    return OkStatus();
  }
  template <class T>
  void operator()(T& field) {
    address = &field;
  }
  std::string_view text;
  const void* address = nullptr;
};

// The path of the field at an address.
struct PathFinder {
  template <class T>
  void operator()(std::string_view key, T& field, std::string_view /*help*/) {
    if constexpr (Struct<T>) {
      PathFinder inner{Join(path, key), wanted, {}};
      field.Fields(inner);
      if (!inner.found.empty()) found = inner.found;
    } else if (&field == wanted) {
      found = Join(path, key);
    }
  }
  std::string path;
  const void* wanted;
  std::string found;
};

template <class T>
OrderedJson Write(T& value);

struct StructWriter {
  template <class T>
  void operator()(std::string_view key, T& field, std::string_view /*help*/) {
    json[std::string(key)] = Write(field);
  }
  OrderedJson json = OrderedJson::object();
};

template <class T>
OrderedJson Write(T& value) {
  if constexpr (std::same_as<T, float>) {
    return ShortestDouble(value);
  } else if constexpr (kIsFlag<T>) {
    return value.field == value.when_true;
  } else if constexpr (Enum<T>) {
    return std::string(NameOf(value));
  } else if constexpr (kIsVector<T>) {
    OrderedJson array = OrderedJson::array();
    for (auto&& element : value) array.push_back(Write(element));
    return array;
  } else if constexpr (kIsOptional<T>) {
    return value.has_value() ? Write(*value) : OrderedJson(nullptr);
  } else if constexpr (Struct<T>) {
    StructWriter writer;
    value.Fields(writer);
    return std::move(writer.json);
  } else {
    return value;
  }
}

// Looks at every enum, also those inside other structs.
struct NameChecker {
  std::string path = "";
  Status status = OkStatus();

  template <class T>
  void operator()(std::string_view key, T& field, std::string_view /*help*/) {
    if (!status.ok()) return;
    const std::string at = Join(path, key);
    if constexpr (Struct<T>) {
      NameChecker inner{.path = at};
      field.Fields(inner);
      status = inner.status;
    } else if constexpr (Enum<T>) {
      for (const auto& [named, name] : EnumNames(field)) {
        if (named == field) return;
      }
      status = UnknownNumber(at, static_cast<int64_t>(field), NamesOf<T>());
    }
  }
};

// The members of an object, as text.
struct OldTextWriter {
  template <class T>
  void operator()(std::string_view key, T& field, std::string_view /*help*/ = "") {
    text += (text.empty() ? "\"" : ",\"") + std::string(key) + "\":" + Text(field);
  }
  template <class T>
  static std::string Text(T& value) {
    if constexpr (Struct<T>) {
      OldTextWriter writer;
      if constexpr (HasOldKeys<T>) {
        value.OldKeys(writer);
      } else {
        value.Fields(writer);
      }
      return "{" + writer.text + "}";
    } else {
      return ToText(Write(value));
    }
  }
  std::string text;
};

struct KeyLister {
  template <class T>
  void operator()(std::string_view key, T& field, std::string_view help) {
    std::string path = Join(prefix, key);
    if constexpr (Struct<T>) {
      KeyLister inner{std::move(path), keys};
      field.Fields(inner);
    } else {
      keys->push_back({std::move(path), TypeName<T>(), ToText(Write(field)), std::string(help)});
    }
  }
  std::string prefix;
  std::vector<ConfigKey>* keys;
};

}  // namespace config_internal

template <class T>
Status ParseConfig(const Json& json, T* config) {
  T parsed = *config;
  TC_RETURN_IF_ERROR(config_internal::ReadStruct(json, "", &parsed));
  *config = std::move(parsed);
  return OkStatus();
}

template <class T>
Status ReadConfigFile(const std::string& path, T* config) {
  TC_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  const Status status = ParseConfig(json, config);
  return status.ok() ? status : Status(status.code(), path + ": " + status.message());
}

template <class T>
Status ApplyOverride(std::string_view assignment, T* config) {
  std::vector<std::string_view> keys;
  std::string_view value;
  TC_RETURN_IF_ERROR(config_internal::SplitAssignment(assignment, &keys, &value));
  T changed = *config;
  config_internal::FieldSetter set{value};
  TC_RETURN_IF_ERROR(config_internal::KeyFollower(keys, "", set).Follow(changed));
  *config = std::move(changed);
  return OkStatus();
}

template <class T>
OrderedJson ToJson(T config) {
  return config_internal::Write(config);
}

template <class T>
Status CheckNames(T config) {
  config_internal::NameChecker checker;
  config.Fields(checker);
  return checker.status;
}

template <class T>
std::string ToOldJsonText(T config) {
  return config_internal::OldTextWriter::Text(config);
}

template <class T>
Result<std::string> KeyOf(std::string_view assignment, T config) {
  std::vector<std::string_view> keys;
  std::string_view value;
  TC_RETURN_IF_ERROR(config_internal::SplitAssignment(assignment, &keys, &value));
  config_internal::FieldFinder finder{value};
  TC_RETURN_IF_ERROR(config_internal::KeyFollower(keys, "", finder).Follow(config));
  config_internal::PathFinder path{"", finder.address, {}};
  if (finder.address != nullptr) config.Fields(path);
  return path.found.empty() ? std::string(assignment.substr(0, assignment.find('='))) : path.found;
}

template <class T>
std::vector<ConfigKey> ConfigKeys(T config) {
  std::vector<ConfigKey> keys;
  config_internal::KeyLister lister{"", &keys};
  config.Fields(lister);
  return keys;
}

}  // namespace tensorcache
