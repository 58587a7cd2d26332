// tensorcache generate: a text and what the model makes of it, as it comes; sessions that go on another day.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "apps/tensorcache/command.h"
#include "apps/tensorcache/model_options.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "apps/tensorcache/stop_signal.h"
#include "apps/tensorcache/terminal.h"
#include "core/file.h"
#include "core/text.h"
#include "methods/method.h"
#include "runtime/checkpoint.h"
#include "runtime/stop_strings.h"
#include "tensorcache/sampling.h"
#include "tensorcache/session.h"

namespace tensorcache::cli {
namespace {

constexpr int64_t kMaxText = int64_t{1} << 30;
// Tokens of a prompt between two looks at the clock and at signals.
constexpr size_t kPromptPiece = 2048;

struct GenerateArguments {
  ModelArguments model;
  std::string tokenizer;
  std::optional<std::string> prompt, file, tokens;
  std::string session;
  int64_t max_tokens = 256;
  SamplingOptions sampling;
  std::vector<std::string> stop;
  bool begin = false;
  bool ignore_end = false;
  bool interactive = false;
  bool quiet = false;
};

void AddOptions(Options& app, GenerateArguments& arguments) {
  AddModelOptions(app, arguments.model);
  app.add_option("--tokenizer", arguments.tokenizer, "Another tokenizer than that in the model's folder")
      ->type_name("T");
  app.add_option("--prompt", arguments.prompt, "The text to go on from")->type_name("TEXT");
  app.add_option("--file", arguments.file, "The same, from a file")->type_name("FILE");
  app.add_option("--tokens", arguments.tokens, "The same, as token numbers: \"1 2 3\"")->type_name("NUMBERS");
  app.add_option("--session", arguments.session,
                 "Go on from the state in FILE if it exists, and keep the new state there at the end")
      ->type_name("FILE");
  app.add_option("--max-tokens", arguments.max_tokens, "Stop after so many tokens")
      ->type_name("N")
      ->capture_default_str();
  SamplingOptions& sampling = arguments.sampling;
  app.add_option("--temperature", sampling.temperature, "0 takes the most likely token")->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "Only the K most likely tokens; 0: off")->capture_default_str();
  app.add_option("--top-p", sampling.top_p, "Only the most likely tokens that together have probability P; 1: off")
      ->capture_default_str();
  app.add_option("--min-p", sampling.min_p, "Only tokens at least P times as likely as the most likely; 0: off")
      ->capture_default_str();
  app.add_option("--repetition-penalty", sampling.repetition_penalty, "Make recent tokens less likely; 1: off")
      ->capture_default_str();
  app.add_option("--repetition-window", sampling.repetition_window, "How many tokens are recent")
      ->capture_default_str();
  app.add_option("--seed", sampling.seed, "The same seed gives the same text")->capture_default_str();
  app.add_option("--stop", arguments.stop, "Stop where the model writes TEXT, which is not shown; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  app.add_flag("--begin", arguments.begin, "Start a new text with the tokenizer's begin-of-text token");
  app.add_flag("--ignore-end", arguments.ignore_end, "Go on after the end-of-text token");
  app.add_flag("--interactive", arguments.interactive, "Take turns: a line of standard input, what the model writes");
  app.add_flag("--quiet", arguments.quiet, "No line about speed and size at the end");
  app.footer("Ctrl-C (or SIGTERM) ends the text and keeps the session.");
}

Status CheckArguments(const GenerateArguments& arguments) {
  if (arguments.prompt.has_value() + arguments.file.has_value() + arguments.tokens.has_value() > 1) {
    return InvalidArgument("--prompt, --file and --tokens exclude each other; give one of them");
  }
  if (arguments.max_tokens < 0) {
    return InvalidArgument(fmt::format("--max-tokens is {}; give 0 or more", arguments.max_tokens));
  }
  return CheckOutputPath(arguments.session);
}

// Shows tokens on standard output as they come: text if there is a tokenizer, else numbers.
class Output {
 public:
  Output(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stop)
      : tokenizer_(std::move(tokenizer)), stop_(std::move(stop)) {}

  // What follows goes on after `recent`, the last tokens of the text: perhaps within a character.
  Status Begin(std::span<const int32_t> recent) {
    started_ = false;
    if (tokenizer_ == nullptr) return OkStatus();
    TC_ASSIGN_OR_RETURN(stop_strings_, StopStrings::Create(stop_));
    constexpr size_t kTail = 16;  // more than a character has bytes
    const size_t tail = std::min(kTail, recent.size());
    decoder_.emplace(tokenizer_, tail == recent.size() ? -1 : recent[recent.size() - tail - 1]);
    std::string seen;
    for (const int32_t token : recent.last(tail)) TC_RETURN_IF_ERROR(decoder_->Push(token, &seen));
    return OkStatus();
  }

  Status Show(int32_t token) {
    if (tokenizer_ == nullptr) {
      Write(fmt::format("{}{}", started_ ? " " : "", token));
      return OkStatus();
    }
    std::string text;
    TC_RETURN_IF_ERROR(decoder_->Push(token, &text));
    Write(stop_strings_->Push(text));
    return OkStatus();
  }

