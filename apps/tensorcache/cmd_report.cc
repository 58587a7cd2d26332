// tensorcache report: experiment results as one HTML page, and their figures as SVG files.
#include <algorithm>
#include <filesystem>
#include <map>

#include "apps/tensorcache/command.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "core/file.h"
#include "core/json.h"
#include "core/text.h"
#include "experiments/report/chart.h"
#include "experiments/report/page.h"
#include "experiments/result.h"

namespace tensorcache::cli {
namespace {

namespace fs = std::filesystem;
using experiments::ExperimentResult;

struct InputFile {
  std::string path;
  bool named = false;  // by the user; otherwise found in a folder, where other files are no mistake
};

// The files and the *.json of the folders, by name, each once.
Result<std::vector<InputFile>> ListFiles(const std::vector<std::string>& arguments) {
  std::vector<InputFile> files;
  for (const std::string& argument : arguments) {
    std::error_code error;
    if (!fs::is_directory(argument, error)) {
      if (!fs::exists(argument, error)) return NotFound(fmt::format("there is no file or folder {}", Quoted(argument)));
      files.push_back({argument, true});
      continue;
    }
    std::vector<std::string> found;
    for (fs::directory_iterator it(argument, error), end; !error && it != end; it.increment(error)) {
      if (it->path().extension() == ".json" && it->is_regular_file()) found.push_back(it->path().string());
    }
    if (error) return IoError(fmt::format("cannot read the folder {}: {}", Quoted(argument), error.message()));
    std::ranges::sort(found);
    for (const std::string& path : found) files.push_back({path, false});
  }
  std::map<std::string, bool> seen;
  std::erase_if(files, [&](const InputFile& file) {
    std::error_code error;
    return !seen.emplace(fs::weakly_canonical(file.path, error).string(), true).second;
  });
  return files;
}

Result<std::vector<ExperimentResult>> ReadResults(const std::vector<std::string>& arguments) {
  TC_ASSIGN_OR_RETURN(const auto files, ListFiles(arguments));
  std::vector<ExperimentResult> results;
  std::map<std::string, std::string> file_of;
  for (const InputFile& file : files) {
    const Result<Json> json = ReadJsonFile(file.path);
    if (!json.ok()) {  // perhaps a result that was cut short: the page must not hide that
      return Status(json.status().code(), json.status().message() + "; make it again, or leave the file out");
    }
    if (!json->is_object() || !json->contains("experiment")) {
      if (!file.named) continue;
      return InvalidArgument(file.path + " is not the result of an experiment: it has no key 'experiment'");
    }
    TC_ASSIGN_OR_RETURN(ExperimentResult result, experiments::ReadResult(file.path));
    const auto [other, first] = file_of.emplace(result.experiment, file.path);
    if (!first) {
      return InvalidArgument(fmt::format("{} and {} are both results of the experiment {}; leave one out",
                                         other->second, file.path, Quoted(result.experiment)));
    }
    results.push_back(std::move(result));
  }
  if (results.empty()) {
    return NotFound(fmt::format("there is no experiment's result in {}; make some with tensorcache reproduce",
                                Quoted(arguments.size() == 1 ? arguments[0] : "these files and folders")));
  }
  return results;
}

// One file for each figure; nothing is written if two have one name.
Status WriteFigures(const std::vector<ExperimentResult>& results, const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const ExperimentResult& result : results) {
    for (const experiments::Figure& figure : result.figures) {
      const std::string name = experiments::report::FigureFileName(result, figure);
      if (!files.emplace(name, experiments::report::ChartFile(figure)).second) {
        return InvalidArgument(
            fmt::format("two figures of {} would be the file {}; their ids must differ in more than "
                        "case and punctuation",
                        Quoted(result.experiment), Quoted(name)));
      }
    }
  }
  TC_RETURN_IF_ERROR(MakeFolder(folder));
  for (const auto& [name, svg] : files) TC_RETURN_IF_ERROR(WriteOutput((fs::path(folder) / name).string(), svg));
  return OkStatus();
}

std::string Counted(size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

Status RunReport(const CommandLine& line) {
  std::vector<std::string> inputs;
  std::string out = "report.html", svg;
  Options app(
      "Shows results of 'tensorcache reproduce' on one HTML page that needs nothing else: figures, tables beside the "
      "paper's numbers, and how each was made. Of a folder, every *.json that is an experiment's result is taken; two "
      "results of one experiment are an error.");
  app.add_option("RESULT", inputs, "Result files, and folders of them")->required()->type_name("DIR|FILE");
  app.add_option("--out", out, "The page to write")->type_name("FILE")->capture_default_str();
  app.add_option("--svg", svg, "Also write each figure to DIR/<experiment>-<figure>.svg")->type_name("DIR");
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  if (out.empty()) return InvalidArgument("--out needs a file name");
  TC_RETURN_IF_ERROR(CheckOutputPath(out));
  TC_ASSIGN_OR_RETURN(const std::vector<ExperimentResult> results, ReadResults(inputs));
  size_t figures = 0, tables = 0;
  for (const ExperimentResult& result : results) {
    figures += result.figures.size();
    tables += result.tables.size();
  }
  if (!svg.empty()) TC_RETURN_IF_ERROR(WriteFigures(results, svg));
  TC_RETURN_IF_ERROR(WriteOutput(out, experiments::report::PageHtml(results)));
  Print("report   {} ({}, {}, {})\n", out, Counted(results.size(), "experiment"), Counted(figures, "figure"),
        Counted(tables, "table"));
  if (!svg.empty()) Print("figures  {} in {}\n", Counted(figures, "SVG file"), svg);
  return OkStatus();
}

}  // namespace tensorcache::cli
