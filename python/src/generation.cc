// Texts that go on token by token: Sampler, and what Session.generate and generate_tokens return.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "module.h"
#include "runtime/stop_strings.h"
#include "session.h"
#include "tensorcache/sampling.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::python {
namespace {

using nb::literals::operator""_a;

#define TC_SAMPLING_SIGNATURE                                                                                      \
  "temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = " \
  "1.0, "                                                                                                          \
  "repetition_window: int = 64, seed: int = 0"
#define TC_SAMPLING_ARGUMENTS                                                                           \
  "temperature"_a = 1.0, "top_k"_a = 0, "top_p"_a = 1.0, "min_p"_a = 0.0, "repetition_penalty"_a = 1.0, \
  "repetition_window"_a = 64, "seed"_a = 0

constexpr const char* kSamplerDoc = R"(Chooses the next token from logits.

The steps, each of which works on what the one before has left: repetition penalty over the last `repetition_window` tokens;
temperature, where 0 takes the largest logit and skips the rest; top-k; top-p; min-p; draw. A token is a pure function of the
options, the logits, the recent tokens and the position: there is no state.

>>> import tensorcache as tc
>>> import numpy as np
>>> sampler = tc.Sampler(temperature=0.0)
>>> sampler.sample(np.array([0.1, 2.0, 0.3], np.float32), position=7)
1
)";

constexpr const char* kGenerateDoc = R"(Goes on with the text, and gives it piece by piece, in whole characters.

`prompt` is text or tokens that are read first, when this is called; None goes on from where the session is. The text ends
after `max_tokens`, before the first of the strings `stop`, or at the tokenizer's end-of-text token unless `ignore_end`.
`begin` starts a new text with the tokenizer's begin-of-text token. The other arguments are those of Sampler. Every token
that was shown is in the session, and so is a stop string, though it is not shown.

>>> import tensorcache as tc
>>> session = tc.Model.random({}, tokenizer="bytes").session()
>>> pieces = list(session.generate("Hi", max_tokens=5, temperature=0.0))
>>> session.position
7
)";

constexpr const char* kGenerateTokensDoc = R"(As `generate`, but gives the numbers of tokens; needs no tokenizer.

`end` is a token that ends the text and is not given.

>>> import tensorcache as tc
>>> session = tc.Model.random({}).session()
>>> len(list(session.generate_tokens([1, 2], max_tokens=3, seed=1)))
3
)";

// The tokens that a session goes on with.
class TokenStream {
 public:
  struct Options {
    int64_t max_tokens = 0;
    int32_t end = -1;         // ends the text; -1: nothing does
    int64_t vocabulary = -1;  // only so many of the logits mean something; -1: all
  };

  TokenStream(nb::object session, Sampler sampler, const Options& options)
      : object_(std::move(session)),
        session_(nb::inst_ptr<SessionObject>(object_)),
        sampler_(std::move(sampler)),
        options_(options) {}

  // Gives the next token to accept(token) and then to the session; none at the end. With the GIL.
  template <class Accept>
  std::optional<int32_t> Next(Accept accept) {
    if (ended_ || options_.max_tokens <= 0) return std::nullopt;
    return session_->Change([&](Session& session) -> std::optional<int32_t> {
      if (session.room() <= 0) return std::nullopt;
      std::span<const float> logits = session.logits();
      // Empty logits: there was no memory to make them, or the session is of no use. The sampler or the session says so.
      if (options_.vocabulary >= 0 && !logits.empty()) logits = logits.first(static_cast<size_t>(options_.vocabulary));
      const int32_t token =
          Unwrap(sampler_.Sample(logits, session.recent(), static_cast<uint64_t>(session.position())));
      ended_ = token == options_.end;
      if (ended_) return std::nullopt;
      accept(token);
      Check(session.Decode(token));
      --options_.max_tokens;
      return token;
    });
  }

  SessionObject& session() { return *session_; }

 private:
  nb::object object_;
  SessionObject* session_;
  Sampler sampler_;
  Options options_;
  bool ended_ = false;
};

class TextStream {
 public:
  TextStream(TokenStream tokens, std::shared_ptr<const Tokenizer> tokenizer, StopStrings stop)
      : tokens_(std::move(tokens)), stop_(std::move(stop)) {
    // The text may go on within a character.
    tokens_.session().Look([&](const Session& session) {
      constexpr size_t kTail = 16;  // more than a character has bytes
      const std::span<const int32_t> recent = session.recent();
      const size_t tail = std::min(kTail, recent.size());
      decoder_.emplace(std::move(tokenizer), tail == recent.size() ? -1 : recent[recent.size() - tail - 1]);
      std::string seen;
      for (const int32_t token : recent.last(tail)) Check(decoder_->Push(token, &seen));
    });
  }

