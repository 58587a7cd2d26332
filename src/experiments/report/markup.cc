#include "experiments/report/markup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/text.h"

namespace tensorcache::experiments::report {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

void AppendEscaped(std::string_view valid, std::string& out) {
  for (const char c : valid) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      case '\t':
      case '\n': out += c; break;
      default:
        // XML 1.0 knows no other control characters, not even as references.
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          out += kReplacement;
        } else {
          out += c;
        }
    }
  }
}

// A number and its unit stay on one line.
std::string KeepUnits(std::string_view text) {
  constexpr std::string_view kUnits[] = {"%", "nats", "GB", "KiB", "s", "±"};
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i + 1);
    const bool stays = text[i] == ' ' && i > 0 && text[i - 1] >= '0' && text[i - 1] <= '9' &&
                       std::ranges::any_of(kUnits, [&](std::string_view unit) {
                         return rest.starts_with(unit) && (rest.size() == unit.size() || !IsLetter(rest[unit.size()]));
                       });
    if (stays) {
      out += "\u00A0";
    } else {
      out += text[i];
    }
  }
  return out;
}

bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Of one character, in em.
double CharWidth(unsigned char c) {
  if (c >= 0x80) return 0.8;
  if (std::string_view("ijlI.,:;'|!").find(static_cast<char>(c)) != std::string_view::npos) return 0.34;
  if (std::string_view(" ()[]{}/frt-").find(static_cast<char>(c)) != std::string_view::npos) return 0.41;
  if (std::string_view("mwMW%@").find(static_cast<char>(c)) != std::string_view::npos) return 0.96;
  if (c >= 'A' && c <= 'Z') return 0.72;
  return 0.635;
}

}  // namespace

std::string Escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t valid = Utf8ErrorOffset(text);
    AppendEscaped(text.substr(0, valid), out);
    text.remove_prefix(valid);
    if (text.empty()) break;
    out += kReplacement;
    text.remove_prefix(1);
  }
  return out;
}

std::string Prose(std::string_view text) {
  std::string out;
  while (true) {
    const size_t open = text.find('`');
    const size_t close = open == text.npos ? text.npos : text.find('`', open + 1);
    if (close == text.npos) return out + Escape(KeepUnits(text));
    out += Escape(KeepUnits(text.substr(0, open))) + "<code>" + Escape(text.substr(open + 1, close - open - 1)) +
           "</code>";
    text.remove_prefix(close + 1);
  }
}

std::string Slug(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c >= 'A' && c <= 'Z') {
      out += static_cast<char>(c - 'A' + 'a');
    } else {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
      out += plain ? c : '-';
    }
  }
  return out.empty() ? "-" : out;
}

std::string Coordinate(double value) {
  TC_CHECK(std::isfinite(value));
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

double TextWidth(std::string_view text, double font_size) {
  double width = 0;
  for (const char c : text) {
    if (!Continues(c)) width += CharWidth(static_cast<unsigned char>(c));
  }
  return width * font_size;
}

std::string Shortened(std::string_view text, double font_size, double width) {
  const double dots = TextWidth("…", font_size);
  double before = 0;  // in em, of the characters that were passed
  size_t kept = 0;    // bytes that leave room for the dots
  for (size_t i = 0; i < text.size(); ++i) {
    if (Continues(text[i])) continue;
    if (before * font_size + dots <= width) kept = i;
    before += CharWidth(static_cast<unsigned char>(text[i]));
    if (before * font_size <= width) continue;
    text = text.substr(0, kept);
    while (text.ends_with(' ')) text.remove_suffix(1);
    return std::string(text) + "…";
  }
  return std::string(text);
}

}  // namespace tensorcache::experiments::report
