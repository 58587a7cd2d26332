// The program `tensorcache`: a table of commands.
#include "apps/tensorcache/command.h"
#include "apps/tensorcache/program.h"

namespace {

using namespace tensorcache::cli;

constexpr Command kCommands[] = {
    {"demo", "Three small models learn to remember, and one of them reads a million tokens (3 minutes)", RunDemo},
    {"train", "Train a model, or go on with a training run", RunInTrainProgram},
    {"adapt", "Give a pretrained model a memory, and train it on text", RunInTrainProgram},
    {"import", "Take over a model that others trained: a Hugging Face folder or a llama2.c file", RunImport},
    {"export", "Write a model as a folder that Hugging Face's library loads", RunExport},
    {"generate", "Go on with a text: from a prompt, a file or a saved session", RunGenerate},
    {"serve", "Serve a model over HTTP, as OpenAI's clients expect it", RunServe},
    {"eval", "Measure how well a model predicts a text, by context length; compare methods and weights", RunEval},
    {"info", "What a checkpoint is, what its memory has learned, how large its sessions are", RunModelInfo},
    {"tokenizer", "Train a tokenizer, turn text into tokens and back, look at one, measure its speed", RunTokenizer},
    {"bench", "Measure speed, each row beside the limit of this machine", RunBench},
    {"reproduce", "Repeat an experiment of the Tensor Cache paper and print it beside the published figures",
     RunReproduce},
    {"report", "Show the results of experiments on one HTML page, and their figures as SVG", RunReport},
};

constexpr char kDescription[] =
    "Tensor Cache: attention over a window of recent tokens, and a fixed-size associative memory of all earlier ones.";

}  // namespace

int main(int argc, char** argv) { return RunProgram(kCommands, kDescription, argc, argv); }
