// Shows the library's numbers to the oracle tests, which are written in Python. Tokens and texts go in and out as JSON,
// logits as safetensors.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/file.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "tensorcache/model.h"
#include "tensorcache/session.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache {
namespace {

constexpr char kUsage[] =
    "usage: oracle_probe COMMAND\n"
    "  logits MODEL TOKENS.json OUT.safetensors [--split prefill|steps|halves] [--method M] [--window W] [--sinks S]\n"
    "  greedy MODEL TOKENS.json OUT.json [--count N]     the N tokens that follow, each the most likely one\n"
    "  nll MODEL TOKENS.json OUT.json                    of each token; null for the first\n"
    "  encode TOKENIZER TEXTS.json OUT.json [--special yes|no]\n"
    "  decode TOKENIZER TOKEN_LISTS.json OUT.json        the bytes of each text, in hexadecimal\n"
    "  rewrite IN.safetensors OUT.safetensors            through our reader and our writer\n";

// What stands on the command line: names, then pairs of --option and value.
struct Arguments {
  std::vector<std::string> names;
  std::map<std::string, std::string, std::less<>> options;

  std::string Option(std::string_view name, std::string_view otherwise) const {
    const auto found = options.find(name);
    return found == options.end() ? std::string(otherwise) : found->second;
  }
  Result<int64_t> Number(std::string_view name, int64_t otherwise) const {
    const std::string text = Option(name, std::to_string(otherwise));
    int64_t number = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), number).ptr != text.data() + text.size()) {
      return InvalidArgument("--" + std::string(name) + " " + text + " is not a number");
    }
    return number;
  }
};

Result<Arguments> Parse(std::span<char*> argv) {
  Arguments arguments;
  for (size_t i = 0; i < argv.size(); ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with("--")) {
      arguments.names.emplace_back(word);
      continue;
    }
    if (i + 1 == argv.size()) return InvalidArgument(std::string(word) + " needs a value");
    arguments.options.emplace(word.substr(2), argv[++i]);
  }
  return arguments;
}

template <class T>
Result<T> ReadJsonAs(const std::string& path) {
  TC_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  try {
    return json.get<T>();
  } catch (const Json::exception& error) {
    return InvalidArgument(path + ": " + error.what());
  }
}

Result<std::shared_ptr<const Model>> LoadModel(const Arguments& arguments) {
  ModelOptions options = {.threads = 1};
  if (arguments.options.contains("method")) {
    CacheConfig cache;
    TC_RETURN_IF_ERROR(ApplyOverride("method=" + arguments.Option("method", ""), &cache));
    TC_ASSIGN_OR_RETURN(cache.window, arguments.Number("window", cache.window));
    TC_ASSIGN_OR_RETURN(cache.sinks, arguments.Number("sinks", cache.sinks));
    options.cache = cache;
  }
  return Model::Load(arguments.names[0], options);
}

struct Text {
  std::vector<int32_t> tokens;
  Session session;  // at its start
};

Result<Text> Start(const Arguments& arguments) {
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, LoadModel(arguments));
  TC_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, ReadJsonAs<std::vector<int32_t>>(arguments.names[1]));
  TC_ASSIGN_OR_RETURN(Session session, Session::Create(model));
  return Text{std::move(tokens), std::move(session)};
}

Status Logits(const Arguments& arguments) {
  TC_ASSIGN_OR_RETURN(Text text, Start(arguments));
  const std::span<const int32_t> tokens = text.tokens;
  const auto vocab = static_cast<size_t>(text.session.model().config().vocab_size);
  std::vector<float> logits(tokens.size() * vocab, NAN);
  const std::string split = arguments.Option("split", "prefill");
  if (split == "prefill") {
    TC_RETURN_IF_ERROR(text.session.PrefillLogits(tokens, logits));
  } else if (split == "halves") {
    const size_t half = tokens.size() / 2;
    TC_RETURN_IF_ERROR(text.session.PrefillLogits(tokens.first(half), std::span(logits).first(half * vocab)));
    TC_RETURN_IF_ERROR(text.session.PrefillLogits(tokens.subspan(half), std::span(logits).subspan(half * vocab)));
  } else if (split == "steps") {
    for (size_t i = 0; i < tokens.size(); ++i) {
      TC_RETURN_IF_ERROR(text.session.Decode(tokens[i]));
      std::copy_n(text.session.logits().begin(), vocab, logits.begin() + static_cast<std::ptrdiff_t>(i * vocab));
    }
  } else {
    return InvalidArgument("--split " + split + " is none of prefill, steps and halves");
  }
  SafetensorsWriter writer;
  writer.Add("logits", {static_cast<int64_t>(tokens.size()), static_cast<int64_t>(vocab)}, logits.data());
  return writer.Write(arguments.names[2]);
}

