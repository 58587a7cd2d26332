#include "experiments/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "experiments/report/chart.h"
#include "experiments/report/markup.h"
#include "experiments/report/number_text.h"
#include "experiments/report/style.h"
#include "experiments/report/table.h"

namespace tensorcache::experiments::report {
namespace {

struct Place {
  std::string_view experiment;
  const char* group;
};
// The sections' order, and their headings in the contents.
constexpr Place kOrder[] = {
    {"scaling", "Systems"},  {"throughput", "Systems"},    {"recall", "Recall"},    {"ood", "Recall"},
    {"fargap", "Recall"},    {"longgap", "Recall"},        {"pairs", "Recall"},     {"multistore", "Recall"},
    {"mqar", "Recall"},      {"needle", "Recall"},         {"shakespeare", "Text"}, {"novels", "Text"},
    {"capacity", "Memory"},  {"ablation", "Ablations"},    {"chunks", "Ablations"}, {"rules", "Ablations"},
    {"slots", "Extensions"}, {"timescales", "Extensions"}, {"gates", "Extensions"}, {"layers", "Extensions"},
    {"norms", "Extensions"}, {"efficiency", "Cost"},
};
constexpr char kElsewhere[] = "More";

// The first figure of each of these is a headline.
constexpr std::string_view kHeadlines[] = {"scaling", "throughput", "shakespeare", "novels", "recall", "ood", "chunks"};

size_t Position(const ExperimentResult& result) {
  const auto* found = std::ranges::find(kOrder, std::string_view(result.experiment), &Place::experiment);
  return static_cast<size_t>(found - std::begin(kOrder));
}
const char* GroupOf(const ExperimentResult& result) {
  const size_t position = Position(result);
  return position < std::size(kOrder) ? kOrder[position].group : kElsewhere;
}

const std::string& TitleOf(const ExperimentResult& result) {
  return result.title.empty() ? result.experiment : result.title;
}

bool IsQuick(const ExperimentResult& result) { return result.made.budget == "quick"; }
// Made with the setup that the published figures are of, as far as that is possible here.
bool IsComparable(const ExperimentResult& result) { return !IsQuick(result) && result.made.changes.empty(); }

std::string Badge(const ExperimentResult& result, const char* suffix = " run") {
  std::string badges;
  const auto add = [&](const char* name, const char* title) {
    badges += fmt::format("<span class=\"badge\" title=\"{}\">{}{}</span>", title, name, suffix);
  };
  if (IsQuick(result)) add("quick", "made with a small budget, for a first look");
  if (!result.made.changes.empty()) add("changed", "made with another setup than the paper’s");
  return badges;
}

std::string Anchor(const ExperimentResult& result) { return "e-" + Slug(result.experiment); }

// The colours that names of curves have in this experiment, for its tables.
NameClasses NamesIn(const ExperimentResult& result) {
  NameClasses names;
  for (const Figure& figure : result.figures) {
    for (const Series& series : figure.series) {
      const std::string css = MethodClass(series.method);
      // Of several curves of one method only the first has its colour.
      const bool first = std::ranges::none_of(names, [&](const auto& other) { return other.second == css; });
      if (!series.paper && !css.empty() && first) names.try_emplace(series.name, css);
    }
  }
  return names;
}

class PageWriter {
 public:
  PageWriter(std::vector<ExperimentResult> results, const std::string& title)
      : results_(std::move(results)), title_(title) {
    std::ranges::sort(results_, [](const ExperimentResult& a, const ExperimentResult& b) {
      return std::pair(Position(a), a.experiment) < std::pair(Position(b), b.experiment);
    });
  }

  std::string Write() {
    out_ =
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta name=\"color-scheme\" content=\"light dark\">\n"
        // The browser itself sees to it that nothing is fetched and nothing runs.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        "<title>Tensor Cache: " +
        Escape(title_) + "</title>\n<style>\n";
    out_ += PageCss() + "</style>\n</head>\n<body>\n<div class=\"frame\">\n";
    Header();
    Contents();
    out_ += "<main>\n";
    Headlines();
    for (const ExperimentResult& result : results_) Section(result);
    out_ +=
        "</main>\n<footer>Made by <code>tensorcache report</code>. One file: it loads nothing and runs no script. "
        "Hover over a point to read its value; the tables have them all.</footer>\n</div>\n</body>\n</html>\n";
    return std::move(out_);
  }

 private:
  void Header() {
    out_ +=
        "<header>\n<p class=\"eyebrow\">Tensor Cache</p>\n<h1>" + Escape(title_) +
        "</h1>\n"
        "<p class=\"lead\">A Tensor Cache keeps a window of the last tokens exactly and everything before them in a "
        "memory of fixed size. Each experiment below was run again from nothing, by one command on an ordinary CPU; "
        "published numbers stand beside ours wherever there are any.</p>\n";
    Facts();
    out_ += "</header>\n";
  }

