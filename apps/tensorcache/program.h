// What the program's executables share: `tensorcache`, which starts in milliseconds, and `tensorcache-train` beside it, which
// holds the commands that need LibTorch and is started by the first when one of them is asked for.
#pragma once

#include <span>
#include <string>

#include "apps/tensorcache/command.h"

namespace tensorcache::cli {

// main() of an executable with these commands: dispatch, one line for an error, the exit status.
int RunProgram(std::span<const Command> commands, const std::string& description, int argc, char** argv);

// The path of tensorcache-train, beside this program. It is not there in a build without the train half.
std::string TrainProgramPath();

// Has Torch's threads spin but briefly where they wait for each other, unless the environment says how they wait.
// Returns whether that is new to the environment: a process that has loaded Torch has to be started again then.
bool LimitSpinning();

// Becomes tensorcache-train with this command line. Returns only if that cannot be: a build without the train half.
Status RunInTrainProgram(const CommandLine& line);

}  // namespace tensorcache::cli
