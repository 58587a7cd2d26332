#include <algorithm>
#include <string_view>

#include "apps/tensorcache/command.h"
#include "apps/tensorcache/output.h"
#include "core/text.h"

namespace tensorcache::cli {
namespace {

void PrintHelp(std::span<const Command> commands, const std::string& description, const std::string& path) {
  Print("{}\n\nUsage: {} COMMAND [OPTIONS]\n\nCommands:\n", description, path);
  for (const Command& command : commands) Print("  {:<12} {}\n", command.name, command.help);
  Print("\n`{} COMMAND --help` lists a command's options.\n", path);
}

Status Unknown(std::span<const Command> commands, const std::string& path, const std::string& name) {
  const bool option = name.starts_with('-');
  std::vector<std::string_view> names;
  if (option) {
    names = {"--help"};
    if (path == "tensorcache") names.emplace_back("--version");
  } else {
    for (const Command& command : commands) names.emplace_back(command.name);
  }
  const std::string hint = DidYouMean(name, names);
  return InvalidArgument(fmt::format("'{}' has no {} {}{}", path, option ? "option" : "command", Quoted(name),
                                     hint.empty() ? fmt::format("; see {} --help", path) : hint));
}

}  // namespace

std::string CommandLine::Path() const { return fmt::format("{}", fmt::join(std::span(words).first(names), " ")); }

Status Dispatch(std::span<const Command> commands, const std::string& description, const CommandLine& line) {
  CommandLine rest = line;
  if (const auto args = line.Args(); !args.empty() && args[0] == "help") {
    rest.words.erase(rest.words.begin() + static_cast<ptrdiff_t>(line.names));
    rest.words.emplace_back("--help");
  }
  const std::string path = line.Path();
  if (rest.Args().empty() || rest.Args()[0] == "--help" || rest.Args()[0] == "-h") {
    PrintHelp(commands, description, path);
    return OkStatus();
  }
  const std::string& name = rest.Args()[0];
  const auto found = std::ranges::find(commands, name, &Command::name);
  if (found == commands.end()) return Unknown(commands, path, name);
  ++rest.names;
  return found->run(rest);
}

}  // namespace tensorcache::cli
