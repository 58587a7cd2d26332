#include <fmt/core.h>

#include <string_view>

#include "apps/tensorcache/command.h"
#include "core/text.h"

namespace tensorcache::cli {
namespace {

void PrintHelp(std::span<const Command> commands, const std::string& description, const std::string& path) {
  fmt::print("{}\n\nUsage: {} COMMAND [OPTIONS]\n\nCommands:\n", description, path);
  for (const Command& command : commands) fmt::print("  {:<12} {}\n", command.name, command.help);
  fmt::print("\n`{} COMMAND --help` lists a command's options.\n", path);
}

}  // namespace

Status Dispatch(std::span<const Command> commands, const std::string& description, const CommandLine& line) {
  if (line.args.empty() || line.args[0] == "--help" || line.args[0] == "-h") {
    PrintHelp(commands, description, line.path);
    return OkStatus();
  }
  const std::string& name = line.args[0];
  std::vector<std::string_view> names;
  for (const Command& command : commands) {
    if (name == command.name) {
      return command.run({line.path + " " + name, {line.args.begin() + 1, line.args.end()}});
    }
    names.push_back(command.name);
  }
  const bool option = name.starts_with("-");
  if (option) names = {"--help"};
  if (option && line.path == "tensorcache") names.push_back("--version");
  const std::string hint = DidYouMean(name, names);
  return InvalidArgument(fmt::format("'{}' has no {} {}{}", line.path, option ? "option" : "command", Quoted(name),
                                     hint.empty() ? fmt::format("; see {} --help", line.path) : hint));
}

}  // namespace tensorcache::cli
