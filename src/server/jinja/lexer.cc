#include "server/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "server/jinja/value.h"

namespace tensorcache::server::jinja {
namespace {

bool IsSpace(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool IsNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool IsNamePart(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    for (size_t i = 0; i < source.size(); ++i) {  // line ends as Python reads them
      if (source[i] == '\r') {
        source_ += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      } else {
        source_ += source[i];
      }
    }
    if (source_.ends_with('\n')) source_.pop_back();
  }

  std::vector<Token> Run() {
    while (at_ < source_.size()) LexText();
    Add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool Sees(std::string_view text) const { return std::string_view(source_).substr(at_).starts_with(text); }
  void Skip(size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
  }
  void Add(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  [[noreturn]] void Fail(const std::string& problem) const {
    throw TemplateError(fmt::format("line {}: {}", line_, problem));
  }

  // Text up to the next tag, and the tag.
  void LexText() {
    size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == source_.npos || tag + 1 == source_.size()) return AddText(source_.size(), false, ' ');
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1], sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    AddText(tag, kind != '{', sign);
    Skip(2 + (sign == '-' || sign == '+' ? 1 : 0));
    if (kind == '#') return SkipComment();
    if (kind == '%' && LexRaw()) return;
    Add(kind == '{' ? Token::Kind::kOutputBegin : Token::Kind::kBlockBegin, "");
    LexInside(kind == '{' ? "}}" : "%}");
  }

  // The text before a tag at `end`, without what the tag takes away of it.
  void AddText(size_t end, bool is_block, char sign) {
    std::string text = source_.substr(at_, end - at_);
    if (sign == '-') {
      while (!text.empty() && IsSpace(text.back())) text.pop_back();
    } else if (is_block && sign != '+') {
      const size_t line = text.rfind('\n') + 1;
      const bool blank = std::all_of(text.begin() + static_cast<ptrdiff_t>(line), text.end(), IsSpace);
      if ((line > 0 || at_line_start_) && blank) text.resize(line);
    }
    if (!text.empty()) Add(Token::Kind::kText, text);
    Skip(end - at_);
  }

  // What follows the end of a tag: white space after "-", one line end after a block.
  void EndTag(char sign, bool is_block) {
    const size_t begin = at_;
    if (sign == '-') {
      size_t end = at_;
      while (end < source_.size() && IsSpace(source_[end])) ++end;
      Skip(end - at_);
    } else if (is_block && sign != '+' && Sees("\n")) {
      Skip(1);
    }
    at_line_start_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  void SkipComment() {
    const size_t end = source_.find("#}", at_);
    if (end == source_.npos) Fail("a comment {# has no end");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    Skip(end + 2 - at_);
    EndTag(sign, true);
  }

  // {% raw %} ... {% endraw %}, of which the first {% was read.
  bool LexRaw() {
    size_t at = at_;
    const auto word = [&](std::string_view name) {
      while (at < source_.size() && IsSpace(source_[at])) ++at;
      if (!std::string_view(source_).substr(at).starts_with(name)) return false;
      at += name.size();
      while (at < source_.size() && IsSpace(source_[at])) ++at;
      return true;
    };
    const auto end_of_tag = [&](char* sign) {
      *sign = at < source_.size() ? source_[at] : ' ';
      if (*sign == '-' || *sign == '+') ++at;
      if (!std::string_view(source_).substr(at).starts_with("%}")) return false;
      at += 2;
      return true;
    };
    char sign = ' ';
    if (!word("raw") || !end_of_tag(&sign)) return false;
    Skip(at - at_);
    EndTag(sign, true);
    for (size_t tag = source_.find("{%", at_); tag != source_.npos; tag = source_.find("{%", tag + 1)) {
      at = tag + 2;
      const char before = at < source_.size() ? source_[at] : ' ';
      if (before == '-' || before == '+') ++at;
      if (!word("endraw") || !end_of_tag(&sign)) continue;
      AddText(tag, true, before);
      Skip(at - at_);
      EndTag(sign, true);
      return true;
    }
    Fail("{% raw %} has no {% endraw %}");
  }

  // The tokens of a tag, and its end.
  void LexInside(std::string_view end) {
    int open = 0;  // brackets: "}}" may close two of them
    while (true) {
      while (at_ < source_.size() && IsSpace(source_[at_])) Skip(1);
      if (at_ == source_.size()) Fail(fmt::format("a tag has no end {}", end));
      const char sign = Sees("-") || Sees("+") ? source_[at_] : ' ';
      const size_t at_end = at_ + (sign == ' ' ? 0 : 1);
      if (open == 0 && std::string_view(source_).substr(at_end).starts_with(end)) {
        Skip(at_end + 2 - at_);
        Add(end == "}}" ? Token::Kind::kOutputEnd : Token::Kind::kBlockEnd, "");
        return EndTag(end == "}}" && sign == '+' ? ' ' : sign, end == "%}");
      }
      LexToken(&open);
    }
  }

  void LexToken(int* open) {
    const char c = source_[at_];
    if (IsNameStart(c)) return AddWhile(Token::Kind::kName, IsNamePart);
    if (IsDigit(c)) return LexNumber();
    if (c == '"' || c == '\'') return LexString(c);
    static constexpr std::array<std::string_view, 28> kSigns{"==", "!=", "<=", ">=", "//", "**", "{", "}", "(", ")",
                                                             "[",  "]",  ",",  ":",  ".",  "|",  "~", "+", "-", "*",
                                                             "/",  "%",  "<",  ">",  "=",  ";",  "!", "&"};
    for (const std::string_view sign : kSigns) {
      if (!Sees(sign)) continue;
      if (sign == "{" || sign == "(" || sign == "[") ++*open;
      if ((sign == "}" || sign == ")" || sign == "]") && --*open < 0) Fail(fmt::format("'{}' closes nothing", sign));
      Add(Token::Kind::kSign, std::string(sign));
      return Skip(sign.size());
    }
    Fail("there is a character that means nothing here");
  }

  void AddWhile(Token::Kind kind, bool (*is_part)(char)) {
    size_t end = at_;
    while (end < source_.size() && is_part(source_[end])) ++end;
    Add(kind, source_.substr(at_, end - at_));
    Skip(end - at_);
  }

  void LexNumber() {
    size_t end = at_;
    bool is_float = false;
    while (end < source_.size() && (IsDigit(source_[end]) || source_[end] == '_')) ++end;
    if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      is_float = true;
      for (++end; end < source_.size() && IsDigit(source_[end]);) ++end;
    }
    size_t exponent = end + 1;  // behind an e
    if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E') && exponent < source_.size() &&
        IsDigit(source_[exponent])) {
      is_float = true;
      for (end = exponent; end < source_.size() && IsDigit(source_[end]);) ++end;
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    Add(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, text);
    Skip(end - at_);
  }

  void LexString(char quote) {
    std::string text;
    size_t at = at_ + 1;
    for (; at < source_.size() && source_[at] != quote; ++at) {
      if (source_[at] != '\\' || at + 1 == source_.size()) {
        text += source_[at];
        continue;
      }
      const char c = source_[++at];
      switch (c) {
        case 'n': text += '\n'; break;
        case 't': text += '\t'; break;
        case 'r': text += '\r'; break;
        case 'b': text += '\b'; break;
        case 'f': text += '\f'; break;
        case '\n': break;
        case '\\':
        case '\'':
        case '"': text += c; break;
        case 'u':
        case 'x': at = AddEscape(at, c == 'u' ? 4 : 2, &text); break;
        default: text += {'\\', c};
      }
    }
    if (at >= source_.size()) Fail("a string has no end");
    Add(Token::Kind::kString, text);
    Skip(at + 1 - at_);
  }

  // \uXXXX or \xXX, of which the letter is at `at`; returns where its last digit is.
  size_t AddEscape(size_t at, size_t digits, std::string* text) const {
    unsigned code = 0;
    for (size_t i = 1; i <= digits; ++i) {
      const char c = at + i < source_.size() ? source_[at + i] : ' ';
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) Fail("an escape in a string lacks digits");
      code = code * 16 + static_cast<unsigned>(IsDigit(c) ? c - '0' : std::tolower(c) - 'a' + 10);
    }
    if (code >= 0xD800 && code < 0xE000) Fail("an escape in a string is half of a character");
    if (code < 0x80) {
      *text += static_cast<char>(code);
    } else if (code < 0x800) {
      *text += {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
    } else {
      *text += {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
                static_cast<char>(0x80 | (code & 0x3F))};
    }
    return at + digits;
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace tensorcache::server::jinja
