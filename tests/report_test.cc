// tensorcache report as a user meets it, and its page as a browser draws it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "experiments/report/report_testing.h"
#include "experiments/result.h"
#include "tests/run_testing.h"

namespace tensorcache {
namespace {

using experiments::ExperimentResult;
using experiments::ResultToJson;
using experiments::report::MarkupError;
using experiments::report::SampleResult;

class ReportTest : public RunTest {
 protected:
  // results/<experiment>.json
  std::string PutResult(const ExperimentResult& result) const {
    return temp_.Put("results/" + result.experiment + ".json", ResultToJson(result));
  }
  // The headlines, and one experiment that nobody knows.
  std::string PutSamples() const {
    for (const char* name : {"scaling", "throughput", "shakespeare", "recall", "chunks", "unheard-of"}) {
      PutResult(SampleResult(name));
    }
    return temp_.Path("results");
  }

  const std::string out_ = temp_.Path("report.html");
};

TEST_F(ReportTest, WritesThePageAndTheFigures) {
  const std::string folder = PutSamples();
  temp_.Put("results/bench.json", R"({"bench": "decode"})");
  temp_.Put("results/list.json", "[1, 2]");
  temp_.Put("results/notes.txt", "not JSON");
  const Outcome outcome = Run({"report", folder, "--out", out_, "--svg", temp_.Path("made/svg")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out, "report   " + out_ + " (6 experiments, 6 figures, 6 tables)\nfigures  6 SVG files in " +
                             temp_.Path("made/svg") + "\n");
  const std::string page = ReadAll(out_);
  EXPECT_EQ(MarkupError(page), "");
  EXPECT_NE(page.find("About unheard-of"), page.npos);
  for (const char* name : {"recall-curve.svg", "scaling-curve.svg", "unheard-of-curve.svg"}) {
    const std::string svg = ReadAll(temp_.Path("made/svg/") + name);
    EXPECT_EQ(MarkupError(svg), "") << name;
    EXPECT_TRUE(svg.starts_with("<?xml")) << name;
  }
  // Files, and a file that is also in a folder, give the same page.
  const std::string recall = folder + "/recall.json";
  ASSERT_EQ(Run({"report", recall, folder, recall, "--out", out_}).status, 0);
  EXPECT_EQ(ReadAll(out_), page);
  EXPECT_EQ(Run({"report", recall, "--out", out_}).out, "report   " + out_ + " (1 experiment, 1 figure, 1 table)\n");
}

TEST_F(ReportTest, MistakesSayWhatToDo) {
  const std::string folder = PutSamples();
  ExpectMistake({"report"}, "RESULT is required");
  ExpectMistake({"report", folder, "--ot", out_}, "did you mean '--out'?");
  ExpectMistake({"report", folder, "--out", temp_.Path("no/such/folder.html")}, "no folder");
  ExpectMistake({"report", folder, "--out", folder}, "it is a folder");
  ExpectMistake({"report", temp_.Path("nothing"), "--out", out_}, "there is no file or folder");
  EXPECT_FALSE(fs::exists(out_));

  // What is not a result is skipped in a folder, and a mistake if it is named.
  const std::string bench = temp_.Put("other/bench.json", R"({"bench": "decode"})");
  ExpectMistake({"report", temp_.Path("other"), "--out", out_}, "make some with tensorcache reproduce");
  ExpectMistake({"report", bench, "--out", out_}, "bench.json is not the result of an experiment");
  // What claims to be a result has to be one.
  temp_.Put("damaged/recall.json", R"({"experiment": "recall", "figures": [{"ttle": "x"}]})");
  ExpectMistake({"report", temp_.Path("damaged"), "--out", out_}, "damaged/recall.json");
  temp_.Put("damaged/recall.json", R"({"experiment": "recall", )");
  ExpectMistake({"report", temp_.Path("damaged"), "--out", out_}, "damaged/recall.json");
  // Which of two results is meant?
  const std::string other = temp_.Put("more/again.json", ResultToJson(SampleResult("recall")));
  ExpectMistake({"report", folder, other, "--out", out_},
                "recall.json and " + other + " are both results of the experiment 'recall'");
  EXPECT_FALSE(fs::exists(out_));
}

// Tells what it sees of the page to the page around it.
constexpr char kMeasure[] = R"(<script>
addEventListener('load', () => {
  const meet = (a, b, gap) => a.left < b.right - gap && b.left < a.right - gap && a.top < b.bottom - gap && b.top < a.bottom - gap;
  const charts = [];
  for (const svg of document.querySelectorAll('svg.chart')) {
    const frame = svg.getBoundingClientRect();
    if (frame.width === 0) continue;
    const texts = [...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect());
    const names = [...svg.querySelectorAll('.names text, .gname')].map(t => t.getBoundingClientRect());
    const base = svg.querySelector('.base').getBoundingClientRect();
    const grid = [...svg.querySelectorAll('.grid')].map(g => g.getBoundingClientRect());
    const plot = {left: base.left, right: base.right, top: Math.min(...grid.map(g => g.top)), bottom: base.bottom};
    let overlaps = 0;
    texts.forEach((a, i) => texts.slice(i + 1).forEach(b => overlaps += meet(a, b, 0.5)));
    charts.push({
      width: frame.width,
      font: parseFloat(getComputedStyle(svg.querySelector('text')).fontSize) * frame.width / svg.viewBox.baseVal.width,
      overlaps,
      outside: texts.filter(t => t.left < frame.left - 1 || t.right > frame.right + 1 || t.top < frame.top - 1 || t.bottom > frame.bottom + 1).length,
      on_plot: names.filter(n => meet(n, plot, 0.5)).length,
      curves: [...svg.querySelectorAll('g[clip-path] .curve')].map(curve => ({
        length: curve.getTotalLength(), width: curve.getBBox().width, height: curve.getBBox().height,
        colour: getComputedStyle(curve).stroke, dashed: getComputedStyle(curve).strokeDasharray !== 'none',
        thickness: parseFloat(getComputedStyle(curve).strokeWidth)})),
    });
  }
  parent.postMessage({charts, overflow: document.documentElement.scrollWidth - innerWidth, screen: innerWidth,
                      background: getComputedStyle(document.body).backgroundColor,
                      ink: getComputedStyle(document.body).color}, '*');
});
</script></body>)";

class BrowserTest : public ReportTest {
 protected:
  void SetUp() override {
    if (std::system("command -v chromium >/dev/null 2>&1") != 0) {
      GTEST_SKIP() << "there is no chromium; to do: scripts/setup.sh --tests";
    }
    const Outcome outcome = Run({"report", PutSamples(), "--out", out_});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    // The same page with a script in it, which its policy forbids.
    std::string page = ReadAll(out_);
    const size_t policy = page.find("<meta http-equiv");
    ASSERT_NE(policy, page.npos);
    page.erase(policy, page.find('>', policy) + 1 - policy);
    page.replace(page.find("</body>"), 7, kMeasure);
    temp_.Put("measured.html", page);
  }

