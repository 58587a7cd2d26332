#include "experiments/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "experiments/report/markup.h"
#include "experiments/report/number_text.h"

namespace tensorcache::experiments::report {
namespace {

struct Mark {
  const char* css;
  const char* sign;
  const char* words;  // for those who hear the page
};

Mark MarkOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kEqual: return {"same", "=", "equal"};
    case Verdict::kWithin: return {"same", "≈", "within the deviations"};
    case Verdict::kBetter: return {"good", "✓", "better"};
    case Verdict::kWorse: return {"bad", "✗", "worse"};
    case Verdict::kOther:
    case Verdict::kNone: break;
  }
  return {"same", "Δ", "difference"};
}

std::string Number(double value, const std::optional<double>& deviation, const Column& column) {
  std::string html = FixedText(value, column.digits);
  if (deviation) html += fmt::format(" <span class=\"dev\">± {}</span>", FixedText(*deviation, column.digits));
  return html;
}

std::string Ours(const Cell& cell, const Column& column) {
  if (!cell.text.empty()) return fmt::format("<span class=\"text\">{}</span>", Prose(cell.text));
  if (!cell.value)
    return "<span class=\"none\"><span class=\"vh\">not measured</span><span aria-hidden=\"true\">–</span></span>";
  const std::string count = cell.n > 1 ? fmt::format(" title=\"mean of {}\"", cell.n) : "";
  return fmt::format("<span class=\"ours\"{}>{}</span>", count, Number(*cell.value, cell.std, column));
}

std::string Papers(const Cell& cell, const Column& column) {
  if (!cell.paper) return "";
  const Verdict verdict = Judge(cell, column);
  const Mark mark = MarkOf(verdict);
  const auto marked = [&](const std::string& difference) {
    return fmt::format(
        "<span class=\"diff {0}\" title=\"{1}\"><span class=\"vh\">{1}</span><span "
        "aria-hidden=\"true\">{2}</span>{3}</span>",
        mark.css, mark.words, mark.sign, difference);
  };
  // The sign of equality stands with the number, a difference may go to a line of its own.
  const bool equal = verdict == Verdict::kEqual;
  std::string html = fmt::format("<div class=\"beside\"><span>{}<span class=\"vh\">paper: </span><i>{}</i></span>",
                                 equal ? marked(" ") : "", Number(*cell.paper, cell.paper_std, column));
  if (!equal && verdict != Verdict::kNone) {
    html += marked(fmt::format(" {}", SignedText(*cell.value - *cell.paper, column.digits)));
  }
  return html + "</div>";
}

// The name, with a dot in its curve's colour if it has one; the dot stays with the first word.
std::string Heading(const std::string& name, const NameClasses& names) {
  const auto found = names.find(name);
  if (found == names.end()) return Escape(name);
  const size_t space = std::min(name.find(' '), name.size());
  return fmt::format(
      "<span class=\"curve-name {}\"><span class=\"word\"><span class=\"swatch\"></span>{}</span>{}</span>",
      found->second, Escape(name.substr(0, space)), Escape(name.substr(space)));
}

bool IsTensorCache(const std::string& name, const NameClasses& names) {
  const auto found = names.find(name);
  return found != names.end() && found->second == "m-tensor_cache";
}

// Columns of words stand at the left.
bool IsText(const Table& table, size_t column) {
  return !table.rows.empty() && std::ranges::all_of(table.rows, [&](const Row& row) {
    const Cell& cell = row.cells[column];
    return !cell.text.empty() && !cell.paper;
  });
}

// Tensor Cache's own column is tinted; if there is one alone, it stays in sight on a phone.
std::string ColumnClass(const Table& table, size_t column, const NameClasses& names) {
  const auto ours = [&](const Column& other) { return IsTensorCache(other.title, names); };
  std::string css;
  if (IsText(table, column)) css += " left";
  if (ours(table.columns[column])) css += std::ranges::count_if(table.columns, ours) == 1 ? " tc pin" : " tc";
  return css.empty() ? "" : fmt::format(" class=\"{}\"", css.substr(1));
}

