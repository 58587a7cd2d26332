// tensorcache eval: how well a model predicts a text, by length of the context; methods and weights side by side.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/tensorcache/build_info.h"
#include "apps/tensorcache/command.h"
#include "apps/tensorcache/model_options.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "apps/tensorcache/terminal.h"
#include "core/config.h"
#include "core/statistics.h"
#include "core/text.h"
#include "data/corpus.h"
#include "methods/method.h"
#include "runtime/checkpoint.h"
#include "runtime/evaluate.h"

namespace tensorcache::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFirstBin = 128;

struct EvalArguments {
  ModelArguments model;
  std::vector<std::string> others;
  std::string only_after;
  std::string tokenizer;
  std::string data;
  double last = 1;
  bool begin = false;
  EvaluationOptions evaluation = {.contexts = {1024}};
  std::string json;
};

// A model, its name in the table, and what it scored.
struct Variant {
  std::string folder;
  std::string name;
  CacheMethod method;
  CacheMethod trained;
  WeightType weights;
  std::shared_ptr<const Model> model;
  std::vector<ContextScore> scores = {};  // one a context
};

void AddOptions(Options& app, EvalArguments& arguments) {
  AddModelOptions(app, arguments.model, /*lists=*/true);
  app.add_option("--tokenizer", arguments.tokenizer, "Another tokenizer than that in the model's folder")
      ->type_name("T");
  app.add_option("--data", arguments.data, "A UTF-8 text file, or a folder of such files")
      ->type_name("PATH")
      ->required();
  app.add_option("--last", arguments.last,
                 "Only the last part of the data: 0.1 is the validation part of a training run with valid_fraction 0.1")
      ->type_name("F")
      ->capture_default_str();
  app.add_flag("--begin", arguments.begin,
               "Each file of the data starts with the tokenizer's begin-of-text token, as some models want it");
  app.add_option("--context", arguments.evaluation.contexts, "Context lengths in tokens, with commas between")
      ->type_name("L,L,...")
      ->capture_default_str();
  app.add_option("--starts,--seeds", arguments.evaluation.starts, "Start positions for each length")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--seed", arguments.evaluation.seed, "Another seed draws other start positions")
      ->capture_default_str();
  app.add_option("--bins", arguments.evaluation.bins,
                 "Upper edges of the bins by tokens read, with commas between; default: powers of two from 128")
      ->type_name("N,N,...");
  app.add_option("--compare", arguments.others,
                 "Another checkpoint with the same tokenizer, in its own cache, on the same starts; may be repeated")
      ->type_name("DIR")
      ->allow_extra_args(false);
  app.add_option("--only-after", arguments.only_after,
                 "Count only the tokens that stand right after TEXT: answers to a question that comes again and again")
      ->type_name("TEXT");
  app.add_flag_callback(
      "--no-ntk", [&] { arguments.evaluation.scale_full = false; },
      "Leave the rotary embedding of method full as it is beyond the trained length");
  app.add_option("--json", arguments.json, "Also write all figures, of each start, to FILE")->type_name("FILE");
}

// `label` stands before the method, if it is not empty.
Result<std::vector<Variant>> VariantsOf(const ModelArguments& arguments, const std::string& label) {
  TC_ASSIGN_OR_RETURN(const std::vector<ModelVariant> wanted, ModelVariants(arguments));
  std::vector<Variant> variants;
  for (const ModelVariant& variant : wanted) {
    TC_ASSIGN_OR_RETURN(auto model, runtime::LoadCheckpoint(arguments.model, variant.options));
    const bool several_weights = arguments.weights.find(',') != std::string::npos;
    variants.push_back({.folder = arguments.model,
                        .name = fmt::format("{}{}{}{}", label.empty() ? "" : label + " ", NameOf(variant.method),
                                            several_weights ? " " : "", several_weights ? NameOf(variant.weights) : ""),
                        .method = variant.method,
                        .trained = variant.trained,
                        .weights = variant.weights,
                        .model = std::move(model)});
  }
  return variants;
}

// What the folders are called, for as long as that tells them apart. A single one needs no name.
std::vector<std::string> Labels(const std::vector<std::string>& folders) {
  if (folders.size() == 1) return {""};
  std::vector<std::string> labels;
  for (const std::string& folder : folders) {
    const fs::path path = fs::path(folder).lexically_normal();
    labels.push_back((path.has_filename() ? path : path.parent_path()).filename().string());
  }
  const std::set<std::string> different(labels.begin(), labels.end());
  return different.size() == labels.size() ? labels : folders;
}

