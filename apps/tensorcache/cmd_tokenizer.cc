// tensorcache tokenizer: train one, use one, look at one, and measure its speed.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/tensorcache/build_info.h"
#include "apps/tensorcache/command.h"
#include "apps/tensorcache/model_options.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "bench/driver.h"
#include "core/file.h"
#include "core/json.h"
#include "core/text.h"
#include "data/corpus.h"
#include "tensorcache/tokenizer.h"
#include "tokenizer/files.h"

namespace tensorcache::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxText = int64_t{1} << 30;
constexpr char kTokenizerHelp[] = "A tokenizer file, a folder with one, or 'bytes'";

Result<std::string> ReadStandardInput() {
  std::string text;
  char buffer[1 << 16];
  for (size_t read = 0; (read = std::fread(buffer, 1, sizeof(buffer), stdin)) > 0;) {
    text.append(buffer, read);
    if (std::ssize(text) > kMaxText) return InvalidArgument("the text on standard input is longer than 1 GB; cut it");
  }
  if (std::ferror(stdin) != 0) return IoError("cannot read standard input");
  return text;
}

// The texts of a file or folder, mapped.
struct Texts {
  std::vector<MappedFile> files;
  std::vector<std::string_view> views;
  int64_t bytes = 0;
};

Result<Texts> MapTexts(const std::string& path) {
  TC_ASSIGN_OR_RETURN(const std::vector<data::TextFile> files, data::ListTextFiles(path));
  Texts texts;
  for (const data::TextFile& file : files) {
    TC_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(file.path));
    const std::string_view view(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
    TC_RETURN_IF_ERROR(data::CheckUtf8(view, file.path, 0));
    texts.views.push_back(view);
    texts.files.push_back(std::move(mapped));
    texts.bytes += std::ssize(view);
  }
  return texts;
}

Status EncodeTexts(const Tokenizer& tokenizer, const Texts& texts, std::vector<std::vector<int32_t>>* tokens) {
  tokens->resize(texts.views.size());
  for (size_t i = 0; i < texts.views.size(); ++i) {
    (*tokens)[i].clear();
    TC_RETURN_IF_ERROR(tokenizer.Encode(texts.views[i], &(*tokens)[i]));
  }
  return OkStatus();
}

int64_t Count(const std::vector<std::vector<int32_t>>& tokens) {
  int64_t count = 0;
  for (const auto& list : tokens) count += std::ssize(list);
  return count;
}

// The folder exists afterwards, and has no tokenizer unless it may be replaced.
Status PrepareFolder(const std::string& folder, bool may_replace) {
  const std::string_view found = tokenizer::TokenizerFileIn(folder);
  if (!found.empty() && !may_replace) {
    return InvalidArgument(
        fmt::format("--out {} has a tokenizer already, {}; name another folder, or replace it with --force",
                    Quoted(folder), found));
  }
  return MakeFolder(folder);
}

Status RunTokenizerTrain(const CommandLine& line) {
  std::string data, out;
  int64_t vocab_size = 0;
  bool force = false;
  Options app("Learns a byte-level BPE vocabulary from text and writes tokenizer.json.");
  app.add_option("--data", data, "A UTF-8 text file, or a folder of such files")->type_name("PATH")->required();
  app.add_option("--vocab-size", vocab_size, "Tokens, at least 257; fewer if the text does not have them")->required();
  app.add_option("--out", out, "The folder to write to; made if it is not there")->type_name("DIR")->required();
  app.add_flag("--force", force, "Replace a tokenizer that is in the folder");
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  TC_ASSIGN_OR_RETURN(const Texts texts, MapTexts(data));
  TC_RETURN_IF_ERROR(PrepareFolder(out, force));

  Print("text        {} file{}, {:.1f} MB\n", texts.views.size(), texts.views.size() == 1 ? "" : "s",
        static_cast<double>(texts.bytes) * 1e-6);
  const auto start = std::chrono::steady_clock::now();
  TC_ASSIGN_OR_RETURN(const auto tokenizer, TrainByteLevelBpe(texts.views, vocab_size));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  TC_RETURN_IF_ERROR(tokenizer->Save(out));
  std::vector<std::vector<int32_t>> tokens;
  TC_RETURN_IF_ERROR(EncodeTexts(*tokenizer, texts, &tokens));
  const int64_t count = Count(tokens);
  Print("vocabulary  {} tokens, learned in {:.1f} s\n", tokenizer->vocab_size(), seconds.count());
  Print("encoded     {} tokens, {:.2f} bytes a token\n", count,
        static_cast<double>(texts.bytes) / static_cast<double>(count));
  Print("written     {}\n", (fs::path(out) / tokenizer::kTokenizerJson).string());
  return OkStatus();
}

