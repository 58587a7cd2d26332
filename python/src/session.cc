#include "session.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "module.h"

namespace tensorcache::python {

namespace {

using nb::literals::operator""_a;

// Of arguments that are numbers of tokens, in signatures.
#define TC_TOKENS "tokens: collections.abc.Sequence[int] | numpy.typing.NDArray[numpy.integer]"
#define TC_FLOATS "numpy.typing.NDArray[numpy.float32]"

constexpr const char* kSessionDoc = R"(One text that a model reads and continues; `Model.session()` makes one.

Unless the cache's method is "full", it has the same size after any number of tokens. Different sessions may be used by
different threads at the same time; calls for one session take turns. `copy.copy` forks; pickle takes model and state.

>>> import tensorcache as tc
>>> session = tc.Model.random({}, tokenizer="bytes").session()
>>> session.prefill([72, 105])
>>> session.decode(33)
>>> session.position
3
>>> branch = session.fork()
>>> branch.decode(0)
>>> session.position, branch.position
(3, 4)
)";

constexpr const char* kScoreDoc = R"(Reads tokens, and tells how badly each was predicted.

The negative log of the probability that the model gave each, natural log. The first token of a text was not predicted:
NaN. Takes constant memory.

>>> import tensorcache as tc
>>> session = tc.Model.random({"vocab_size": 8}).session()
>>> nll = session.score([1, 2, 3])
>>> nll.shape, bool(nll[1] > 0)
((3,), True)
)";

constexpr const char* kDecodeBatchDoc = R"(Reads one token for each of many sessions of one model.

The weights are read once for all of them. What comes out for a session does not depend on its company.

>>> import tensorcache as tc
>>> model = tc.Model.random({})
>>> sessions = [model.session() for _ in range(3)]
>>> tc.decode_batch(sessions, [1, 2, 3])
>>> tc.batch_logits(sessions).shape
(3, 256)
)";

using ModelHandle = nb::handle_t<ModelObject>;

// make(model) -> Result<Session>, without the GIL.
template <class Make>
std::unique_ptr<SessionObject> MakeSession(nb::handle model, const SessionOptions& options, Make make) {
  const std::shared_ptr<const Model> loaded = nb::inst_ptr<ModelObject>(model)->model();
  std::optional<Session> session;
  {
    const nb::gil_scoped_release release;
    session = Unwrap(make(loaded));
  }
  return std::make_unique<SessionObject>(nb::borrow(model), std::move(*session), options);
}

std::unique_ptr<SessionObject> FromBytes(ModelHandle model, const nb::bytes& bytes, double rope_ntk_factor) {
  const SessionOptions options{.rope_ntk_factor = rope_ntk_factor};
  return MakeSession(model, options, [&](const std::shared_ptr<const Model>& loaded) {
    return Session::Deserialize(loaded, {static_cast<const std::byte*>(bytes.data()), bytes.size()}, options);
  });
}

std::unique_ptr<SessionObject> FromFile(ModelHandle model, const std::filesystem::path& path, double rope_ntk_factor) {
  const SessionOptions options{.rope_ntk_factor = rope_ntk_factor};
  return MakeSession(model, options, [&](const std::shared_ptr<const Model>& loaded) {
    return Session::Restore(loaded, path.string(), options);
  });
}

std::unique_ptr<SessionObject> Create(ModelHandle model, double rope_ntk_factor) {
  const SessionOptions options{.rope_ntk_factor = rope_ntk_factor};
  return MakeSession(model, options,
                     [&](const std::shared_ptr<const Model>& loaded) { return Session::Create(loaded, options); });
}

std::unique_ptr<SessionObject> Fork(const SessionObject& self) {
  Session fork = self.Look([](const Session& session) { return Unwrap(session.Fork()); });
  return std::make_unique<SessionObject>(self.model(), std::move(fork), self.options());
}

nb::bytes ToBytes(const SessionObject& self) {
  const std::vector<std::byte> bytes = self.Look([](const Session& session) { return Unwrap(session.Serialize()); });
  return nb::bytes(bytes.data(), bytes.size());
}

