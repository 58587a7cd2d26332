// tensorcache serve: a model behind OpenAI's HTTP interface.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "apps/tensorcache/command.h"
#include "apps/tensorcache/model_options.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "apps/tensorcache/stop_signal.h"
#include "core/file.h"
#include "core/ranges.h"
#include "runtime/checkpoint.h"
#include "server/chat_template.h"
#include "server/http.h"
#include "server/service.h"
#include "tensorcache/version.h"

namespace tensorcache::cli {
namespace {

constexpr int64_t kMaxTemplate = 1 << 20;
constexpr auto kLook = std::chrono::milliseconds(20);

struct ServeArguments {
  ModelArguments model;
  std::string tokenizer, name, api_key_file, chat_template;
  bool begin = false;
  int64_t block = 128;
  int64_t max_tokens = 4096;
  int64_t drain = 30;
  int64_t body_mib = 16;
  int64_t state_mib = 1024;
  server::EngineOptions engine;
  server::HttpOptions http = {.port = 8080};
};

void AddOptions(Options& app, ServeArguments& arguments) {
  AddModelOptions(app, arguments.model);
  app.add_option("--tokenizer", arguments.tokenizer, "Another tokenizer than that in the model's folder")
      ->type_name("T");
  app.add_option("--name", arguments.name, "What clients call the model; its folder's name if not given")
      ->type_name("NAME");
  app.add_option("--host", arguments.http.host, "The address to listen on")
      ->type_name("ADDRESS")
      ->capture_default_str();
  app.add_option("--port", arguments.http.port, "The port; 0: a free one, which is printed")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--api-key-file", arguments.api_key_file,
                 "Keys that may ask, one a line; an address that other machines reach needs one")
      ->type_name("FILE");
  app.add_option("--chat-template", arguments.chat_template, "Another chat template than that in the model's folder")
      ->type_name("FILE");
  app.add_flag("--begin", arguments.begin, "Start texts with the tokenizer's begin-of-text token");
  app.add_option("--max-batch", arguments.engine.max_batch, "Sequences that run at the same time")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--queue", arguments.engine.queue, "Requests that wait for a place; more are refused")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--max-tokens", arguments.max_tokens, "Tokens that one reply may have")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--block", arguments.block, "Tokens of a prompt that are read between two steps of writing")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--max-body", arguments.body_mib, "The largest request, in MiB")
      ->type_name("MIB")
      ->capture_default_str();
  app.add_option("--state-ram", arguments.state_mib, "What the states of sessions may take, in MiB")
      ->type_name("MIB")
      ->capture_default_str();
  app.add_option("--max-connections", arguments.http.limits.connections, "Open connections")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--drain", arguments.drain, "Seconds that running replies get to end, after Ctrl-C or SIGTERM")
      ->type_name("SECONDS")
      ->capture_default_str();
  app.footer("Ctrl-C (or SIGTERM) takes no new requests, lets what runs end, and ends; a second one ends at once.");
}

Status CheckArguments(const ServeArguments& arguments) {
  TC_RETURN_IF_ERROR(CheckRange("--port", int64_t{arguments.http.port}, 0, 65535));
  TC_RETURN_IF_ERROR(CheckRange("--max-batch", arguments.engine.max_batch, 1, 1024));
  TC_RETURN_IF_ERROR(CheckRange("--queue", arguments.engine.queue, 1, 1 << 20));
  TC_RETURN_IF_ERROR(CheckRange("--max-tokens", arguments.max_tokens, 1, int64_t{1} << 40));
  TC_RETURN_IF_ERROR(CheckRange("--block", arguments.block, 1, 1 << 16));
  TC_RETURN_IF_ERROR(CheckRange("--max-body", arguments.body_mib, 1, 1024));
  TC_RETURN_IF_ERROR(CheckRange("--state-ram", arguments.state_mib, 0, int64_t{1} << 30));
  TC_RETURN_IF_ERROR(CheckRange("--max-connections", arguments.http.limits.connections, 1, 1 << 20));
  TC_RETURN_IF_ERROR(CheckRange("--drain", arguments.drain, 0, 86400));
  if (arguments.api_key_file.empty() && !server::IsLoopback(arguments.http.host)) {
    return InvalidArgument(
        fmt::format("--host {} can be reached from other machines; give --api-key-file, or listen on "
                    "127.0.0.1",
                    arguments.http.host));
  }
  return OkStatus();
}

Result<std::shared_ptr<const Model>> LoadServed(const ServeArguments& arguments) {
  TC_ASSIGN_OR_RETURN(ModelVariant variant, OnlyModelVariant(arguments.model));
  variant.options.prefill_block = arguments.block;
  return runtime::LoadCheckpoint(arguments.model.model, variant.options);
}