  void Fact(const std::string& number, const std::string& what, const char* css = "") {
    out_ += fmt::format("<li{}><b>{}</b><span>{}</span></li>\n", css, Escape(number), Escape(what));
  }

  void Facts() {
    std::map<Verdict, int64_t> verdicts;
    double seconds = 0;
    std::set<std::pair<std::string, std::string>> runs;  // experiments share some
    for (const ExperimentResult& result : results_) {
      seconds += result.made.seconds;
      for (const RunRecord& run : result.runs) {
        if (!runs.emplace(run.name, run.changes).second) seconds -= run.seconds;
      }
      if (!IsComparable(result)) continue;
      for (const Table& table : result.tables) {
        for (const Row& row : table.rows) {
          for (size_t i = 0; i < row.cells.size(); ++i) {
            // What has no deviation, such as a size, would agree without having been put to the test.
            if (row.cells[i].std) ++verdicts[Judge(row.cells[i], table.columns[i])];
          }
        }
      }
    }
    const auto counted = [](size_t count, const char* what) {
      return fmt::format("{}{}", what, count == 1 ? "" : "s");
    };
    out_ += "<ul class=\"facts\">\n";
    Fact(std::to_string(results_.size()), counted(results_.size(), "experiment"));
    const int64_t agree = verdicts[Verdict::kEqual] + verdicts[Verdict::kWithin];
    const int64_t better = verdicts[Verdict::kBetter], worse = verdicts[Verdict::kWorse];
    if (agree + better + worse > 0) {
      Fact(std::to_string(agree), "measured means equal or ≈ the paper’s");
      Fact(std::to_string(better), "✓ better than the paper’s", " class=\"good\"");
      Fact(std::to_string(worse), "✗ worse than the paper’s", " class=\"bad\"");
    }
    if (!runs.empty()) Fact(std::to_string(runs.size()), counted(runs.size(), "training run"));
    if (seconds > 0) Fact(DurationText(seconds), "of computing, shared runs once");
    out_ += "</ul>\n";
  }

  void Contents() {
    out_ += "<nav aria-label=\"Contents\"><div class=\"inner\">\n";
    if (!HeadlineResults().empty()) {
      out_ += "<p>Overview</p>\n<ul><li><a href=\"#headlines\">Headline figures</a></li></ul>\n";
    }
    std::string group;
    for (const ExperimentResult& result : results_) {
      if (group != GroupOf(result)) {
        if (!group.empty()) out_ += "</ul>\n";
        group = GroupOf(result);
        out_ += fmt::format("<p>{}</p>\n<ul>", group);
      }
      out_ += fmt::format("<li><a href=\"#{}\">{}{}</a></li>\n", Anchor(result), Escape(result.experiment),
                          Badge(result, ""));
    }
    out_ += std::string(group.empty() ? "" : "</ul>\n") + "</div></nav>\n";
  }

  std::vector<const ExperimentResult*> HeadlineResults() const {
    std::vector<const ExperimentResult*> found;
    for (const std::string_view name : kHeadlines) {
      for (const ExperimentResult& result : results_) {
        if (result.experiment == name && !result.figures.empty()) found.push_back(&result);
      }
    }
    return found;
  }

  void Headlines() {
    const auto headlines = HeadlineResults();
    if (headlines.empty()) return;
    out_ += "<section class=\"card\" id=\"headlines\">\n<h2>Headline figures</h2>\n";
    std::string findings;
    for (const ExperimentResult* result : headlines) {
      if (!result->findings.empty()) {
        findings += fmt::format("<li><a href=\"#{}\">{}{}</a><span>{}</span></li>\n", Anchor(*result),
                                Escape(result->experiment), Badge(*result, ""), Prose(result->findings.front()));
      }
    }
    if (!findings.empty()) out_ += "<ul class=\"findings summary\">\n" + findings + "</ul>\n";
    out_ += "<div class=\"figures\">\n";
    for (const ExperimentResult* result : headlines) {
      const Figure& figure = result->figures.front();
      const bool shared = std::ranges::count_if(headlines, [&](const ExperimentResult* other) {
                            return other->figures.front().title == figure.title;
                          }) > 1;
      const std::string title = shared ? fmt::format("{}: {}", figure.title, result->experiment) : figure.title;
      Chart(figure, fmt::format("<a href=\"#{}\">{}</a>{}", Anchor(*result), Escape(title), Badge(*result)), 460,
            false);
    }
    out_ += "</div>\n</section>\n";
  }