Status RunEncode(const CommandLine& line) {
  std::string name, text, file;
  bool special = false;
  Options app("Prints the token numbers of a text on one line. Reads standard input if no text is given.");
  app.add_option("--tokenizer", name, kTokenizerHelp)->type_name("T")->required();
  const CLI::Option* text_option = app.add_option("TEXT", text, "The text");
  const CLI::Option* file_option = app.add_option("--file", file, "Take the text from FILE")->type_name("FILE");
  app.add_flag("--special", special, "Find special tokens, such as <|endoftext|>, in the text");
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  if (text_option->count() > 0 && file_option->count() > 0) {
    return InvalidArgument("there is both a text and --file; give one of them");
  }
  TC_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(name));
  if (file_option->count() > 0) {
    TC_ASSIGN_OR_RETURN(text, ReadWholeFile(file, kMaxText));
  } else if (text_option->count() == 0) {
    TC_ASSIGN_OR_RETURN(text, ReadStandardInput());
  }
  std::vector<int32_t> tokens;
  TC_RETURN_IF_ERROR(tokenizer->EncodeWith({.special_tokens = special}, text, &tokens));
  std::string printed;
  for (const int32_t token : tokens) printed += fmt::format("{}{}", printed.empty() ? "" : " ", token);
  Print("{}\n", printed);
  return OkStatus();
}

Status RunDecode(const CommandLine& line) {
  std::string name;
  std::vector<std::string> numbers;
  Options app(
      "Prints the bytes of tokens, and nothing else but a line end on a terminal. Reads numbers from standard input if "
      "none are given.");
  app.add_option("--tokenizer", name, kTokenizerHelp)->type_name("T")->required();
  app.add_option("IDS", numbers, "Token numbers");
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  TC_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(name));
  if (numbers.empty()) {
    TC_ASSIGN_OR_RETURN(std::string input, ReadStandardInput());
    numbers.push_back(std::move(input));
  }
  std::vector<int32_t> tokens;
  for (const std::string& some : numbers) {
    TC_ASSIGN_OR_RETURN(const std::vector<int32_t> more, ParseTokenNumbers(some));
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  std::string text;
  TC_RETURN_IF_ERROR(tokenizer->Decode(tokens, &text));
  if (isatty(STDOUT_FILENO) != 0) text += '\n';
  PrintText(text);
  return OkStatus();
}

std::string TokenText(const Tokenizer& tokenizer, int32_t token) {
  std::string text;
  return tokenizer.Decode({&token, 1}, &text).ok() ? text : "";
}

std::string NamedToken(const Tokenizer& tokenizer, int32_t token) {
  return token < 0 ? "none" : fmt::format("{} {}", token, Quoted(TokenText(tokenizer, token)));
}