void Prefill(SessionObject& self, nb::handle tokens) {
  const Tokens numbers(tokens);
  self.Feed(numbers.view(),
            [](Session& session, size_t, std::span<const int32_t> piece) { return session.Prefill(piece); });
}

nb::object Score(SessionObject& self, nb::handle tokens) {
  const Tokens numbers(tokens);
  const NewArray<float> nll({numbers.view().size()});
  self.Feed(numbers.view(), [&](Session& session, size_t at, std::span<const int32_t> piece) {
    return session.Score(piece, nll.view().subspan(at, piece.size()));
  });
  return nll.array();
}

nb::object PrefillLogits(SessionObject& self, nb::handle tokens) {
  const Tokens numbers(tokens);
  const auto width = static_cast<size_t>(self.model_object().model()->config().vocab_size);
  const NewArray<float> logits({numbers.view().size(), width});
  self.Feed(numbers.view(), [&](Session& session, size_t at, std::span<const int32_t> piece) {
    return session.PrefillLogits(piece, logits.view().subspan(at * width, piece.size() * width));
  });
  return logits.array();
}

nb::object MemoryOf(const SessionObject& self, int64_t layer, int64_t head, int64_t timescale, int64_t slot) {
  std::vector<float> matrix;
  self.Look([&](const Session& session) {
    const std::span<const float> view = session.cache().MemoryOf(layer, head, timescale, slot);
    matrix.assign(view.begin(), view.end());
  });
  if (matrix.empty()) {
    throw StatusError(InvalidArgument("there is no such memory: layer " + std::to_string(layer) + ", head " +
                                      std::to_string(head) + ", timescale " + std::to_string(timescale) + ", slot " +
                                      std::to_string(slot)));
  }
  const ModelConfig& config = self.model_object().model()->config();
  const bool pairs = config.cache.tensor_cache.address.features == MemoryFeatures::kSoftmaxPair;
  const size_t keys = static_cast<size_t>(config.HeadDim()) * (pairs ? 2 : 1);
  const NewArray<float> made({keys, matrix.size() / keys});
  std::copy(matrix.begin(), matrix.end(), made.view().begin());
  return made.array();
}

std::vector<SessionObject*> ObjectsOf(nb::handle sessions) {
  std::vector<SessionObject*> objects;
  for (const nb::handle session : sessions) objects.push_back(&nb::cast<SessionObject&>(session));
  return objects;
}

void DecodeBatch(nb::handle sessions, nb::handle tokens) {
  const Tokens numbers(tokens);
  const nb::object kept = nb::list(nb::borrow(sessions));
  const std::vector<SessionObject*> objects = ObjectsOf(kept);
  const nb::gil_scoped_release release;
  const LockedSessions locked(objects, /*change=*/true);
  Check(Session::DecodeBatch(locked.sessions(), numbers.view()));
}

nb::object BatchLogits(nb::handle sessions) {
  const nb::object kept = nb::list(nb::borrow(sessions));
  const std::vector<SessionObject*> objects = ObjectsOf(kept);
  const size_t width =
      objects.empty() ? 0 : static_cast<size_t>(objects[0]->model_object().model()->config().vocab_size);
  const NewArray<float> logits({objects.size(), width});
  {
    const nb::gil_scoped_release release;
    const LockedSessions locked(objects, /*change=*/false);
    const std::vector<const Session*> batch(locked.sessions().begin(), locked.sessions().end());
    Check(Session::BatchLogits(batch, logits.view()));
  }
  return logits.array();
}

}  // namespace

LockedSessions::LockedSessions(const std::vector<SessionObject*>& objects, bool change) : locked_(objects) {
  std::sort(locked_.begin(), locked_.end());
  locked_.erase(std::unique(locked_.begin(), locked_.end()), locked_.end());
  for (SessionObject* object : locked_) {
    object->mutex_.lock();
    if (change) ++object->version_;
  }
  for (SessionObject* object : objects) sessions_.push_back(&object->session_);
}

LockedSessions::~LockedSessions() {
  for (SessionObject* object : locked_) object->mutex_.unlock();
}