  // Empty at the end.
  std::string Next() {
    while (!done_) {
      CheckSignals();
      std::string text;
      const std::optional<int32_t> token =
          tokens_.Next([&](int32_t accepted) { Check(decoder_->Push(accepted, &text)); });
      done_ = !token;
      if (done_) Check(decoder_->Finish(&text));
      std::string piece = stop_.Push(text);
      if (done_) piece += stop_.Finish();
      done_ = done_ || stop_.stopped();
      if (!piece.empty()) return piece;
    }
    return {};
  }

 private:
  TokenStream tokens_;
  std::optional<StreamDecoder> decoder_;
  StopStrings stop_;
  bool done_ = false;
};

std::shared_ptr<const Tokenizer> NeedTokenizer(const SessionObject& session) {
  std::shared_ptr<const Tokenizer> tokenizer;
  {
    const nb::gil_scoped_release release;
    tokenizer = session.model_object().tokenizer();
  }
  if (tokenizer != nullptr) return tokenizer;
  throw StatusError(InvalidArgument(
      "the model has no tokenizer; name one with Model(..., tokenizer=...), or use generate_tokens with numbers"));
}

// Text or tokens, or None; behind a begin-of-text token, if asked for.
void ReadPrompt(SessionObject& session, nb::handle prompt, const Tokenizer* tokenizer, bool begin) {
  std::vector<int32_t> tokens;
  if (begin && session.Look([](const Session& s) { return s.position(); }) == 0) {
    if (tokenizer->begin_of_text() < 0) {
      throw StatusError(InvalidArgument("begin: this tokenizer has no begin-of-text token; leave it out"));
    }
    tokens.push_back(tokenizer->begin_of_text());
  }
  if (tokenizer != nullptr && nb::isinstance<nb::str>(prompt)) {
    Check(tokenizer->Encode(nb::cast<std::string_view>(prompt), &tokens));
  } else if (!prompt.is_none()) {
    const Tokens given(prompt);
    tokens.insert(tokens.end(), given.view().begin(), given.view().end());
  }
  session.Feed(tokens, [](Session& s, size_t, std::span<const int32_t> piece) { return s.Prefill(piece); });
  if (session.Look([](const Session& s) { return s.position(); }) == 0) {
    throw StatusError(InvalidArgument("there is no text to go on from; give a prompt"));
  }
}

void CheckMaxTokens(int64_t max_tokens) {
  if (max_tokens < 0) {
    throw StatusError(InvalidArgument("max_tokens is " + std::to_string(max_tokens) + "; give 0 or more"));
  }
}

using SessionHandle = nb::handle_t<SessionObject>;

struct TextOptions {
  int64_t max_tokens = 0;
  std::vector<std::string> stop;
  bool begin = false;
  bool ignore_end = false;
  SamplingOptions sampling;
};

TextStream Generate(SessionHandle self, nb::handle prompt, TextOptions options) {
  SessionObject& session = *nb::inst_ptr<SessionObject>(self);
  CheckMaxTokens(options.max_tokens);
  Sampler sampler = Unwrap(Sampler::Create(options.sampling));
  StopStrings stop = Unwrap(StopStrings::Create(std::move(options.stop)));
  const std::shared_ptr<const Tokenizer> tokenizer = NeedTokenizer(session);
  ReadPrompt(session, prompt, tokenizer.get(), options.begin);
  TokenStream tokens(nb::borrow(self), std::move(sampler),
                     {.max_tokens = options.max_tokens,
                      .end = options.ignore_end ? -1 : tokenizer->end_of_text(),
                      .vocabulary = tokenizer->vocab_size()});
  return {std::move(tokens), tokenizer, std::move(stop)};
}

TokenStream GenerateTokens(SessionHandle self, nb::handle prompt, int64_t max_tokens, int32_t end,
                           const SamplingOptions& sampling) {
  CheckMaxTokens(max_tokens);
  Sampler sampler = Unwrap(Sampler::Create(sampling));
  ReadPrompt(*nb::inst_ptr<SessionObject>(self), prompt, nullptr, /*begin=*/false);
  return {nb::borrow(self), std::move(sampler), {.max_tokens = max_tokens, .end = end}};
}