  // `goes_on`: another run will show the rest of a character that is not complete.
  Status End(bool goes_on, bool line_end) {
    std::string text;
    if (tokenizer_ != nullptr && !stop_strings_->stopped()) {
      if (!goes_on) TC_RETURN_IF_ERROR(decoder_->Finish(&text));
      text = stop_strings_->Push(text);
      text += stop_strings_->Finish();
    }
    if (line_end || (tokenizer_ == nullptr && started_)) text += '\n';
    Write(text);
    return OkStatus();
  }

  bool stopped() const { return stop_strings_.has_value() && stop_strings_->stopped(); }

 private:
  void Write(const std::string& text) {
    started_ = started_ || !text.empty();
    PrintText(text);
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::string> stop_;
  std::optional<StreamDecoder> decoder_;
  std::optional<StopStrings> stop_strings_;
  bool started_ = false;
};

// Tokens and the time they took.
struct Rate {
  using Clock = std::chrono::steady_clock;

  void Add(int64_t n, Clock::time_point start) {
    tokens += n;
    seconds += std::chrono::duration<double>(Clock::now() - start).count();
  }
  std::string Text(const char* what) const {
    return fmt::format("{} {} tokens, {:.0f} tokens/s; ", what, tokens, static_cast<double>(tokens) / seconds);
  }

  int64_t tokens = 0;
  double seconds = 0;
};

class Generator {
 public:
  static Result<Generator> Create(const GenerateArguments& arguments) {
    TC_ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(arguments.sampling));
    TC_RETURN_IF_ERROR(StopStrings::Create(arguments.stop).status());
    TC_ASSIGN_OR_RETURN(auto model, LoadModel(arguments.model));
    TC_ASSIGN_OR_RETURN(auto tokenizer, runtime::LoadTokenizerOf(*model, arguments.model.model, arguments.tokenizer));
    TC_RETURN_IF_ERROR(CheckTokenizer(arguments, tokenizer.get()));
    const bool restore = !arguments.session.empty() && Exists(arguments.session);
    TC_ASSIGN_OR_RETURN(Session session, restore ? Session::Restore(model, arguments.session) : Session::Create(model));
    return Generator(arguments, std::move(sampler), std::move(tokenizer), std::move(session));
  }

  // The prompt of the command line, if there is one; behind a begin-of-text token, if asked for.
  Status ReadPrompt() {
    std::vector<int32_t> tokens;
    if (arguments_.begin && session_.position() == 0) tokens.push_back(tokenizer_->begin_of_text());
    if (arguments_.prompt) TC_RETURN_IF_ERROR(tokenizer_->Encode(*arguments_.prompt, &tokens));
    if (arguments_.file) {
      TC_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(*arguments_.file, kMaxText));
      TC_RETURN_IF_ERROR(tokenizer_->Encode(text, &tokens));
    }
    if (arguments_.tokens) {
      TC_ASSIGN_OR_RETURN(const std::vector<int32_t> numbers, ParseTokenNumbers(*arguments_.tokens));
      tokens.insert(tokens.end(), numbers.begin(), numbers.end());
    }
    TC_RETURN_IF_ERROR(Feed(tokens));
    return arguments_.interactive && !tokens.empty() ? Save() : OkStatus();
  }

  Status ReadLine(const std::string& line) {
    std::vector<int32_t> tokens;
    if (tokenizer_ == nullptr) {
      TC_ASSIGN_OR_RETURN(tokens, ParseTokenNumbers(line));
    } else {
      TC_RETURN_IF_ERROR(tokenizer_->Encode(line, &tokens));
    }
    return Feed(tokens);
  }

  // Goes on until the model or the user ends the text, or it is long enough. Tokens that were shown are in the session.
  Status Write() {
    if (session_.position() == 0) {
      return InvalidArgument(
          "there is no text to go on from; give --prompt, --file or --tokens, or a --session that was saved before");
    }
    TC_RETURN_IF_ERROR(output_.Begin(session_.recent()));
    const auto start = Rate::Clock::now();
    int64_t n = 0;
    for (ended_ = false; n < arguments_.max_tokens && session_.room() > 0 && !StopWanted() && !output_.stopped(); ++n) {
      TC_ASSIGN_OR_RETURN(const int32_t token,
                          sampler_.Sample(Logits(), session_.recent(), static_cast<uint64_t>(session_.position())));
      ended_ = tokenizer_ != nullptr && token == tokenizer_->end_of_text() && !arguments_.ignore_end;
      if (ended_) break;
      TC_RETURN_IF_ERROR(output_.Show(token));
      TC_RETURN_IF_ERROR(session_.Decode(token));
    }
    decode_.Add(n, start);
    const bool goes_on = !arguments_.session.empty() && !arguments_.interactive;
    TC_RETURN_IF_ERROR(output_.End(goes_on, arguments_.interactive || isatty(STDOUT_FILENO) != 0));
    return OkStatus();
  }