// Loads everything before hours of work begin, so that what is impossible shows at once.
Result<std::vector<Variant>> LoadVariants(const EvalArguments& arguments) {
  std::vector<std::string> folders = {arguments.model.model};
  folders.insert(folders.end(), arguments.others.begin(), arguments.others.end());
  const std::vector<std::string> labels = Labels(folders);
  TC_ASSIGN_OR_RETURN(std::vector<Variant> variants, VariantsOf(arguments.model, labels[0]));
  for (size_t i = 1; i < folders.size(); ++i) {
    ModelArguments other = arguments.model;
    other.model = folders[i];
    other.method.reset();
    other.window.reset();
    other.sinks.reset();
    TC_ASSIGN_OR_RETURN(std::vector<Variant> more, VariantsOf(other, labels[i]));
    std::ranges::move(more, std::back_inserter(variants));
  }
  return variants;
}

// Figures of models that cut a text into different tokens cannot be compared.
Status CheckSameTokenizer(const EvalArguments& arguments, const Tokenizer& tokenizer,
                          const std::vector<Variant>& variants) {
  for (const Variant& variant : variants) {
    if (variant.folder == arguments.model.model || !arguments.tokenizer.empty()) continue;
    TC_ASSIGN_OR_RETURN(const auto other, runtime::LoadTokenizerOf(*variant.model, variant.folder, ""));
    if (other != nullptr && other->fingerprint() == tokenizer.fingerprint()) continue;
    return InvalidArgument(fmt::format("{} has another tokenizer than {}; their figures cannot be compared",
                                       Quoted(variant.folder), Quoted(arguments.model.model)));
  }
  return OkStatus();
}

// Whether tokens end with a text, perhaps with a blank after it: in some vocabularies blanks end a word, in others they begin
// the next.
std::function<bool(std::span<const int32_t>)> EndsWith(const std::string& text, const Tokenizer& tokenizer) {
  return [&tokenizer, text](std::span<const int32_t> tokens) {
    std::string decoded;
    return tokenizer.Decode(tokens, &decoded).ok() && (decoded.ends_with(text) || decoded.ends_with(text + " "));
  };
}

Result<data::TokenRange> OpenText(const EvalArguments& arguments, const Tokenizer& tokenizer) {
  if (!(arguments.last > 0 && arguments.last <= 1)) {
    return InvalidArgument(fmt::format("--last is {}; give more than 0 and at most 1", arguments.last));
  }
  const data::TextDataConfig config = {.path = arguments.data,
                                       .valid_fraction = arguments.last < 1 ? arguments.last : 0,
                                       .tokenizer = tokenizer.kind(),
                                       .begin = arguments.begin};
  std::optional<Progress> progress;
  TC_ASSIGN_OR_RETURN(const data::Corpus corpus, data::OpenCorpus(config, tokenizer, [&](int64_t done, int64_t total) {
                        if (!progress) progress.emplace(static_cast<int>(total / 1024 + 1));
                        progress->Show(static_cast<int>(done / 1024), "kB of text read");
                      }));
  return arguments.last < 1 ? corpus.valid : corpus.train;
}

EvaluationText TextOf(const data::TokenRange& range, const Tokenizer& tokenizer) {
  return {.tokens = range.size(),
          .read = [&](int64_t first, std::span<int32_t> out) { return range.Read(first, out); },
          .count_bytes = [&](int32_t previous, std::span<const int32_t> tokens) -> Result<int64_t> {
            std::string text;
            TC_RETURN_IF_ERROR(tokenizer.DecodeAfter(previous, tokens, &text));
            return static_cast<int64_t>(text.size());
          }};
}

Status EvaluateAll(const EvaluationText& text, EvaluationOptions options, std::vector<Variant>& variants) {
  int64_t total = 0, done = 0;
  for (const int64_t context : options.contexts) {
    total += (context + 1) * options.starts * static_cast<int64_t>(variants.size());
  }
  Progress progress(static_cast<int>(total / 1000 + 1));
  for (Variant& variant : variants) {
    options.progress = [&](int64_t context, int64_t tokens) {
      done += tokens;
      progress.Show(static_cast<int>(done / 1000), fmt::format("thousand tokens, {} at {}", variant.name, context));
    };
    auto scores = Evaluate(variant.model, text, options);
    if (!scores.ok()) {
      return Status(scores.status().code(), fmt::format("{}: {}", variant.name, scores.status().message()));
    }
    variant.scores = std::move(scores).value();
  }
  return OkStatus();
}

