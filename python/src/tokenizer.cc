#include "tokenizer.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>
#include <vector>

#include "arguments.h"
#include "module.h"

namespace tensorcache::python {
namespace {

using nb::literals::operator""_a;

constexpr const char* kTokenizerDoc = R"(Text to token numbers and back.

`source` is a folder with tokenizer.json, tokenizer.model, vocab.json and merges.txt or the like, one of these files, or
"bytes": 256 tokens, one a byte. Immutable; any number of threads may use it.

>>> import tensorcache as tc
>>> bytes_ = tc.Tokenizer("bytes")
>>> bytes_.encode("Hi!")
array([ 72, 105,  33], dtype=int32)
>>> bytes_.decode([72, 105, 33])
'Hi!'
>>> bytes_.vocab_size
256
)";

constexpr const char* kStreamDecoderDoc = R"(Turns tokens that come one by one into text.

Only whole characters come out, each as soon as its last byte is there. `previous` is the token before the first that is
pushed, or -1 at the start of a text.

>>> import tensorcache as tc
>>> stream = tc.StreamDecoder(tc.Tokenizer("bytes"))
>>> [stream.push(byte) for byte in "né".encode()]
['n', '', 'é']
>>> stream.finish()
''
)";

std::optional<int32_t> TokenOrNone(int32_t token) { return token < 0 ? std::nullopt : std::optional(token); }

nb::object Encode(const TokenizerObject& self, std::string_view text, bool special_tokens) {
  std::vector<int32_t> tokens;
  {
    const nb::gil_scoped_release release;
    Check(self.tokenizer->EncodeWith({.special_tokens = special_tokens}, text, &tokens));
  }
  return TokenArray(tokens);
}

std::string DecodeBytes(const TokenizerObject& self, nb::handle tokens, int32_t previous) {
  const Tokens numbers(tokens);
  std::string text;
  const nb::gil_scoped_release release;
  Check(self.tokenizer->DecodeAfter(previous, numbers.view(), &text));
  return text;
}

nb::object AsText(const std::string& bytes) {
  const nb::object text =
      nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
  if (!text.is_valid()) throw nb::python_error();
  return text;
}

TokenizerObject Train(const std::vector<std::string>& texts, int64_t vocab_size) {
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const nb::gil_scoped_release release;
  return {.tokenizer = Unwrap(TrainByteLevelBpe(views, vocab_size)), .source = ""};
}

std::string State(const TokenizerObject& self) {
  if (!self.source.empty()) return self.source;
  throw StatusError(Unsupported("this tokenizer is in no file, so it cannot be pickled; save it, and load the folder"));
}

template <class F>
std::string Streamed(F call) {
  std::string text;
  Check(call(&text));
  return text;
}

}  // namespace