  Status Save() const { return arguments_.session.empty() ? OkStatus() : session_.Save(arguments_.session); }

  void Report() const {
    if (arguments_.quiet) return;
    const bool grows = methods::MethodOf(session_.model().config().cache).KeepsEverything();
    Note("{}{}position {}; state {}, {}{}\n", prefill_.tokens > 0 ? prefill_.Text("prefill") : "",
         decode_.tokens > 0 ? decode_.Text("decode") : "", session_.position(),
         BytesText(session_.state_bytes().total()), grows ? "growing with the text" : "constant",
         ended_                 ? "; the model ended the text"
         : session_.room() == 0 ? "; the model's positions end here"
                                : "");
  }

 private:
  Generator(const GenerateArguments& arguments, Sampler sampler, std::shared_ptr<const Tokenizer> tokenizer,
            Session session)
      : arguments_(arguments),
        sampler_(std::move(sampler)),
        tokenizer_(std::move(tokenizer)),
        session_(std::move(session)),
        output_(tokenizer_, arguments.stop) {}

  static Status CheckTokenizer(const GenerateArguments& arguments, const Tokenizer* tokenizer) {
    if (tokenizer != nullptr) {
      if (!arguments.begin || tokenizer->begin_of_text() >= 0) return OkStatus();
      return InvalidArgument("--begin: this tokenizer has no begin-of-text token; leave the option out");
    }
    const char* option = arguments.prompt          ? "--prompt"
                         : arguments.file          ? "--file"
                         : !arguments.stop.empty() ? "--stop"
                         : arguments.begin         ? "--begin"
                                                   : nullptr;
    if (option == nullptr) return OkStatus();
    return InvalidArgument(
        fmt::format("{} is text, but {} has no tokenizer; name one with --tokenizer, or give numbers with --tokens",
                    option, arguments.model.model));
  }

  // A model may have more logits than its tokenizer has tokens: rounded up to a round number. The rest mean nothing.
  std::span<const float> Logits() const {
    const std::span<const float> logits = session_.logits();
    // They are empty where there was no memory to make them; the sampler says so.
    if (tokenizer_ == nullptr || logits.empty()) return logits;
    return logits.first(static_cast<size_t>(tokenizer_->vocab_size()));
  }

  Status Feed(std::span<const int32_t> tokens) {
    Progress progress(static_cast<int>(tokens.size()));
    const auto start = Rate::Clock::now();
    for (size_t at = 0; at < tokens.size(); at += kPromptPiece) {
      if (StopWanted()) {
        return IoError(fmt::format("stopped after {} of {} tokens of the prompt{}", at, tokens.size(),
                                   arguments_.session.empty() ? "" : "; the session is as it was"));
      }
      TC_RETURN_IF_ERROR(session_.Prefill(tokens.subspan(at, std::min(kPromptPiece, tokens.size() - at))));
      progress.Show(static_cast<int>(std::min(at + kPromptPiece, tokens.size())), "tokens of the prompt");
    }
    if (!tokens.empty()) prefill_.Add(static_cast<int64_t>(tokens.size()), start);
    return OkStatus();
  }

  const GenerateArguments& arguments_;
  Sampler sampler_;
  std::shared_ptr<const Tokenizer> tokenizer_;  // null: numbers
  Session session_;
  Output output_;
  Rate prefill_, decode_;
  bool ended_ = false;  // by the end-of-text token
};

// The next line of standard input with its line end; false at the end, or when the program shall stop.
bool NextLine(std::string& line) {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) Note("> ");
  char* buffer = nullptr;
  size_t capacity = 0;
  const ssize_t length = StopWanted() ? -1 : getline(&buffer, &capacity, stdin);
  if (length > 0) line.assign(buffer, static_cast<size_t>(length));
  std::free(buffer);
  if (length <= 0 && terminal) Note("\n");
  return length > 0;
}

// Saves the session after each turn, so that a kill loses at most one.
Status TakeTurns(Generator& generator) {
  for (std::string line; NextLine(line);) {
    TC_RETURN_IF_ERROR(generator.ReadLine(line));
    TC_RETURN_IF_ERROR(generator.Write());
    TC_RETURN_IF_ERROR(generator.Save());
  }
  return OkStatus();
}

}  // namespace

Status RunGenerate(const CommandLine& line) {
  GenerateArguments arguments;
  Options app("Goes on with a text, and shows it as it comes.");
  AddOptions(app, arguments);
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  TC_RETURN_IF_ERROR(CheckArguments(arguments));
  StopOnSignals();
  TC_ASSIGN_OR_RETURN(Generator generator, Generator::Create(arguments));
  TC_RETURN_IF_ERROR(generator.ReadPrompt());
  if (arguments.interactive) {
    TC_RETURN_IF_ERROR(TakeTurns(generator));
  } else {
    TC_RETURN_IF_ERROR(generator.Write());
    TC_RETURN_IF_ERROR(generator.Save());
  }
  generator.Report();
  return OkStatus();
}

}  // namespace tensorcache::cli
