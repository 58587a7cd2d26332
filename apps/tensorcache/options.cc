#include "apps/tensorcache/options.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/text.h"

namespace tensorcache::cli {
namespace {

// CLI11 speaks in several lines and sentences; an error here is one line.
std::string OneLine(std::string text) {
  constexpr std::string_view kConversion = "Could not convert: ", kIs = " = ";  // --context = abc
  if (const size_t is = text.find(kIs); text.starts_with(kConversion) && is != text.npos) {
    return fmt::format("{} cannot be {}", text.substr(kConversion.size(), is - kConversion.size()),
                       Quoted(text.substr(is + kIs.size())));
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

Status Unexpected(const CLI::App& app, const CommandLine& line, const std::string& argument) {
  if (argument.starts_with("-")) {
    const std::string name = argument.substr(0, argument.find('='));
    const std::vector<std::string> names = OptionNames(app);
    const std::vector<std::string_view> views(names.begin(), names.end());
    const std::string hint = DidYouMean(name, views);
    return InvalidArgument(fmt::format("'{}' has no option {}{}", line.path, Quoted(name),
                                       hint.empty() ? fmt::format("; see {} --help", line.path) : hint));
  }
  return InvalidArgument(
      fmt::format("'{}' takes no argument {}; see {} --help", line.path, Quoted(argument), line.path));
}

}  // namespace

Result<bool> ParseOptions(CLI::App& app, const CommandLine& line) {
  app.name(line.path);
  std::vector<std::string> reversed(line.args.rbegin(), line.args.rend());  // CLI11 takes them off the back
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    if (const auto rest = app.remaining(); !rest.empty()) return Unexpected(app, line, rest.front());
    return InvalidArgument(fmt::format("{}; see {} --help", OneLine(error.what()), line.path));
  }
  return true;
}

}  // namespace tensorcache::cli