Status Greedy(const Arguments& arguments) {
  TC_ASSIGN_OR_RETURN(Text text, Start(arguments));
  TC_ASSIGN_OR_RETURN(const int64_t count, arguments.Number("count", 64));
  TC_RETURN_IF_ERROR(text.session.Prefill(text.tokens));
  std::vector<int32_t> written;
  for (int64_t i = 0; i < count; ++i) {
    const std::span<const float> logits = text.session.logits();
    written.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    if (i + 1 < count) TC_RETURN_IF_ERROR(text.session.Decode(written.back()));
  }
  return WriteFileAtomically(arguments.names[2], Json(written).dump());
}

Status Nll(const Arguments& arguments) {
  TC_ASSIGN_OR_RETURN(Text text, Start(arguments));
  std::vector<float> nll(text.tokens.size());
  TC_RETURN_IF_ERROR(text.session.Score(text.tokens, nll));
  return WriteFileAtomically(arguments.names[2], Json(nll).dump());  // NaN becomes null
}

Status Encode(const Arguments& arguments) {
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer, LoadTokenizer(arguments.names[0]));
  TC_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ReadJsonAs<std::vector<std::string>>(arguments.names[1]));
  const EncodeOptions options = {.special_tokens = arguments.Option("special", "no") == "yes"};
  std::vector<std::vector<int32_t>> tokens(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    TC_RETURN_IF_ERROR(tokenizer->EncodeWith(options, texts[i], &tokens[i]));
  }
  return WriteFileAtomically(arguments.names[2], Json(tokens).dump());
}

Status Decode(const Arguments& arguments) {
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer, LoadTokenizer(arguments.names[0]));
  TC_ASSIGN_OR_RETURN(const auto lists, ReadJsonAs<std::vector<std::vector<int32_t>>>(arguments.names[1]));
  std::vector<std::string> texts;
  for (const std::vector<int32_t>& tokens : lists) {
    std::string text;
    TC_RETURN_IF_ERROR(tokenizer->Decode(tokens, &text));
    std::string& hex = texts.emplace_back();
    for (const unsigned char byte : text) {
      constexpr char kDigits[] = "0123456789abcdef";
      hex += {kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return WriteFileAtomically(arguments.names[2], Json(texts).dump());
}

Status Rewrite(const Arguments& arguments) {
  TC_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(arguments.names[0]));
  SafetensorsWriter writer;
  for (const std::string_view name : file.names()) {
    TC_ASSIGN_OR_RETURN(const TensorRef tensor, file.Find(name));
    writer.Add(std::string(name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}, tensor.data.data());
  }
  for (const auto& [key, value] : file.metadata()) writer.SetMetadata(key, value);
  return writer.Write(arguments.names[1]);
}

struct Command {
  std::string_view name;
  size_t names;  // that it takes
  Status (*run)(const Arguments&);
};
constexpr Command kCommands[] = {{"logits", 3, Logits}, {"greedy", 3, Greedy}, {"nll", 3, Nll},
                                 {"encode", 3, Encode}, {"decode", 3, Decode}, {"rewrite", 2, Rewrite}};

Status Run(std::span<char*> argv) {
  TC_ASSIGN_OR_RETURN(const Arguments arguments, Parse(argv.subspan(2)));
  for (const Command& command : kCommands) {
    if (command.name != argv[1]) continue;
    if (arguments.names.size() != command.names) break;
    return command.run(arguments);
  }
  return InvalidArgument(kUsage);
}

}  // namespace
}  // namespace tensorcache

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs(tensorcache::kUsage, stderr);
    return 2;
  }
  const tensorcache::Status status = tensorcache::Run({argv, static_cast<size_t>(argc)});
  if (!status.ok()) std::fprintf(stderr, "oracle_probe: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