std::string NameOfModel(const ServeArguments& arguments) {
  if (!arguments.name.empty()) return arguments.name;
  std::filesystem::path folder = std::filesystem::weakly_canonical(arguments.model.model);
  return folder.has_filename() ? folder.filename().string() : folder.parent_path().filename().string();
}

// That of the command line, or of the model's folder; null if there is none, or none that can be used: that need not keep anybody from
// asking for completions.
Result<std::shared_ptr<const server::ChatTemplate>> LoadChatTemplate(
    const ServeArguments& arguments, const std::shared_ptr<const Tokenizer>& tokenizer) {
  using Shared = std::shared_ptr<const server::ChatTemplate>;
  const bool named = !arguments.chat_template.empty();
  TC_ASSIGN_OR_RETURN(const std::string source, named ? ReadWholeFile(arguments.chat_template, kMaxTemplate)
                                                      : server::ChatTemplate::SourceIn(arguments.model.model));
  if (source.empty() && !named) return Shared();
  auto chat = server::ChatTemplate::Load(source, arguments.model.model, tokenizer);
  if (chat.ok()) return Shared(std::make_shared<const server::ChatTemplate>(std::move(*chat)));
  if (named) return chat.status();
  Note("{}; /v1/chat/completions is not there. --chat-template names another one\n", chat.status().message());
  return Shared();
}

Result<std::unique_ptr<server::Service>> MakeService(const ServeArguments& arguments) {
  server::ServiceOptions options{.model = NameOfModel(arguments),
                                 .version = TENSORCACHE_VERSION,
                                 .begin = arguments.begin,
                                 .max_tokens = arguments.max_tokens,
                                 .state_bytes = arguments.state_mib << 20,
                                 .engine = arguments.engine};
  if (!arguments.api_key_file.empty()) {
    TC_ASSIGN_OR_RETURN(options.keys, server::AccessKeys::Read(arguments.api_key_file));
  }
  TC_ASSIGN_OR_RETURN(auto model, LoadServed(arguments));
  TC_ASSIGN_OR_RETURN(auto tokenizer, runtime::LoadTokenizerOf(*model, arguments.model.model, arguments.tokenizer));
  if (tokenizer == nullptr) {
    return InvalidArgument(
        fmt::format("{} has no tokenizer; name one with --tokenizer", Quoted(arguments.model.model)));
  }
  if (arguments.begin && tokenizer->begin_of_text() < 0) {
    return InvalidArgument("--begin: this tokenizer has no begin-of-text token; leave the option out");
  }
  TC_ASSIGN_OR_RETURN(options.chat, LoadChatTemplate(arguments, tokenizer));
  TC_ASSIGN_OR_RETURN(options.engine.end_tokens, server::EndTokensIn(arguments.model.model, tokenizer->vocab_size()));
  return std::make_unique<server::Service>(std::move(model), std::move(tokenizer), std::move(options));
}

// Until every answer is sent, or the time is over.
void WaitForAnswers(const server::HttpServer& http, int64_t seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (http.active() > 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(kLook);
}

// Lets what runs come to its end; what has not after so many seconds ends with an error, which is sent as well.
void End(server::HttpServer& http, server::Service& service, int64_t seconds) {
  constexpr int64_t kSecondsForErrors = 2;
  service.Drain();
  http.Drain();
  WaitForAnswers(http, seconds);
  service.Stop();
  WaitForAnswers(http, kSecondsForErrors);
}

}  // namespace

Status RunServe(const CommandLine& line) {
  ServeArguments arguments;
  Options app("Serves a model over HTTP, as OpenAI's clients expect it.");
  AddOptions(app, arguments);
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  TC_RETURN_IF_ERROR(CheckArguments(arguments));
  arguments.http.limits.body_bytes = arguments.body_mib << 20;
  StopOnSignals();
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<server::Service> service, MakeService(arguments));
  TC_ASSIGN_OR_RETURN(const auto http, server::HttpServer::Listen(arguments.http, service.get()));
  const bool brackets = arguments.http.host.find(':') != std::string::npos;
  Print("Serving {} on http://{}{}{}:{}/v1\n", NameOfModel(arguments), brackets ? "[" : "", arguments.http.host,
        brackets ? "]" : "", http->port());
  while (!StopWanted()) std::this_thread::sleep_for(kLook);
  Note("Waiting for running replies, at most {} s ...\n", arguments.drain);
  End(*http, *service, arguments.drain);
  return OkStatus();
}

}  // namespace tensorcache::cli