bool SessionObject::AllFit(const Session& session, std::span<const int32_t> tokens) {
  const int64_t vocab_size = session.model().config().vocab_size;
  return static_cast<int64_t>(tokens.size()) <= session.room() &&
         std::ranges::all_of(tokens, [&](int32_t token) { return token >= 0 && token < vocab_size; });
}

nb::object SessionObject::Logits() {
  uint64_t version = 0;
  {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    version = version_;
  }
  if (logits_.is_valid() && logits_version_ == version) return logits_;
  const NewArray<float> made({static_cast<size_t>(model_object().model()->config().vocab_size)});
  {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    version = version_;
    const Session* const self = &session_;
    Check(Session::BatchLogits({&self, 1}, made.view()));
  }
  logits_ = made.read_only();
  logits_version_ = version;
  return logits_;
}

nb::class_<SessionObject> BindSession(nb::module_& module, nb::class_<ModelObject>& model) {
  nb::class_<StateBytes>(module, "StateBytes", "Bytes of a session's state: what its cache keeps.")
      .def_ro("window", &StateBytes::window, "Keys and values of the window; method full: of every token.")
      .def_ro("sinks", &StateBytes::sinks, "Keys and values of the first tokens.")
      .def_ro("memory", &StateBytes::memory, "Matrices of the memories.")
      .def_prop_ro("total", &StateBytes::total, "All of them.")
      .def("__repr__", [](const StateBytes& self) {
        return "StateBytes(window=" + std::to_string(self.window) + ", sinks=" + std::to_string(self.sinks) +
               ", memory=" + std::to_string(self.memory) + ")";
      });

  nb::class_<SessionObject> session(module, "Session", kSessionDoc);
  session
      .def("prefill", Prefill, "tokens"_a, nb::sig("def prefill(self, " TC_TOKENS ") -> None"),
           "Reads the next tokens of the text, of any number, in parallel. A token outside the vocabulary is an error, "
           "and\n"
           "nothing has happened then. Ctrl-C ends it between two pieces of 2048 tokens; `position` tells how far it "
           "came.")
      .def(
          "decode",
          [](SessionObject& self, int32_t token) { self.Change([&](Session& s) { Check(s.Decode(token)); }); },
          "token"_a, "Reads the next token of the text.")
      .def("score", Score, "tokens"_a, nb::sig("def score(self, " TC_TOKENS ") -> " TC_FLOATS), kScoreDoc)
      .def("prefill_logits", PrefillLogits, "tokens"_a,
           nb::sig("def prefill_logits(self, " TC_TOKENS ") -> " TC_FLOATS),
           "Reads tokens, and gives the logits after each: (tokens, vocab_size).")
      .def_prop_ro(
          "logits", [](SessionObject& self) { return self.Logits(); }, nb::sig("def logits(self) -> " TC_FLOATS),
          "The logits after the last token, (vocab_size): made where they stay, read-only. The array is the same one\n"
          "until the session goes on, and keeps its numbers then. An error at the start of a text.")
      .def_prop_ro(
          "recent",
          [](const SessionObject& self) {
            std::vector<int32_t> tokens;
            self.Look([&](const Session& s) { tokens.assign(s.recent().begin(), s.recent().end()); });
            return TokenArray(tokens);
          },
          nb::sig("def recent(self) -> numpy.typing.NDArray[numpy.int32]"),
          "The last tokens, oldest first, at most 1024.")
      .def_prop_ro(
          "position",
          [](const SessionObject& self) { return self.Look([](const Session& s) { return s.position(); }); },
          "Tokens read.")
      .def_prop_ro(
          "room", [](const SessionObject& self) { return self.Look([](const Session& s) { return s.room(); }); },
          "How many more tokens it can read: any number, 2**63 - 1, but for models with learned positions.")
      .def_prop_ro(
          "state_bytes",
          [](const SessionObject& self) { return self.Look([](const Session& s) { return s.state_bytes(); }); },
          "What the session keeps of the text.")
      .def_prop_ro(
          "model", [](const SessionObject& self) { return self.model(); }, nb::sig("def model(self) -> Model"),
          "The model.")
      .def("memory", MemoryOf, "layer"_a, "head"_a, nb::kw_only(), "timescale"_a = 0, "slot"_a = 0,
           nb::sig("def memory(self, layer: int, head: int, *, timescale: int = 0, slot: int = 0) -> " TC_FLOATS),
           "A copy of one memory's matrix, to look at: keys by values.")
      .def(
          "clear", [](SessionObject& self) { self.Change([](Session& s) { s.Clear(); }); },
          "Back to the start of a text.")
      .def("fork", Fork, "An independent copy; costs next to nothing until one of the two goes on.")
      .def("__copy__", Fork)
      .def(
          "__deepcopy__", [](const SessionObject& self, nb::handle /*memo*/) { return Fork(self); }, "memo"_a)
      .def(
          "to_bytes", ToBytes,
          "The state as bytes with a checksum, of a size that does not grow. Model.session_from_bytes goes on bit for\n"
          "bit like this session, given the same options.")
      .def(
          "save",
          [](const SessionObject& self, const std::filesystem::path& path, bool durable) {
            self.Look([&](const Session& s) { Check(s.Save(path.string(), durable)); });
          },
          "path"_a, nb::kw_only(), "durable"_a = true,
          nb::sig("def save(self, path: str | os.PathLike[str], *, durable: bool = True) -> None"),
          "Writes the same bytes to a file, in one piece. Without `durable` it does not wait for the disk: a crash of\n"
          "the machine may then cost the file.")
      .def("__getstate__",
           [](const SessionObject& self) {
             return std::make_tuple(self.model(), ToBytes(self), self.options().rope_ntk_factor);
           })
      .def("__setstate__",
           [](SessionObject& self, const std::tuple<nb::object, nb::bytes, double>& state) {
             const auto& [model, bytes, factor] = state;
             if (!nb::isinstance<ModelObject>(model)) throw nb::type_error("not the state of a session");
             const SessionOptions options{.rope_ntk_factor = factor};
             Session restored =
                 Unwrap(Session::Deserialize(nb::inst_ptr<ModelObject>(model)->model(),
                                             {static_cast<const std::byte*>(bytes.data()), bytes.size()}, options));
             new (&self) SessionObject(model, std::move(restored), options);
           })
      .def("__repr__", [](const SessionObject& self) {
        return "<tensorcache.Session: " + self.Look([](const Session& s) {
          return std::to_string(s.position()) + " tokens read, state of " + std::to_string(s.state_bytes().total());
        }) + " bytes>";
      });

  model.def(
      "session", Create, "rope_ntk_factor"_a = 0.0,
      nb::sig("def session(self, rope_ntk_factor: float = 0.0) -> Session"),
      "A session at the start of a text. `rope_ntk_factor` scales the rotary embedding for texts so many times as\n"
      "long as those of the training; 0: as the model has it.");
  model.def(
      "session_from_bytes", FromBytes, "data"_a, "rope_ntk_factor"_a = 0.0,
      nb::sig("def session_from_bytes(self, data: bytes, rope_ntk_factor: float = 0.0) -> Session"),
      "The session of Session.to_bytes. Refuses, with the reason, what is damaged, or of another model or cache.");
  model.def(
      "session_from_file", FromFile, "path"_a, "rope_ntk_factor"_a = 0.0,
      nb::sig("def session_from_file(self, path: str | os.PathLike[str], rope_ntk_factor: float = 0.0) -> Session"),
      "The session of Session.save, refused as bytes are.");

  module.def("decode_batch", DecodeBatch, "sessions"_a, "tokens"_a,
             nb::sig("def decode_batch(sessions: collections.abc.Sequence[Session], " TC_TOKENS ") -> None"),
             kDecodeBatchDoc);
  module.def(
      "batch_logits", BatchLogits, "sessions"_a,
      nb::sig("def batch_logits(sessions: collections.abc.Sequence[Session]) -> " TC_FLOATS),
      "The logits of many sessions of one model, (sessions, vocab_size): the output matrix is read once for all.");
  return session;
}

}  // namespace tensorcache::python