Status RunInfo(const CommandLine& line) {
  std::string name;
  Options app("Tells what a tokenizer is, and lists its special and added tokens.");
  app.add_option("T", name, kTokenizerHelp)->required();
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  TC_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(name));
  Print("kind         {}\n", tokenizer->kind());
  Print("vocabulary   {} tokens\n", tokenizer->vocab_size());
  Print("begin        {}\n", NamedToken(*tokenizer, tokenizer->begin_of_text()));
  Print("end          {}\n", NamedToken(*tokenizer, tokenizer->end_of_text()));
  Print("fingerprint  {:016x}\n", tokenizer->fingerprint());
  std::string special, added;
  int64_t specials = 0;
  for (int32_t token = 0; token < tokenizer->vocab_size(); ++token) {
    const std::string text = TokenText(*tokenizer, token);
    const bool is_special = tokenizer->IsSpecial(token);
    if (!is_special && (text.empty() || tokenizer->FindSpecial(text) != token)) continue;
    specials += is_special;
    (is_special ? special : added) += fmt::format("  {:>8}  {}\n", token, Quoted(text));
  }
  Print("special      {}{}\n{}", specials, specials == 0 ? "" : ", found in a text only if asked for", special);
  if (!added.empty()) Print("added, always found\n{}", added);
  return OkStatus();
}

Status RunTokenizerBench(const CommandLine& line) {
  std::string path, name, json_path;
  double seconds = 3;
  Options app("Measures how fast one thread encodes and decodes a text.");
  app.add_option("FILE", path, "A UTF-8 text file, or a folder of such files")->required();
  app.add_option("--tokenizer", name, kTokenizerHelp)->type_name("T")->required();
  app.add_option("--json", json_path, "Also write the figures to FILE")->type_name("FILE");
  app.add_option("--seconds", seconds, "Time spent on measuring")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0));
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  TC_RETURN_IF_ERROR(CheckOutputPath(json_path));
  TC_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(name));
  TC_ASSIGN_OR_RETURN(const Texts texts, MapTexts(path));
  std::vector<std::vector<int32_t>> tokens;
  TC_RETURN_IF_ERROR(EncodeTexts(*tokenizer, texts, &tokens));  // an error comes here, not while it is measured
  const int64_t count = Count(tokens);

  const auto encode = [&] { (void)EncodeTexts(*tokenizer, texts, &tokens); };
  std::string decoded;
  const auto decode = [&] {
    for (const auto& list : tokens) {
      decoded.clear();
      (void)tokenizer->Decode(list, &decoded);
    }
  };
  const bench::Driver driver([](const bench::Row&) {}, seconds);
  const std::vector<double> times = driver.MedianSeconds({encode, decode});
  const double megabytes = static_cast<double>(texts.bytes) * 1e-6,
               bytes_per_token = static_cast<double>(texts.bytes) / static_cast<double>(count);
  Print("{}, {} tokens; {:.1f} MB of text, {} tokens, {:.2f} bytes a token; one thread\n", tokenizer->kind(),
        tokenizer->vocab_size(), megabytes, count, bytes_per_token);
  nlohmann::ordered_json json = BenchHead("tokenizer");
  json["kind"] = tokenizer->kind();
  json["bytes"] = texts.bytes;
  json["tokens"] = count;
  json["bytes_per_token"] = bytes_per_token;
  for (const auto& [what, time] : {std::pair("encode", times[0]), std::pair("decode", times[1])}) {
    const double rate = static_cast<double>(count) / time;
    Print("{}  {:8.1f} MB/s  {:12.0f} tokens/s\n", what, megabytes / time, rate);
    json[what] = {{"mb_per_second", megabytes / time}, {"tokens_per_second", rate}, {"seconds", time}};
  }
  return WriteOutput(json_path, JsonText(json));
}

constexpr Command kTokenizerCommands[] = {
    {"train", "Learn a byte-level BPE vocabulary from text", RunTokenizerTrain},
    {"encode", "Text to token numbers", RunEncode},
    {"decode", "Token numbers to text", RunDecode},
    {"info", "What a tokenizer is, and its special tokens", RunInfo},
    {"bench", "How fast a tokenizer encodes and decodes a text", RunTokenizerBench},
};

}  // namespace

Status RunTokenizer(const CommandLine& line) {
  return Dispatch(kTokenizerCommands, "Trains, uses and measures tokenizers.", line);
}

}  // namespace tensorcache::cli
