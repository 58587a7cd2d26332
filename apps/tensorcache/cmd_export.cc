// tensorcache export: a checkpoint of ours becomes a folder that Hugging Face's library loads.
#include "apps/tensorcache/command.h"
#include "apps/tensorcache/model_options.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "apps/tensorcache/terminal.h"
#include "pretrained/export.h"

namespace tensorcache::cli {

Status RunExport(const CommandLine& line) {
  pretrained::ExportOptions options;
  Options app(
      "Writes a model as a folder that AutoModelForCausalLM and AutoTokenizer of Hugging Face's transformers load.\n\n"
      "It becomes a Llama; a Mistral if its cache is a window; a Qwen2 if q, k and v have biases and the output has "
      "none; a "
      "GPT-2 if its positions are learned. What none of these computes is refused, with the reason: layer_norm or an "
      "ungated feed-forward layer with rotary embedding, memories, streaming_llm, rope_ntk_factor.");
  app.add_option("--model", options.model, "The checkpoint folder")->type_name("DIR")->required();
  app.add_option("--out", options.out, "The folder to write to; made if it is not there")->type_name("DIR")->required();
  app.add_flag("--force", options.force, "Replace a model that is in the folder");
  app.add_flag("--drop-memory", options.drop_memory,
               "Of a model of method tensor_cache, write what is left without its memory: a window");
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  Progress progress;
  options.progress = [&](int64_t done, int64_t total) {
    progress.ShowPart(static_cast<double>(done) / static_cast<double>(total), "writing " + BytesText(total));
  };
  TC_ASSIGN_OR_RETURN(const pretrained::ExportReport report, pretrained::ExportModel(options));
  progress.Clear();
  Print("model        {}, {} in {} tensors\n", report.architecture, BytesText(report.bytes), report.tensors);
  if (report.dropped > 0) Print("dropped      {} tensors of the memory\n", report.dropped);
  for (const std::string& note : report.notes) Print("note         {}\n", note);
  Print("written      {}\n", options.out);
  return OkStatus();
}

}  // namespace tensorcache::cli
