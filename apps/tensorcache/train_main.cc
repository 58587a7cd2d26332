// `tensorcache-train`: the commands that need LibTorch. `tensorcache` starts it; there is no need to do so by hand.
#include <unistd.h>

#include "apps/tensorcache/command.h"
#include "apps/tensorcache/program.h"
#include "train/tensor_pool.h"

namespace {

using namespace tensorcache::cli;

constexpr Command kBenches[] = {
    {"train", "Training, method by method, beside sgemm", RunBenchTrain},
};

tensorcache::Status RunTrainBenches(const CommandLine& line) {
  return Dispatch(kBenches, "Measures the speed of training.", line);
}

constexpr Command kCommands[] = {
    {"train", "Train a model, or go on with a training run", RunTrain},
    {"adapt", "Give a pretrained model a memory, and train it on text", RunAdapt},
    {"bench", "Measure the speed of training", RunTrainBenches},
};

}  // namespace

int main(int argc, char** argv) {
  // libgomp has read the environment by now. Started by its own name, by which lists of processes show a long run.
  if (LimitSpinning()) execv(TrainProgramPath().c_str(), argv);
  tensorcache::train::PoolTensors();
  return RunProgram(kCommands, "The commands of tensorcache that need LibTorch.", argc, argv);
}
