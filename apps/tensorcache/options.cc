#include "apps/tensorcache/options.h"

#include <algorithm>

#include "apps/tensorcache/output.h"

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

Status Unexpected(const CLI::App& app, const std::string& path, const std::string& argument) {
  if (argument.starts_with('-')) {
    const std::string name = argument.substr(0, argument.find('='));
    const std::vector<std::string> names = OptionNames(app);
    const std::vector<std::string_view> views(names.begin(), names.end());
    const std::string hint = DidYouMean(name, views);
    return InvalidArgument(fmt::format("'{}' has no option {}{}", path, Quoted(name),
                                       hint.empty() ? fmt::format("; see {} --help", path) : hint));
  }
  return InvalidArgument(fmt::format("'{}' takes no argument {}; see {} --help", path, Quoted(argument), path));
}

}  // namespace

Result<bool> ParseOptions(Options& options, const CommandLine& line) {
  const std::string path = line.Path();
  options.name(path);
  const auto args = line.Args();
  try {
    options.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 takes them off the back
  } catch (const CLI::CallForHelp&) {
    PrintText(options.help());
    return false;
  } catch (const CLI::ParseError& error) {
    if (const auto rest = options.remaining(); !rest.empty()) return Unexpected(options, path, rest.front());
    return InvalidArgument(fmt::format("{}; see {} --help", OneLine(error.what()), path));
  }
  return true;
}

}  // namespace tensorcache::cli
