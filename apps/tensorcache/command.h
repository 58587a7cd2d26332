// A command of the program: a name, a line of help, and a function. main.cc and the commands with parts (bench,
// reproduce) hold tables of these.
//
// CLI11 parses the options of one command, but does not find the command, although it has subcommands: all of them
// would be set up for each call, an unknown name would not be answered with the nearest one, and a command of
// tensorcache-train has to be handed on with its words as they are, to a process that alone loads LibTorch.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tensorcache/status.h"

namespace tensorcache::cli {

// The words of a command line, as they were given; the first so many name the command.
struct CommandLine {
  std::vector<std::string> words;  // "tensorcache", "reproduce", "capacity", "--quick"
  size_t names = 1;

  // "tensorcache reproduce"
  std::string Path() const;
  std::span<const std::string> Args() const { return std::span(words).subspan(names); }
};

struct Command {
  const char* name;
  const char* help;
  Status (*run)(const CommandLine& line);
};

// Runs the command named by the first argument. --help, or no argument, prints the table after `description`; `help x` is
// `x --help`. An unknown name is an error that names the nearest known one.
Status Dispatch(std::span<const Command> commands, const std::string& description, const CommandLine& line);

// One function each, in cmd_<name>.cc.
Status RunAdapt(const CommandLine& line);
Status RunBench(const CommandLine& line);
Status RunBenchDecode(const CommandLine& line);
Status RunBenchMemory(const CommandLine& line);
Status RunBenchPrefill(const CommandLine& line);
Status RunBenchTrain(const CommandLine& line);
Status RunDemo(const CommandLine& line);
Status RunEval(const CommandLine& line);
Status RunExport(const CommandLine& line);
Status RunGenerate(const CommandLine& line);
Status RunImport(const CommandLine& line);
Status RunModelInfo(const CommandLine& line);
Status RunReport(const CommandLine& line);
Status RunReproduce(const CommandLine& line);
Status RunServe(const CommandLine& line);
Status RunTokenizer(const CommandLine& line);
Status RunTrain(const CommandLine& line);

}  // namespace tensorcache::cli