void BindTokenizer(nb::module_& module) {
  nb::class_<TokenizerObject>(module, "Tokenizer", kTokenizerDoc)
      .def(
          "__init__",
          [](TokenizerObject* self, const std::filesystem::path& source) {
            nb::gil_scoped_release release;
            new (self) TokenizerObject{.tokenizer = Unwrap(LoadTokenizer(source.string())), .source = source.string()};
          },
          "source"_a, nb::sig("def __init__(self, source: str | os.PathLike[str]) -> None"))
      .def_static("train", Train, "texts"_a, "vocab_size"_a,
                  "A byte-level BPE vocabulary of at most `vocab_size` tokens, learned from `texts`.\n\n"
                  ">>> import tensorcache as tc\n"
                  ">>> learned = tc.Tokenizer.train(['banana bandana'], vocab_size=260)\n"
                  ">>> len(learned.encode('banana'))\n"
                  "2\n")
      .def("encode", Encode, "text"_a, nb::kw_only(), "special_tokens"_a = false,
           nb::sig("def encode(self, text: str, *, special_tokens: bool = False) -> "
                   "numpy.typing.NDArray[numpy.int32]"),
           "The tokens of `text`, without any begin or end token. With `special_tokens`, control tokens such as\n"
           "<|endoftext|> are found in the text; without, which is what text from outside needs, they are plain text.")
      .def(
          "decode",
          [](const TokenizerObject& self, nb::handle tokens, int32_t previous) {
            return AsText(DecodeBytes(self, tokens, previous));
          },
          "tokens"_a, nb::kw_only(), "previous"_a = -1,
          nb::sig("def decode(self, tokens: collections.abc.Sequence[int] | numpy.typing.NDArray[numpy.integer], *, "
                  "previous: int = -1) -> str"),
          "The text of `tokens`, which go on after the token `previous`, or begin a text. Bytes that are no character\n"
          "come out as U+FFFD; `decode_bytes` has them as they are.")
      .def(
          "decode_bytes",
          [](const TokenizerObject& self, nb::handle tokens, int32_t previous) {
            const std::string text = DecodeBytes(self, tokens, previous);
            return nb::bytes(text.data(), text.size());
          },
          "tokens"_a, nb::kw_only(), "previous"_a = -1,
          nb::sig("def decode_bytes(self, tokens: collections.abc.Sequence[int] | "
                  "numpy.typing.NDArray[numpy.integer], *, previous: int = -1) -> bytes"),
          "The bytes of `tokens`.")
      .def(
          "find_special",
          [](const TokenizerObject& self, std::string_view text) {
            return TokenOrNone(self.tokenizer->FindSpecial(text));
          },
          "text"_a, "The special token with this text, such as <|im_end|>, or None.")
      .def(
          "is_special", [](const TokenizerObject& self, int32_t token) { return self.tokenizer->IsSpecial(token); },
          "token"_a, "Whether `token` is a control token, which readers are not shown.")
      .def(
          "save",
          [](const TokenizerObject& self, const std::filesystem::path& folder) {
            nb::gil_scoped_release release;
            Check(self.tokenizer->Save(folder.string()));
          },
          "folder"_a, nb::sig("def save(self, folder: str | os.PathLike[str]) -> None"),
          "Writes the files that Tokenizer(folder) reads into `folder`, which must exist.")
      .def_prop_ro(
          "kind", [](const TokenizerObject& self) { return self.tokenizer->kind(); }, "What kind it is, in words.")
      .def_prop_ro(
          "vocab_size", [](const TokenizerObject& self) { return self.tokenizer->vocab_size(); },
          "How many tokens there are.")
      .def_prop_ro(
          "end_of_text", [](const TokenizerObject& self) { return TokenOrNone(self.tokenizer->end_of_text()); },
          "The token that ends a document, or None.")
      .def_prop_ro(
          "begin_of_text", [](const TokenizerObject& self) { return TokenOrNone(self.tokenizer->begin_of_text()); },
          "The token that some models want before a document, or None.")
      .def_prop_ro(
          "fingerprint", [](const TokenizerObject& self) { return self.tokenizer->fingerprint(); },
          "Of everything that decides how text is encoded: the same for equal tokenizers.")
      .def("__getstate__", State)
      .def("__setstate__",
           [](TokenizerObject& self, const std::string& source) {
             new (&self) TokenizerObject{.tokenizer = Unwrap(LoadTokenizer(source)), .source = source};
           })
      .def("__repr__", [](const TokenizerObject& self) {
        return "<tensorcache.Tokenizer: " + self.tokenizer->kind() + ", " +
               std::to_string(self.tokenizer->vocab_size()) + " tokens>";
      });

  nb::class_<StreamDecoder>(module, "StreamDecoder", kStreamDecoderDoc)
      .def(
          "__init__",
          [](StreamDecoder* self, const TokenizerObject& tokenizer, int32_t previous) {
            new (self) StreamDecoder(tokenizer.tokenizer, previous);
          },
          "tokenizer"_a, nb::kw_only(), "previous"_a = -1)
      .def(
          "push",
          [](StreamDecoder& self, int32_t token) {
            return Streamed([&](std::string* text) { return self.Push(token, text); });
          },
          "token"_a, "The characters that `token` completes.")
      .def(
          "finish", [](StreamDecoder& self) { return Streamed([&](std::string* text) { return self.Finish(text); }); },
          "The end of the stream: an unfinished character comes out as U+FFFD.");
}

}  // namespace tensorcache::python
