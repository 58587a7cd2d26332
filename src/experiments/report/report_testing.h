// For tests of the report: a strict reader of markup, and results to show.
#pragma once

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/result.h"

namespace tensorcache::experiments::report {

inline size_t Occurrences(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

// Reads HTML as strictly as XML: every element is closed in its turn (but for <meta> and <!DOCTYPE>), every attribute has
// a value in double quotes and stands once, every id is unique, every reference to an id has its target, and < and & are
// escaped.
class MarkupReader {
 public:
  explicit MarkupReader(std::string_view text) : text_(text) {}

  // The first mistake, or "".
  std::string Error() {
    while (error_.empty() && at_ < text_.size()) {
      if (text_[at_] == '<') {
        Tag();
      } else {
        Content();
      }
    }
    if (error_.empty() && !open_.empty()) Fail("not closed: " + open_.back());
    for (const std::string& id : wanted_) {
      if (error_.empty() && !ids_.contains(id)) error_ = "no element has the id " + id;
    }
    return error_;
  }

 private:
  void Fail(const std::string& what) {
    if (error_.empty()) error_ = what + " before: " + std::string(text_.substr(at_, 60));
  }

  void Content() {
    const size_t end = std::min(text_.find('<', at_), text_.size());
    const std::string_view text = text_.substr(at_, end - at_);
    if (open_.empty() && text.find_first_not_of(" \n") != text.npos) Fail("text outside of the document");
    if (open_.empty() || open_.back() != "style") References(text);
    at_ = end;
  }

  void References(std::string_view text) {
    if (text.find('>') != text.npos) Fail("a bare >");
    for (size_t at = text.find('&'); at != text.npos; at = text.find('&', at + 1)) {
      const std::string_view rest = text.substr(at);
      bool known = false;
      for (const std::string_view entity : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"})
        known |= rest.starts_with(entity);
      if (!known) Fail("a bare &");
    }
  }

  void Tag() {
    if (text_.substr(at_).starts_with("<!DOCTYPE html>") || text_.substr(at_).starts_with("<?xml ")) {
      if (!open_.empty() || !ids_.empty()) return Fail("a declaration inside");
      at_ = text_.find('>', at_) + 1;
      return;
    }
    ++at_;
    const bool closes = Take("/");
    const std::string name = Word();
    if (name.empty()) return Fail("a bare <");
    if (closes) {
      if (!Take(">")) return Fail("a strange end tag");
      if (open_.empty() || open_.back() != name) return Fail("</" + name + "> out of turn");
      open_.pop_back();
      return;
    }
    std::set<std::string> attributes;
    while (error_.empty() && Take(" ")) {
      const std::string attribute = Word();
      if (attribute.empty() || !attributes.insert(attribute).second || !Take("=\"")) return Fail("a strange attribute");
      const size_t end = text_.find('"', at_);
      if (end == text_.npos) return Fail("an open quote");
      Value(attribute, text_.substr(at_, end - at_));
      at_ = end + 1;
    }
    if (Take("/>")) return;
    if (!Take(">")) return Fail("a strange tag <" + name);
    if (name != "meta") open_.push_back(name);
  }

  void Value(const std::string& name, std::string_view value) {
    if (value.find('<') != value.npos) Fail("a bare < in an attribute");
    References(value);
    if (value.find("nan") != value.npos && name != "class") Fail("not a number");
    if (value.find("inf") != value.npos && name == "d") Fail("not a number");
    if (name == "id" && !ids_.insert(std::string(value)).second) Fail("an id twice");
    if (name == "href" && value.starts_with('#')) wanted_.insert(std::string(value.substr(1)));
    if (name == "clip-path") wanted_.insert(std::string(value.substr(5, value.size() - 6)));
    if (name == "aria-labelledby") {
      wanted_.insert(std::string(value.substr(0, value.find(' '))));
      wanted_.insert(std::string(value.substr(value.find(' ') + 1)));
    }
  }

  bool Take(std::string_view part) {
    if (!text_.substr(at_).starts_with(part)) return false;
    at_ += part.size();
    return true;
  }
  std::string Word() {
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '-')) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<std::string> open_;
  std::set<std::string> ids_, wanted_;
  std::string error_;
};

inline std::string MarkupError(std::string_view text) { return MarkupReader(text).Error(); }

struct SampleMethod {
  const char* method;
  const char* name;
  double height;  // of its curve, between 0 and 1
};
constexpr SampleMethod kSampleMethods[] = {{"full", "Full KV", 1.0},
                                           {"window", "Window KV", 0.063},
                                           {"streaming_llm", "StreamingLLM", 0.062},
                                           {"infini", "Infini-attention", 0.4},
                                           {"tensor_cache", "Tensor Cache", 1.0}};

// Five methods at powers of two, as most figures have them: two pairs of curves all but coincide.
inline Figure SampleFigure(const std::string& id, const std::string& title, bool log_y) {
  Figure figure{.id = id,
                .title = title,
                .note = "Bars: deviation over three seeds.",
                .x = {.title = "context length", .unit = "tokens", .log = true},
                .y = {.title = log_y ? "state" : "answer accuracy", .unit = log_y ? "bytes" : "", .log = log_y},
                .guides = {{.x = 512.0, .label = "trained length"}}};
  if (!log_y) figure.guides.push_back({.y = 0.0625, .label = "chance"});
  for (const bool paper : {false, true}) {
    for (const SampleMethod& method : kSampleMethods) {
      Series series{.name = method.name, .method = method.method, .paper = paper};
      if (paper) series.name += " (paper)";
      for (double x = 256; x <= 16384; x *= 2) {
        const double slope = series.method == "infini" ? 0.04 * std::log2(x / 256) : 0;
        const double y = method.height - slope - (paper ? 0.02 * method.height : 0);
        series.points.push_back({.x = x,
                                 .y = log_y ? y * 1e6 * (series.method == "full" ? x : 1000) : y,
                                 .error = log_y || slope == 0 ? 0 : 0.05});
      }
      figure.series.push_back(std::move(series));
    }
  }
  return figure;
}

inline ExperimentResult SampleResult(const std::string& experiment) {
  const bool state = experiment == "scaling";
  ExperimentResult result{
      .experiment = experiment,
      .title = "About " + experiment,
      .paper = "Table 1",
      .setup = "Two layers of `width` 64.",
      .findings = {"Tensor Cache answers every query.", "Window KV does not."},
      .made = {.version = "0.1.0",
               .commit = "0123456789",
               .build = "Release",
               .cpu = "A CPU",
               .threads = 2,
               .command = "tensorcache reproduce " + experiment,
               .budget = "full",
               .seeds = {1337, 2027, 3037},
               .seconds = 5210},
      .figures = {SampleFigure("curve", state ? "State against context" : "Accuracy against context", state)},
      .runs = {{.name = experiment + "-full",
                .steps = 300,
                .tokens = 1234567,
                .seconds = 42,
                .loss = 0.5,
                .changes = "cache.method=full"}}};
  Table table{.id = "accuracy", .title = "Answer accuracy", .note = "Chance is 0.0625.", .row_title = "Gap"};
  for (const SampleMethod& method : kSampleMethods) {
    table.columns.push_back({.title = method.name, .group = "Accuracy", .better = Better::kHigher});
  }
  for (const double gap : {24.0, 36.0, 48.0}) {
    Row row{.label = std::to_string(static_cast<int>(gap))};
    for (const SampleMethod& method : kSampleMethods) {
      row.cells.push_back({.value = method.height * 24 / gap, .std = 0.01, .n = 3, .paper = method.height});
    }
    table.rows.push_back(std::move(row));
  }
  result.tables.push_back(std::move(table));
  return result;
}

}  // namespace tensorcache::experiments::report