std::string Groups(const Table& table) {
  const auto grouped = [](const Column& column) { return !column.group.empty(); };
  if (std::ranges::none_of(table.columns, grouped)) return "";
  std::string html = "<tr><th class=\"group\"></th>";
  for (size_t i = 0, end = 0; i < table.columns.size(); i = end) {
    const std::string& group = table.columns[i].group;
    for (end = i + 1; end < table.columns.size() && table.columns[end].group == group; ++end) {
    }
    html += fmt::format("<th class=\"group\" scope=\"colgroup\" colspan=\"{}\">{}</th>", end - i,
                        group.empty() ? "" : "<span><b>" + Escape(group) + "</b></span>");
  }
  return html + "</tr>\n";
}

std::string Head(const Table& table, const NameClasses& names) {
  std::string html =
      "<thead>\n" + Groups(table) + fmt::format("<tr><th scope=\"col\">{}</th>", Escape(table.row_title));
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const Column& column = table.columns[i];
    const std::string unit =
        column.unit.empty() ? "" : fmt::format(" <span class=\"unit\">({})</span>", Escape(column.unit));
    html +=
        fmt::format("<th scope=\"col\"{}>{}{}</th>", ColumnClass(table, i, names), Heading(column.title, names), unit);
  }
  return html + "</tr>\n</thead>\n";
}

std::string Body(const Table& table, const NameClasses& names) {
  std::string html = "<tbody>\n";
  for (const Row& row : table.rows) {
    const bool is_short = TextWidth(row.label, 1) < 12;
    html += fmt::format("<tr{}><th scope=\"row\"{}>{}</th>", IsTensorCache(row.label, names) ? " class=\"tc\"" : "",
                        is_short ? " class=\"short\"" : "", Heading(row.label, names));
    for (size_t i = 0; i < table.columns.size(); ++i) {
      html += fmt::format("<td{}>{}{}</td>", ColumnClass(table, i, names), Ours(row.cells[i], table.columns[i]),
                          Papers(row.cells[i], table.columns[i]));
    }
    html += "</tr>\n";
  }
  return html + "</tbody>\n";
}

// What the marks in this table mean; nothing if there are no published numbers.
std::string Key(const Table& table) {
  bool compared = false;
  std::set<Verdict> used;
  for (const Row& row : table.rows) {
    for (size_t i = 0; i < row.cells.size(); ++i) {
      compared |= row.cells[i].paper.has_value();
      used.insert(Judge(row.cells[i], table.columns[i]));
    }
  }
  if (!compared) return "";
  std::string html = "<ul class=\"key\"><li><b>1.0</b> ours</li><li><i>1.0</i> the paper’s</li>";
  used.erase(Verdict::kNone);
  for (const Verdict verdict : used) {
    const Mark mark = MarkOf(verdict);
    html += fmt::format("<li><span class=\"diff {}\">{} {}</span></li>", mark.css, mark.sign, mark.words);
  }
  return html + "</ul>\n";
}

}  // namespace

Verdict Judge(const Cell& cell, const Column& column) {
  if (!cell.value || !cell.paper || !cell.text.empty()) return Verdict::kNone;
  const double difference = *cell.value - *cell.paper;
  if (FixedText(*cell.value, column.digits) == FixedText(*cell.paper, column.digits)) return Verdict::kEqual;
  if (std::abs(difference) <= std::hypot(cell.std.value_or(0), cell.paper_std.value_or(0))) return Verdict::kWithin;
  if (column.better == Better::kNeither) return Verdict::kOther;
  return (difference > 0) == (column.better == Better::kHigher) ? Verdict::kBetter : Verdict::kWorse;
}

std::string TableHtml(const Table& table, const NameClasses& names) {
  std::string html = fmt::format("<div class=\"table\">\n<h3>{}</h3>\n", Escape(table.title));
  html += fmt::format("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table>\n",
                      Escape(table.title));
  html += Head(table, names) + Body(table, names) + "</table></div>\n" + Key(table);
  if (!table.note.empty()) html += fmt::format("<p class=\"note\">{}</p>\n", Prose(table.note));
  return html + "</div>\n";
}

}  // namespace tensorcache::experiments::report
