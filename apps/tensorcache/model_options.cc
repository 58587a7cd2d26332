#include "apps/tensorcache/model_options.h"

#include <algorithm>
#include <cmath>

#include "core/config.h"
#include "core/text.h"
#include "methods/method.h"
#include "runtime/checkpoint.h"

namespace tensorcache::cli {
namespace {

template <class T>
std::string NamesOf() {
  std::string names;
  for (const auto& [value, name] : EnumNames(T{})) names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  return names;
}

template <class T>
Result<T> ParseName(const char* option, std::string_view text) {
  std::vector<std::string_view> names;
  for (const auto& [value, name] : EnumNames(T{})) {
    if (name == text) return value;
    names.push_back(name);
  }
  return InvalidArgument(fmt::format("{} has no {}{}", option, Quoted(text), DidYouMeanOr(text, names, "it can be")));
}

template <class T>
Result<std::vector<T>> ParseNames(const char* option, std::string_view text) {
  std::vector<T> values;
  while (true) {
    const size_t end = std::min(text.find(','), text.size());
    TC_ASSIGN_OR_RETURN(const T value, ParseName<T>(option, text.substr(0, end)));
    if (std::ranges::find(values, value) != values.end()) {
      return InvalidArgument(fmt::format("{} names '{}' twice", option, NameOf(value)));
    }
    values.push_back(value);
    if (end == text.size()) return values;
    text.remove_prefix(end + 1);
  }
}

bool HasSinks(const CacheConfig& cache) {
  return std::ranges::any_of(
      methods::MethodOf(cache).Arrays(runtime::AnyLayer(cache)),
      [](const methods::StateArray& array) { return array.kind == methods::StateArray::Kind::kSinks; });
}

// A line for each method.
std::string MethodLines() {
  std::string lines;
  for (const auto& [method, name] : EnumNames(CacheMethod{})) {
    lines += fmt::format("\n{:<14} {}", name, methods::FindMethod(method)->summary());
  }
  return lines;
}

// An option that no method looks at is a mistake.
Status CheckUsed(const ModelArguments& arguments, const std::vector<CacheMethod>& methods) {
  const auto all = [&](auto lacks) {
    return std::ranges::all_of(methods, [&](CacheMethod method) { return lacks(CacheConfig{.method = method}); });
  };
  if (arguments.window && all([](const CacheConfig& cache) { return methods::MethodOf(cache).KeepsEverything(); })) {
    return InvalidArgument(fmt::format("--window means nothing to method {}, which keeps every token; leave it out",
                                       NameOf(methods.front())));
  }
  if (arguments.sinks && all([](const CacheConfig& cache) { return !HasSinks(cache); })) {
    const std::string with_sinks = runtime::MethodsThat({}, HasSinks);
    return InvalidArgument(
        fmt::format("--sinks is for method {} alone; leave it out, or add --method {}", with_sinks, with_sinks));
  }
  return OkStatus();
}

}  // namespace

std::string PositionText(const ModelConfig& config) {
  if (config.position_embedding == PositionKind::kLearned) return "learned positions";
  std::string text = fmt::format("rotary base {:g}", config.rope_theta);
  if (config.rope_ntk_factor > 1) text += fmt::format(" (NTK factor {:g})", config.rope_ntk_factor);
  if (config.rope_scaling.rope_type != RopeScalingKind::kNone) {
    text +=
        fmt::format(" ({} scaling, factor {:g})", NameOf(config.rope_scaling.rope_type), config.rope_scaling.factor);
  }
  return text;
}

void AddModelOptions(Options& app, ModelArguments& arguments, bool lists) {
  const std::string several = lists ? "; several, with commas between, are compared" : "";
  app.add_option("--model", arguments.model, "The checkpoint folder")->type_name("DIR")->required();
  app.add_option("--weights", arguments.weights,
                 fmt::format("How weights are kept: {}{}", NamesOf<WeightType>(), several))
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_option("--ring", arguments.ring,
                 fmt::format("How the window's keys and values are kept: {}", NamesOf<RingType>()))
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_option("--threads", arguments.threads, "Threads; 0: one per core")->type_name("N")->capture_default_str();
  app.add_option("--method", arguments.method,
                 fmt::format("Another cache than the model was trained with{}:{}", several, MethodLines()))
      ->type_name("METHOD");
  app.add_option("--window", arguments.window, "Another window, in tokens")->type_name("W");
  app.add_option("--sinks", arguments.sinks,
                 fmt::format("Other sinks, in tokens, for method {}", runtime::MethodsThat({}, HasSinks)))
      ->type_name("S");
}

Result<std::vector<ModelVariant>> ModelVariants(const ModelArguments& arguments) {
  TC_ASSIGN_OR_RETURN(const auto weights, ParseNames<WeightType>("--weights", arguments.weights));
  TC_ASSIGN_OR_RETURN(const RingType ring, ParseName<RingType>("--ring", arguments.ring));
  std::vector<CacheMethod> methods;
  if (arguments.method) {
    TC_ASSIGN_OR_RETURN(methods, ParseNames<CacheMethod>("--method", *arguments.method));
  }
  TC_ASSIGN_OR_RETURN(const ModelConfig config, runtime::ReadModelConfig(arguments.model));
  const bool own_cache = methods.empty() && !arguments.window && !arguments.sinks;
  if (methods.empty()) methods.push_back(config.cache.method);
  TC_RETURN_IF_ERROR(CheckUsed(arguments, methods));

  std::vector<ModelVariant> variants;
  for (const CacheMethod method : methods) {
    for (const WeightType type : weights) {
      ModelVariant variant{.method = method, .trained = config.cache.method, .weights = type};
      variant.options = {.weights = type, .ring = ring, .threads = arguments.threads};
      if (!own_cache) {
        CacheConfig cache = config.cache;
        cache.method = method;
        cache.window = arguments.window.value_or(cache.window);
        cache.sinks = arguments.sinks.value_or(cache.sinks);
        variant.options.cache = cache;
      }
      variants.push_back(variant);
    }
  }
  return variants;
}

Result<ModelVariant> OnlyModelVariant(const ModelArguments& arguments) {
  TC_ASSIGN_OR_RETURN(const std::vector<ModelVariant> variants, ModelVariants(arguments));
  if (variants.size() > 1) return InvalidArgument("--method and --weights take one name each here");
  return variants[0];
}

Result<std::shared_ptr<const Model>> LoadModel(const ModelArguments& arguments) {
  TC_ASSIGN_OR_RETURN(const ModelVariant variant, OnlyModelVariant(arguments));
  return runtime::LoadCheckpoint(arguments.model, variant.options);
}

Result<std::vector<int32_t>> ParseTokenNumbers(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n", kBetween = " \t\r\n,";
  const auto skip_blanks = [&] { text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size())); };
  std::vector<int32_t> tokens;
  skip_blanks();
  for (bool more = !text.empty(); more;) {
    const std::string_view word = text.substr(0, text.find_first_of(kBetween));
    const std::optional<int32_t> token = ParseNumber<int32_t>(word);
    if (!token) {
      return InvalidArgument(fmt::format("{} is not a token number; give numbers with spaces between", Quoted(word)));
    }
    tokens.push_back(*token);
    text.remove_prefix(word.size());
    skip_blanks();
    const bool comma = text.starts_with(',');
    text.remove_prefix(comma ? 1 : 0);
    skip_blanks();
    more = comma || !text.empty();
  }
  return tokens;
}

std::string BytesText(int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = larger;
  }
  const bool whole = value >= 100 || value == std::floor(value);
  return fmt::format("{:.{}f} {}", value, whole ? 0 : 1, unit);
}

}  // namespace tensorcache::cli