  // What chromium writes to standard output.
  std::string Chromium(const std::string& options, const std::string& file, bool dark) const {
    const std::string stdout_file = temp_.Path("chromium.out");
    const std::string command =
        "timeout 120 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run "
        "--virtual-time-budget=5000 --blink-settings=preferredColorScheme=" +
        std::string(dark ? "0" : "1") + " --user-data-dir='" + temp_.Path("chromium") + "' " + options + " 'file://" +
        temp_.Path(file) + "' >'" + stdout_file + "' 2>'" + temp_.Path("chromium.err") + "'";
    EXPECT_EQ(std::system(command.c_str()), 0) << ReadAll(temp_.Path("chromium.err"));
    return ReadAll(stdout_file);
  }

  // The page in a frame as wide as a screen: chromium's own window has a least width.
  nlohmann::json Measure(int width, bool dark) const {
    temp_.Put("frame.html",
              "<!DOCTYPE html><body><pre id=\"seen\"></pre><iframe src=\"measured.html\" "
              "style=\"border:0;height:900px;width:" +
                  std::to_string(width) +
                  "px\"></iframe><script>onmessage = e => document.getElementById('seen').textContent = "
                  "JSON.stringify(e.data)</script></body>");
    const std::string dom = Chromium("--window-size=1400,1000 --dump-dom", "frame.html", dark);
    const std::string begin = "<pre id=\"seen\">";
    const size_t at = dom.find(begin);
    EXPECT_NE(at, dom.npos) << dom;
    if (at == dom.npos) return {};
    return nlohmann::json::parse(dom.substr(at + begin.size(), dom.find("</pre>", at) - at - begin.size()), nullptr,
                                 false);
  }
};

TEST_F(BrowserTest, FiguresAreDrawnOnWideAndNarrowScreens) {
  for (const int width : {1280, 768, 390}) {
    SCOPED_TRACE(width);
    const nlohmann::json seen = Measure(width, false);
    ASSERT_TRUE(seen.is_object()) << "the page did not answer";
    EXPECT_EQ(seen["screen"], width);
    EXPECT_LE(seen["overflow"].get<double>(), 0) << "the page is wider than the screen";
    ASSERT_EQ(seen["charts"].size(), 5 + 6u);  // headlines, and one in each section
    for (const auto& chart : seen["charts"]) {
      EXPECT_GT(chart["width"].get<double>(), 0.75 * std::min(width, 500));
      EXPECT_GE(chart["font"].get<double>(), 10.5) << "too small to read";
      EXPECT_EQ(chart["overlaps"], 0) << "texts lie on each other";
      EXPECT_EQ(chart["outside"], 0) << "text is cut off";
      EXPECT_EQ(chart["on_plot"], 0) << "a name lies on the plot";
      ASSERT_EQ(chart["curves"].size(), 10u);
      std::map<std::string, int> colours;
      for (const auto& curve : chart["curves"]) {
        EXPECT_GT(curve["length"].get<double>(), 100);
        EXPECT_GT(curve["width"].get<double>(), 100);
        if (!curve["dashed"].get<bool>()) ++colours[curve["colour"]];
      }
      EXPECT_EQ(colours.size(), 5u) << "each method has its colour";
    }
  }
}

TEST_F(BrowserTest, DarkModeIsDark) {
  const nlohmann::json light = Measure(390, false), dark = Measure(390, true);
  ASSERT_TRUE(light.is_object() && dark.is_object());
  EXPECT_EQ(light["background"], "rgb(246, 247, 249)");
  EXPECT_EQ(dark["background"], "rgb(14, 16, 20)");
  EXPECT_NE(light["ink"], dark["ink"]);
  EXPECT_NE(light["charts"][0]["curves"], dark["charts"][0]["curves"]);
}

TEST_F(BrowserTest, ThePageItselfIsPainted) {
  // The page as it is, with its policy: nothing that it needs may be forbidden.
  std::string pictures[2];
  for (const bool dark : {false, true}) {
    const std::string png = temp_.Path(dark ? "dark.png" : "light.png");
    Chromium("--window-size=1280,2000 --screenshot='" + png + "'", "report.html", dark);
    pictures[dark] = ReadAll(png);
    EXPECT_TRUE(pictures[dark].starts_with("\x89PNG")) << png;
    EXPECT_GT(pictures[dark].size(), 50000u) << "an empty page compresses better than that";
  }
  EXPECT_NE(pictures[0], pictures[1]);
}

}  // namespace
}  // namespace tensorcache