SamplingOptions SamplingOf(double temperature, int64_t top_k, double top_p, double min_p, double repetition_penalty,
                           int64_t repetition_window, uint64_t seed) {
  return {.temperature = temperature,
          .top_k = top_k,
          .top_p = top_p,
          .min_p = min_p,
          .repetition_penalty = repetition_penalty,
          .repetition_window = repetition_window,
          .seed = seed};
}

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int32_t Sample(Sampler& self, const Floats& logits, nb::handle recent, uint64_t position) {
  const Tokens tokens(recent);
  return Unwrap(self.Sample({logits.data(), logits.size()}, tokens.view(), position));
}

}  // namespace

void BindGeneration(nb::module_& module, nb::class_<SessionObject>& session) {
  nb::class_<Sampler>(module, "Sampler", kSamplerDoc)
      .def(
          "__init__",
          [](Sampler* self, double temperature, int64_t top_k, double top_p, double min_p, double repetition_penalty,
             int64_t repetition_window, uint64_t seed) {
            new (self) Sampler(Unwrap(Sampler::Create(
                SamplingOf(temperature, top_k, top_p, min_p, repetition_penalty, repetition_window, seed))));
          },
          nb::kw_only(), TC_SAMPLING_ARGUMENTS)
      .def(
          "sample", Sample, "logits"_a.noconvert(), "recent"_a = nb::tuple(), nb::kw_only(), "position"_a,
          nb::sig("def sample(self, logits: numpy.typing.NDArray[numpy.float32], recent: "
                  "collections.abc.Sequence[int] | numpy.typing.NDArray[numpy.integer] = (), *, position: int) -> int"),
          "The token for `position` of the text, of which `recent` is the end.");

  nb::class_<TextStream>(module, "TextStream", "The text that Session.generate goes on with: an iterator.")
      .def(
          "__iter__", [](nb::handle self) { return self; }, nb::sig("def __iter__(self) -> TextStream"))
      .def("__next__", [](TextStream& self) {
        std::string piece = self.Next();
        if (piece.empty()) throw nb::stop_iteration();
        return piece;
      });
  nb::class_<TokenStream>(module, "TokenStream", "The tokens that Session.generate_tokens goes on with: an iterator.")
      .def(
          "__iter__", [](nb::handle self) { return self; }, nb::sig("def __iter__(self) -> TokenStream"))
      .def("__next__", [](TokenStream& self) {
        CheckSignals();
        const std::optional<int32_t> token = self.Next([](int32_t) {});
        if (!token) throw nb::stop_iteration();
        return *token;
      });

  session
      .def(
          "generate",
          [](SessionHandle self, nb::handle prompt, int64_t max_tokens, std::vector<std::string> stop, bool begin,
             bool ignore_end, double temperature, int64_t top_k, double top_p, double min_p, double repetition_penalty,
             int64_t repetition_window, uint64_t seed) {
            return Generate(self, prompt,
                            {.max_tokens = max_tokens,
                             .stop = std::move(stop),
                             .begin = begin,
                             .ignore_end = ignore_end,
                             .sampling = SamplingOf(temperature, top_k, top_p, min_p, repetition_penalty,
                                                    repetition_window, seed)});
          },
          "prompt"_a = nb::none(), nb::kw_only(), "max_tokens"_a = 256, "stop"_a = std::vector<std::string>(),
          "begin"_a = false, "ignore_end"_a = false, TC_SAMPLING_ARGUMENTS,
          nb::sig("def generate(self, prompt: str | collections.abc.Sequence[int] | "
                  "numpy.typing.NDArray[numpy.integer] | None = None, *, max_tokens: int = 256, "
                  "stop: collections.abc.Sequence[str] = (), begin: bool = False, ignore_end: bool = "
                  "False, " TC_SAMPLING_SIGNATURE ") -> TextStream"),
          kGenerateDoc)
      .def(
          "generate_tokens",
          [](SessionHandle self, nb::handle prompt, int64_t max_tokens, std::optional<int32_t> end, double temperature,
             int64_t top_k, double top_p, double min_p, double repetition_penalty, int64_t repetition_window,
             uint64_t seed) {
            return GenerateTokens(
                self, prompt, max_tokens, end.value_or(-1),
                SamplingOf(temperature, top_k, top_p, min_p, repetition_penalty, repetition_window, seed));
          },
          "prompt"_a = nb::none(), nb::kw_only(), "max_tokens"_a = 256, "end"_a = nb::none(), TC_SAMPLING_ARGUMENTS,
          nb::sig("def generate_tokens(self, prompt: collections.abc.Sequence[int] | "
                  "numpy.typing.NDArray[numpy.integer] | None = None, *, max_tokens: int = 256, "
                  "end: int | None = None, " TC_SAMPLING_SIGNATURE ") -> TokenStream"),
          kGenerateTokensDoc);
}

}  // namespace tensorcache::python
