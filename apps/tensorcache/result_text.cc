#include "apps/tensorcache/result_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/tensorcache/terminal.h"

namespace tensorcache::cli {
namespace {

using experiments::Cell;
using experiments::Column;
using experiments::Table;

std::string Number(double value, const std::optional<double>& std, const Column& column) {
  const int digits = static_cast<int>(column.digits);
  if (!std) return fmt::format("{:.{}f}", value, digits);
  return fmt::format("{:.{}f}±{:.{}f}", value, digits, *std, digits);
}

// In a locale without UTF-8 the letters that titles use are spelled out.
std::string ForTerminal(std::string text) {
  if (Utf8Terminal()) return text;
  constexpr std::pair<std::string_view, std::string_view> kSpelled[] = {
      {"±", "+-"}, {"σ", "sigmoid"}, {"λ", "lambda"}, {"η", "eta"}, {"…", "..."}, {"×", "x"}, {"≥", ">="}};
  for (const auto& [letter, spelled] : kSpelled) {
    for (size_t at = 0; (at = text.find(letter, at)) != text.npos; at += spelled.size()) {
      text.replace(at, letter.size(), spelled);
    }
  }
  return text;
}

std::string CellText(const Cell& cell, const Column& column) {
  if (!cell.text.empty()) return cell.text;
  std::string text = cell.value ? Number(*cell.value, cell.std, column) : "-";
  if (cell.paper) text += fmt::format(" [{}]", Number(*cell.paper, cell.paper_std, column));
  return ForTerminal(text);
}

std::string Heading(const Column& column) {
  return ForTerminal(column.unit.empty() ? column.title : fmt::format("{}, {}", column.title, column.unit));
}

// Paragraphs of at most `columns`.
std::string Wrapped(const std::string& raw, size_t columns, const std::string& indent) {
  const std::string text = ForTerminal(raw);
  std::string out, line;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && TextColumns(line) + 1 + TextColumns(word) > columns) {
      out += indent + line + "\n";
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
    begin = end + 1;
  }
  return out + indent + line + "\n";
}

}  // namespace

std::string TableText(const Table& table) {
  // Row 0 is the groups', row 1 the headings'.
  std::vector<std::vector<std::string>> lines = {{""}, {table.row_title}};
  bool grouped = false;
  std::string group;
  for (const Column& column : table.columns) {
    lines[0].push_back(column.group == group ? "" : column.group);
    group = column.group;
    grouped = grouped || !group.empty();
    lines[1].push_back(Heading(column));
  }
  for (const experiments::Row& row : table.rows) {
    std::vector<std::string> line = {ForTerminal(row.label)};
    for (size_t i = 0; i < row.cells.size(); ++i) line.push_back(CellText(row.cells[i], table.columns[i]));
    lines.push_back(std::move(line));
  }
  if (!grouped) lines.erase(lines.begin());
  std::string text = ForTerminal(table.title) + "\n";
  std::vector<size_t> widths(table.columns.size() + 1, 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], TextColumns(line[i]));
  }
  for (const auto& line : lines) {
    std::string out = line[0] + std::string(widths[0] - TextColumns(line[0]), ' ');
    for (size_t i = 1; i < line.size(); ++i) out += "  " + PadLeft(line[i], widths[i]);
    out.erase(out.find_last_not_of(' ') + 1);
    text += "  " + out + "\n";
  }
  if (!table.note.empty()) text += Wrapped(table.note, 110, "  ");
  return text;
}

std::string ResultText(const experiments::ExperimentResult& result) {
  std::string text = ForTerminal(fmt::format("{} ({})\n", result.title, result.paper));
  text += Wrapped(result.setup, 110, "  ");
  bool published = false;
  for (const Table& table : result.tables) {
    text += "\n" + TableText(table);
    for (const experiments::Row& row : table.rows) {
      for (const Cell& cell : row.cells) published = published || cell.paper.has_value();
    }
  }
  if (published) text += "\n  In brackets: the published figures.\n";
  text += '\n';
  for (const std::string& finding : result.findings) text += Wrapped(finding, 110, "  ");
  return text;
}

}  // namespace tensorcache::cli