std::string WithError(double value, double error, bool sign = false) {
  const char* between = Utf8Terminal() ? "±" : "+-";
  return sign ? fmt::format("{:+.4f} {} {:.4f}", value, between, error)
              : fmt::format("{:.4f} {} {:.4f}", value, between, error);
}

size_t NameWidth(const std::vector<Variant>& variants) {
  size_t width = 6;
  for (const Variant& variant : variants) width = std::max(width, variant.name.size());
  return width;
}

std::string MeanText(const std::vector<double>& values) {
  return values.empty() ? "-" : fmt::format("{:.4f}", SpreadOf(values).mean);
}

void PrintContexts(const std::vector<Variant>& variants) {
  constexpr size_t kCell = 18;
  const size_t width = NameWidth(variants);
  const std::string paired = variants.size() > 1 ? fmt::format("NLL - {}", variants[0].name) : "";
  const size_t paired_width = std::max(kCell + 4, paired.size() + 2);
  Print("{:>8}  {:<{}}{}{:>12}{:>11}{:>11}{:>12}{}\n", "context", "method", width, PadLeft("NLL", kCell), "perplexity",
        "bits/byte", "last half", "state", paired.empty() ? "" : PadLeft(paired, paired_width));
  for (size_t i = 0; i < variants[0].scores.size(); ++i) {
    for (const Variant& variant : variants) {
      const ContextScore& score = variant.scores[i];
      const Spread nll = SpreadOf(score.Nll());
      const double bits = SpreadOf(score.BitsPerByte()).mean;  // 0: bytes were not counted
      Print("{:>8}  {:<{}}{}{:>12.2f}{:>11}{:>11}{:>12}", score.context, variant.name, width,
            PadLeft(WithError(nll.mean, nll.std), kCell), std::exp(nll.mean),
            bits > 0 ? fmt::format("{:.4f}", bits) : "-", MeanText(score.LastHalf()), BytesText(score.state_bytes));
      if (&variant != &variants[0]) {
        const Spread difference = PairedDifference(variants[0].scores[i].Nll(), score.Nll());
        PrintText(PadLeft(WithError(difference.mean, difference.standard_error, /*sign=*/true), paired_width));
      }
      Print("\n");
    }
  }
}

// Of the longest context.
void PrintBins(const std::vector<Variant>& variants) {
  const auto longest = std::ranges::max_element(variants[0].scores, {}, &ContextScore::context);
  const auto which = static_cast<size_t>(longest - variants[0].scores.begin());
  if (longest->bins.size() < 2) return;
  const size_t width = NameWidth(variants);
  Print("\nNLL by the number of tokens read, at context {}\n{:<{}}", longest->context, "up to", width);
  for (const int64_t edge : longest->bins) Print("{:>9}", edge);
  Print("\n");
  for (const Variant& variant : variants) {
    Print("{:<{}}", variant.name, width);
    for (size_t bin = 0; bin < longest->bins.size(); ++bin) {
      Print("{:>9}", MeanText(variant.scores[which].Bin(bin)));
    }
    Print("\n");
  }
}

// What a reader of the table must know so as not to take its figures for those of the methods.
void PrintNotes(const std::vector<Variant>& variants) {
  const auto find = [&](auto is) { return std::ranges::find_if(variants, is); };
  const auto foreign = find([](const Variant& variant) { return variant.method != variant.trained; });
  if (foreign != variants.end()) {
    Print(
        "\nThe model was trained with method {}. The rows of others show its weights in a cache they were not trained "
        "for,\nnot what a model trained with that method reaches.\n",
        NameOf(foreign->trained));
  }
  const auto too_long = find([](const Variant& variant) {
    const auto longest = std::ranges::max(variant.scores, {}, &ContextScore::context).context;
    const ModelConfig& config = variant.model->config();
    return methods::MethodOf(config.cache).KeepsEverything() && longest > config.max_position_embeddings;
  });
  if (too_long == variants.end()) return;
  const double factor = std::ranges::max(too_long->scores, {}, &ContextScore::context).rope_ntk_factor;
  Print("\nMethod {} reads more than the {} tokens the model was trained on, {}.\n", NameOf(too_long->method),
        too_long->model->config().max_position_embeddings,
        factor > 1
            ? fmt::format("with its rotary embedding scaled for the length (NTK-aware, up to {:g} times)", factor)
            : "with its rotary embedding as it is");
}