  // Two drawings, of which a style sheet shows the one that fits the screen: text keeps its size.
  void Chart(const Figure& figure, const std::string& caption, double width, bool note) {
    const std::string key = fmt::format("f{}", ++charts_);
    out_ += fmt::format("<figure>\n<figcaption><h3>{}</h3></figcaption>\n<div class=\"wide\">{}</div>\n", caption,
                        ChartSvg(figure, {.width = width, .plot_height = 0.3 * width + 84}, key + "w"));
    out_ += fmt::format("<div class=\"narrow\">{}</div>\n",
                        ChartSvg(figure, {.width = 340, .plot_height = 220, .names_beside = false}, key + "n"));
    if (note && !figure.note.empty()) out_ += fmt::format("<p class=\"note\">{}</p>\n", Prose(figure.note));
    out_ += "</figure>\n";
  }

  void Section(const ExperimentResult& result) {
    out_ += fmt::format("<section class=\"card\" id=\"{}\">\n<h2>{}{}</h2>\n", Anchor(result), Escape(TitleOf(result)),
                        Badge(result));
    if (!result.paper.empty()) out_ += fmt::format("<p class=\"where\">In the paper: {}</p>\n", Prose(result.paper));
    if (!result.setup.empty()) out_ += fmt::format("<p class=\"setup\">{}</p>\n", Prose(result.setup));
    if (!result.findings.empty()) {
      out_ += "<ul class=\"findings\">\n";
      for (const std::string& finding : result.findings) out_ += fmt::format("<li>{}</li>\n", Prose(finding));
      out_ += "</ul>\n";
    }
    if (!result.figures.empty()) {
      const bool single = result.figures.size() == 1;
      out_ += fmt::format("<div class=\"figures{}\">\n", single ? " single" : "");
      for (const Figure& figure : result.figures) Chart(figure, Escape(figure.title), single ? 780 : 460, true);
      out_ += "</div>\n";
    }
    const NameClasses names = NamesIn(result);
    for (const Table& table : result.tables) out_ += TableHtml(table, names);
    Made(result);
    out_ += "</section>\n";
  }

  void Term(const char* name, const std::string& html) {
    if (!html.empty()) out_ += fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, html);
  }

  void Made(const ExperimentResult& result) {
    const Provenance& made = result.made;
    out_ += "<details>\n<summary>How it was made</summary>\n<dl>\n";
    Term("Command", made.command.empty() ? "" : "<code>" + Escape(made.command) + "</code>");
    Term("Budget", Escape(made.budget));
    Term("Time",
         made.seconds > 0 ? DurationText(made.seconds) + (result.runs.empty() ? "" : ", training and measuring") : "");
    std::string seeds;
    for (const uint64_t seed : made.seeds) seeds += (seeds.empty() ? "" : ", ") + std::to_string(seed);
    Term("Seeds", seeds);
    Term("Texts", made.data.empty() ? "" : "checksum <code>" + Escape(made.data) + "</code>");
    std::string machine = Escape(made.cpu);
    if (made.threads > 0) {
      machine += fmt::format("{}{} thread{}", machine.empty() ? "" : ", ", made.threads, made.threads == 1 ? "" : "s");
    }
    Term("Machine", machine);
    Term("Commit", made.commit.empty() ? "" : "<code>" + Escape(made.commit) + "</code>");
    Term("Program", Escape(made.version + (made.version.empty() || made.build.empty() ? "" : ", ") + made.build));
    out_ += "</dl>\n";
    if (!result.runs.empty()) Runs(result.runs);
    out_ += "</details>\n";
  }

  void Runs(const std::vector<RunRecord>& runs) {
    out_ +=
        "<div class=\"scroll runs\" tabindex=\"0\" role=\"region\" aria-label=\"Training runs\"><table>\n<thead><tr>"
        "<th scope=\"col\">Training run</th><th scope=\"col\">Steps</th><th scope=\"col\">Tokens</th>"
        "<th scope=\"col\">Time</th><th scope=\"col\">Loss</th><th scope=\"col\">Trained by</th><th scope=\"col\" "
        "class=\"changes\">Changes to the preset</th></tr></thead>\n<tbody>\n";
    for (const RunRecord& run : runs) {
      out_ += fmt::format(
          "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
          "<td class=\"changes\">{}</td></tr>\n",
          Escape(run.name), FixedText(static_cast<double>(run.steps), 0), FixedText(static_cast<double>(run.tokens), 0),
          DurationText(run.seconds), FixedText(run.loss, 4), Escape(run.commit),
          run.changes.empty() ? "" : "<code>" + Escape(run.changes) + "</code>");
    }
    out_ += "</tbody></table></div>\n";
  }

  std::vector<ExperimentResult> results_;
  std::string title_;
  std::string out_;
  int charts_ = 0;
};

}  // namespace

std::string PageHtml(std::vector<ExperimentResult> results, const std::string& title) {
  return PageWriter(std::move(results), title).Write();
}

std::string FigureFileName(const ExperimentResult& result, const Figure& figure) {
  return Slug(result.experiment) + "-" + Slug(figure.id) + ".svg";
}

}  // namespace tensorcache::experiments::report
