#include "experiments/text_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "core/checksum.h"
#include "core/config.h"
#include "core/file.h"
#include "core/statistics.h"
#include "data/corpus.h"
#include "experiments/learned_table.h"
#include "experiments/methods.h"
#include "runtime/evaluate.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::experiments {
namespace {

Result<TrainJob> MakeJob(const TextStudy& study, const TextArm& arm, uint64_t seed) {
  TrainJob job{.name = fmt::format("{}-{}-{}", study.name, arm.label, seed),
               .config = study.config,
               .data = study.data,
               .vocabulary = study.vocabulary};
  std::ranges::replace(job.name, ' ', '_');
  std::vector<std::string> own = {fmt::format("cache.method={}", NameOf(arm.method))};
  own.insert(own.end(), arm.changes.begin(), arm.changes.end());
  own.push_back(fmt::format("train.seed={}", seed));
  TC_RETURN_IF_ERROR(ApplyChanges({}, own, study.changes, &job));
  return job;
}

// The held-out text, as the runs' tokenizer reads it.
struct HeldOut {
  std::shared_ptr<const Tokenizer> tokenizer;
  data::TokenRange range;

  EvaluationText Text() const {
    return {.tokens = range.size(),
            .read = [this](int64_t first, std::span<int32_t> out) { return range.Read(first, out); }};
  }
};

Result<HeldOut> OpenHeldOut(const data::TextDataConfig& config) {
  HeldOut held_out;
  TC_ASSIGN_OR_RETURN(held_out.tokenizer, LoadTokenizer(config.tokenizer));
  TC_ASSIGN_OR_RETURN(const data::Corpus corpus, data::OpenCorpus(config, *held_out.tokenizer, {}));
  held_out.range = corpus.valid;
  return held_out;
}

// Powers of two from the window up.
std::vector<int64_t> DistanceBins(const TextStudy& study) {
  std::vector<int64_t> bins;
  for (int64_t edge = study.config.model.cache.window; edge < study.contexts.back(); edge *= 2) bins.push_back(edge);
  return bins;
}

struct ArmScores {
  TrainedRun run;
  std::vector<ContextScore> scores;  // one a context
  int64_t parameters = 0;
};

Result<std::vector<ArmScores>> ScoreArms(const MeasureContext& context, const TextStudy& study, const HeldOut& held_out,
                                         uint64_t seed) {
  double total = 0, done = 0;
  for (const int64_t length : study.contexts) {
    total += static_cast<double>(length * study.starts) * static_cast<double>(study.arms.size());
  }
  std::vector<ArmScores> all;
  for (const TextArm& arm : study.arms) {
    ArmScores scores;
    TC_ASSIGN_OR_RETURN(const TrainJob job, MakeJob(study, arm, seed));
    TC_ASSIGN_OR_RETURN(scores.run, context.lab.Find(job));
    TC_ASSIGN_OR_RETURN(const auto model, Model::Load(scores.run.folder, {.threads = context.options.threads}));
    const EvaluationOptions options{.contexts = study.contexts,
                                    .starts = study.starts,
                                    .seed = seed,
                                    .bins = DistanceBins(study),
                                    .progress = [&](int64_t length, int64_t tokens) {
                                      done += static_cast<double>(tokens);
                                      context.Tell(done / total,
                                                   fmt::format("{} at {}", arm.label, ContextLabel(length)));
                                    }};
    scores.parameters = model->info().parameters;
    TC_ASSIGN_OR_RETURN(scores.scores, Evaluate(model, held_out.Text(), options));
    all.push_back(std::move(scores));
  }
  return all;
}

std::vector<Column> ArmColumns(const TextStudy& study, int64_t digits, Better better) {
  std::vector<Column> columns;
  for (const TextArm& arm : study.arms) columns.push_back({.title = arm.label, .digits = digits, .better = better});
  return columns;
}

// ± is of the text alone; one model was trained a column.
std::string StartsNote(const TextStudy& study) {
  return fmt::format(
      "Mean and deviation over {} start positions, the same for all columns; each length has starts of its own, so "
      "compare along a row. One model was trained a column: what another seed of training would change is not in the "
      "deviation.",
      study.starts);
}

Table NllTable(const TextStudy& study, const std::vector<ArmScores>& arms) {
  Table table{.id = "nll",
              .title = "Streaming NLL on held-out text, nats a token",
              .note = StartsNote(study),
              .row_title = "Context",
              .columns = ArmColumns(study, 3, Better::kLower)};
  for (size_t c = 0; c < study.contexts.size(); ++c) {
    Row row{.label = ContextLabel(study.contexts[c])};
    for (size_t a = 0; a < arms.size(); ++a) {
      Cell cell = Measured(arms[a].scores[c].Nll());
      if (study.published_same_text && a < study.published.size()) {
        cell = Beside(cell, study.published[a][c].first, study.published[a][c].second);
      }
      row.cells.push_back(cell);
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

Cell PairedCell(const ArmScores& from, const ArmScores& to, size_t c) {
  const Spread spread = PairedDifference(from.scores[c].Nll(), to.scores[c].Nll());
  Cell cell = Measured(spread.mean);
  cell.std = spread.standard_error;
  cell.n = std::ssize(from.scores[c].streams);
  return cell;
}

// Starts so close to each other that they share text vary less than independent ones would.
std::string OverlapNote(const TextStudy& study, int64_t held_out) {
  for (const int64_t context : study.contexts) {
    if (2 * study.starts * context > held_out) {
      return fmt::format(" From {} on the starts share much of the {} held-out tokens, and the error is too small.",
                         ContextLabel(context), held_out);
    }
  }
  return "";
}

Table PairedTable(const TextStudy& study, const std::vector<ArmScores>& arms, int64_t held_out) {
  Table table{.id = "paired",
              .title = fmt::format("NLL of {} minus that of the others", study.arms[study.ours].label),
              .note =
                  "Paired over the same start positions; ± is the standard error of the mean difference. Below "
                  "zero: the others predict worse." +
                  OverlapNote(study, held_out),
              .row_title = "Context"};
  if (!study.published.empty() && !study.published_same_text) {
    table.note += " Published: of another text, at as many times the trained length.";
  }
  for (size_t a = 0; a < study.methods; ++a) {
    if (a == study.ours) continue;
    table.columns.push_back({.title = "minus " + study.arms[a].label, .digits = 4, .better = Better::kLower});
  }
  for (size_t c = 0; c < study.contexts.size(); ++c) {
    Row row{.label = ContextLabel(study.contexts[c])};
    for (size_t a = 0; a < study.methods; ++a) {
      if (a == study.ours) continue;
      Cell cell = PairedCell(arms[a], arms[study.ours], c);
      if (a < study.published.size()) {
        cell = Beside(cell, study.published[study.ours][c].first - study.published[a][c].first);
      }
      row.cells.push_back(cell);
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

// What each variant changes, a row a pair.
Table VariantTable(const TextStudy& study, const std::vector<ArmScores>& arms) {
  Table table{.id = "variants",
              .title = "NLL of variants minus that of what they vary",
              .note = "Paired as above. Below zero: the variant predicts better.",
              .row_title = "Variant, compared with"};
  for (const int64_t context : study.contexts) {
    table.columns.push_back({.title = ContextLabel(context), .digits = 4, .better = Better::kLower});
  }
  for (size_t a = study.methods; a < arms.size(); ++a) {
    for (const size_t with : study.arms[a].against) {
      Row row{.label = fmt::format("{}, {}", study.arms[a].label, study.arms[with].label)};
      for (size_t c = 0; c < study.contexts.size(); ++c) row.cells.push_back(PairedCell(arms[with], arms[a], c));
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

Table DistanceTable(const TextStudy& study, const std::vector<ArmScores>& arms) {
  Table table{.id = "distance",
              .title = fmt::format("NLL by the number of tokens read before, at context {}",
                                   ContextLabel(study.contexts.back())),
              .row_title = "Up to",
              .columns = ArmColumns(study, 3, Better::kLower)};
  const std::vector<int64_t>& bins = arms[0].scores.back().bins;
  for (size_t b = 0; b < bins.size(); ++b) {
    Row row{.label = ContextLabel(bins[b])};
    for (const ArmScores& arm : arms) row.cells.push_back(Measured(SpreadOf(arm.scores.back().Bin(b)).mean));
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table StateTable(const TextStudy& study, const std::vector<ArmScores>& arms) {
  Table table{.id = "state",
              .title = "State of one sequence",
              .note = "Keys, values and memories in float32.",
              .row_title = "Context"};
  for (const TextArm& arm : study.arms) {
    table.columns.push_back({.title = arm.label, .unit = "KiB", .digits = 0, .better = Better::kLower});
  }
  for (size_t c = 0; c < study.contexts.size(); ++c) {
    Row row{.label = ContextLabel(study.contexts[c])};
    for (const ArmScores& arm : arms) {
      row.cells.push_back(Measured(static_cast<double>(arm.scores[c].state_bytes) / kKibibyte));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

double MeanNll(const ArmScores& arm, size_t context) { return SpreadOf(arm.scores[context].Nll()).mean; }

// A curve over the contexts; `at` gives its point at one of them, but for x.
Series SeriesOf(const TextStudy& study, size_t arm, const std::function<Point(size_t)>& at) {
  Series series{.name = study.arms[arm].label, .method = std::string(NameOf(study.arms[arm].method))};
  for (size_t c = 0; c < study.contexts.size(); ++c) {
    series.points.push_back(at(c));
    series.points.back().x = static_cast<double>(study.contexts[c]);
  }
  return series;
}

Figure NllFigure(const TextStudy& study, const std::vector<ArmScores>& arms) {
  Figure figure{
      .id = "nll_by_context",
      .title = "NLL against context",
      .note = "Lower is better.",
      .x = {.title = "context", .unit = "tokens", .log = true},
      .y = {.title = "NLL", .unit = "nats a token"},
      .guides = {{.x = static_cast<double>(study.config.model.max_position_embeddings), .label = "trained length"}}};
  for (size_t a = 0; a < arms.size(); ++a) {
    figure.series.push_back(SeriesOf(study, a, [&](size_t c) { return Point{.y = MeanNll(arms[a], c)}; }));
  }
  return figure;
}

// The first arm of a method; the number of arms if none is.
size_t ArmOf(const TextStudy& study, CacheMethod method) {
  return static_cast<size_t>(std::ranges::find(study.arms, method, &TextArm::method) - study.arms.begin());
}

// What each memory adds to the window alone. Full KV, which is far above beyond its trained length, would flatten it.
Figure GainFigure(const TextStudy& study, const std::vector<ArmScores>& arms) {
  const size_t window = ArmOf(study, CacheMethod::kWindow);
  Figure figure{
      .id = "gain_by_context",
      .title = "What is added to the window",
      .note = "NLL minus that of Window KV, paired over the same texts, with its standard error. Below zero is better.",
      .x = {.title = "context", .unit = "tokens", .log = true},
      .y = {.title = "NLL minus Window KV's", .unit = "nats a token"},
      .guides = {{.y = 0, .label = "Window KV"}}};
  for (size_t a = 0; a < study.methods; ++a) {
    if (a == window || study.arms[a].method == CacheMethod::kFull) continue;
    figure.series.push_back(SeriesOf(study, a, [&](size_t c) {
      const Cell difference = PairedCell(arms[window], arms[a], c);
      return Point{.y = *difference.value, .error = *difference.std};
    }));
  }
  return figure;
}

// "4K (-0.0164 ± 0.0009 to Window KV)"
std::string Comparison(const TextStudy& study, const std::vector<ArmScores>& arms, size_t c, size_t arm, size_t with) {
  const Cell difference = PairedCell(arms[with], arms[arm], c);
  return fmt::format("{} ({:+.4f} ± {:.4f} to {})", ContextLabel(study.contexts[c]), *difference.value, *difference.std,
                     study.arms[with].label);
}

// What a cache that forgets nothing gains on the window, where it was trained.
void AddRoom(const TextStudy& study, const std::vector<ArmScores>& arms, ExperimentResult* result) {
  const auto trained = std::ranges::find(study.contexts, study.config.Block());
  const size_t full = ArmOf(study, CacheMethod::kFull), window = ArmOf(study, CacheMethod::kWindow);
  if (trained == study.contexts.end()) return;
  const auto c = static_cast<size_t>(trained - study.contexts.begin());
  const std::string at = Comparison(study, arms, c, full, window);
  const Cell difference = PairedCell(arms[window], arms[full], c);
  const bool gains = *difference.value < -2 * *difference.std;
  result->findings.push_back(
      gains
          ? fmt::format("What there is to gain: where it was trained, Full KV differs from the window alone at {}.", at)
          : fmt::format("Where it was trained Full KV gains nothing on the window alone, at {}: here it is no measure "
                        "of what a memory may add.",
                        at));
}

// At which of the contexts that matter ours has the lowest NLL of the methods, and by how much it leads or trails the best of
// the others; then what the variants change at the longest context.
void AddFindings(const TextStudy& study, const std::vector<ArmScores>& arms, ExperimentResult* result) {
  std::string lowest, beaten;
  for (size_t c = 0; c < study.contexts.size(); ++c) {
    if (study.contexts[c] < study.least_context_for_claim) continue;
    size_t best = study.ours == 0 ? 1 : 0;
    for (size_t a = 0; a < study.methods; ++a) {
      if (a != study.ours && MeanNll(arms[a], c) < MeanNll(arms[best], c)) best = a;
    }
    std::string& list = MeanNll(arms[study.ours], c) < MeanNll(arms[best], c) ? lowest : beaten;
    list += (list.empty() ? "" : ", ") + Comparison(study, arms, c, study.ours, best);
  }
  const std::string& name = study.arms[study.ours].label;
  if (!lowest.empty()) result->findings.push_back(fmt::format("{} has the lowest NLL at {}.", name, lowest));
  if (!beaten.empty()) result->findings.push_back(fmt::format("{} does not have the lowest NLL at {}.", name, beaten));
  AddRoom(study, arms, result);
  for (size_t a = study.methods; a < arms.size(); ++a) {
    std::string comparisons;
    for (const size_t with : study.arms[a].against) {
      comparisons += comparisons.empty() ? " " : ", ";
      comparisons += Comparison(study, arms, study.contexts.size() - 1, a, with);
    }
    result->findings.push_back(fmt::format("{} differs at{}.", study.arms[a].label, comparisons));
  }
}

}  // namespace

std::vector<TextArm> FiveTextArms() {
  std::vector<TextArm> arms;
  for (const CacheMethod method : kAllMethods) {
    TextArm arm{.label = MethodTitle(method), .method = method};
    if (method == CacheMethod::kInfini) {
      arm.changes = {"cache.infini.memory_rope=false", "train.memory_learning_rate_multiple=10"};
    }
    if (method == CacheMethod::kTensorCache) {
      const std::string memory = "cache.tensor_cache.";
      arm.changes = {memory + "layers=top",
                     memory + "top_layers=1",
                     memory + "address.by=content",
                     memory + "address.normalize_queries=true",
                     memory + "address.normalize_keys=true",
                     memory + "read.zero_output=true",
                     "train.memory_learning_rate_multiple=10"};
    }
    arms.push_back(std::move(arm));
  }
  return arms;
}

std::string TextMemoryNote() {
  return "Both memories are addressed before rotary embedding, and gates and decays learn ten times faster than the "
         "rest. Tensor Cache has its memory in the top layer alone, with unit queries and keys; W_tc starts at zero.";
}

std::string NovelFolder(const ExperimentOptions& options) {
  const std::string inner = options.data + "/novels";
  return !IsFolder(inner) && IsFolder(options.data + "/train") ? options.data : inner;
}

Result<std::string> DataChecksum(const std::vector<std::string>& paths) {
  Crc64 checksum;
  for (const std::string& path : paths) {
    TC_ASSIGN_OR_RETURN(const std::vector<data::TextFile> files, data::ListTextFiles(path));
    for (const data::TextFile& file : files) {
      const std::string name = std::filesystem::path(file.path).filename().string();
      checksum.Add(std::as_bytes(std::span(name)));
      TC_ASSIGN_OR_RETURN(const MappedFile content, MappedFile::Open(file.path));
      checksum.Add(content.bytes());
    }
  }
  return fmt::format("{:016x}", checksum.value());
}

Result<std::vector<TrainJob>> PlanTextStudy(const TextStudy& study, uint64_t seed) {
  std::vector<TrainJob> jobs;
  for (const TextArm& arm : study.arms) {
    TC_ASSIGN_OR_RETURN(TrainJob job, MakeJob(study, arm, seed));
    jobs.push_back(std::move(job));
  }
  return jobs;
}

Status MeasureTextStudy(const MeasureContext& context, const TextStudy& study, uint64_t seed,
                        ExperimentResult* result) {
  TC_ASSIGN_OR_RETURN(const HeldOut held_out, OpenHeldOut(study.config.data.text));
  TC_ASSIGN_OR_RETURN(const std::vector<ArmScores> arms, ScoreArms(context, study, held_out, seed));
  result->setup += fmt::format(" {} has {:.1f}M parameters.", study.arms[study.ours].label,
                               static_cast<double>(arms[study.ours].parameters) / 1e6);
  result->figures.push_back(NllFigure(study, arms));
  result->figures.push_back(GainFigure(study, arms));
  result->tables.push_back(NllTable(study, arms));
  result->tables.push_back(PairedTable(study, arms, held_out.range.size()));
  if (arms.size() > study.methods) result->tables.push_back(VariantTable(study, arms));
  result->tables.push_back(DistanceTable(study, arms));
  result->tables.push_back(StateTable(study, arms));
  for (const ArmScores& arm : arms) result->runs.push_back(arm.run.record);
  if (!arms[study.ours].run.layers.empty()) {
    result->tables.push_back(
        LearnedTable("learned", "What " + study.arms[study.ours].label + " learned", {arms[study.ours].run}));
  }
  AddFindings(study, arms, result);
  return OkStatus();
}

}  // namespace tensorcache::experiments