OrderedJson RowJson(const Variant& variant, const ContextScore& score, const ContextScore& first) {
  const Spread nll = SpreadOf(score.Nll()), difference = PairedDifference(first.Nll(), score.Nll());
  OrderedJson row = {{"model", variant.folder},
                     {"method", NameOf(variant.method)},
                     {"weights", NameOf(variant.weights)},
                     {"context", score.context},
                     {"nll", nll.mean},
                     {"nll_std", nll.std},
                     {"perplexity", std::exp(nll.mean)},
                     {"bits_per_byte", SpreadOf(score.BitsPerByte()).mean},
                     {"last_half", score.LastHalf().empty() ? Json() : Json(SpreadOf(score.LastHalf()).mean)},
                     {"state_bytes", score.state_bytes},
                     {"rope_ntk_factor", score.rope_ntk_factor},
                     {"difference", difference.mean},
                     {"difference_standard_error", difference.standard_error},
                     {"bins", score.bins},
                     {"starts", OrderedJson::array()}};
  for (const StreamScore& stream : score.streams) {
    row["starts"].push_back({{"start", stream.start},
                             {"counted", stream.counted},
                             {"nll", stream.nll},
                             {"last_half", stream.last_half},
                             {"bytes", stream.bytes},
                             {"bins", stream.bins}});
  }
  return row;
}

std::string ResultJson(const EvalArguments& arguments, int64_t tokens, const std::vector<Variant>& variants) {
  OrderedJson json = BenchHead("eval");
  json["model"] = arguments.model.model;
  json["data"] = arguments.data;
  json["last"] = arguments.last;
  json["begin"] = arguments.begin;
  if (!arguments.only_after.empty()) json["only_after"] = arguments.only_after;
  json["trained_method"] = NameOf(variants[0].trained);
  json["tokens"] = tokens;
  json["seed"] = arguments.evaluation.seed;
  json["rows"] = OrderedJson::array();
  for (size_t i = 0; i < variants[0].scores.size(); ++i) {
    for (const Variant& variant : variants) {
      json["rows"].push_back(RowJson(variant, variant.scores[i], variants[0].scores[i]));
    }
  }
  return JsonText(json);
}

}  // namespace

Status RunEval(const CommandLine& line) {
  EvalArguments arguments;
  Options app("Measures how well a model predicts a text that streams by: negative log-likelihood, nats per token.");
  AddOptions(app, arguments);
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  TC_RETURN_IF_ERROR(CheckOutputPath(arguments.json));
  EvaluationOptions& options = arguments.evaluation;
  TC_ASSIGN_OR_RETURN(std::vector<Variant> variants, LoadVariants(arguments));
  TC_ASSIGN_OR_RETURN(const auto tokenizer,
                      runtime::LoadTokenizerOf(*variants[0].model, arguments.model.model, arguments.tokenizer));
  if (tokenizer == nullptr) {
    return InvalidArgument(fmt::format("{} has no tokenizer, so there is no text for it; name one with --tokenizer",
                                       arguments.model.model));
  }
  TC_RETURN_IF_ERROR(CheckSameTokenizer(arguments, *tokenizer, variants));
  if (!arguments.only_after.empty()) {
    options.counts = EndsWith(arguments.only_after, *tokenizer);
    options.counted_by = std::max<int64_t>(options.counted_by, std::ssize(arguments.only_after) + 8);
  }
  for (const Variant& variant : variants) {
    TC_RETURN_IF_ERROR(CheckContexts(variant.model->config(), options.contexts));
  }
  TC_ASSIGN_OR_RETURN(const data::TokenRange range, OpenText(arguments, *tokenizer));
  const EvaluationText text = TextOf(range, *tokenizer);
  if (const Status status = CheckEvaluation(text, options); !status.ok()) {
    return Status(status.code(), fmt::format("{}: {}", arguments.data, status.message()));
  }
  if (options.bins.empty()) {
    for (int64_t edge = kFirstBin; edge < std::ranges::max(options.contexts); edge *= 2) options.bins.push_back(edge);
  }
  Print("{} tokens of {}; mean and deviation over {} start{}{}\n\n", text.tokens, arguments.data, options.starts,
        options.starts == 1 ? "" : "s",
        variants.size() > 1 ? "; differences are paired by start, with their standard error" : "");
  TC_RETURN_IF_ERROR(EvaluateAll(text, options, variants));
  PrintContexts(variants);
  PrintBins(variants);
  PrintNotes(variants);
  return WriteOutput(arguments.json, ResultJson(arguments, text.tokens, variants));
}

}  // namespace tensorcache::cli
