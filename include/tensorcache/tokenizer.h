// Text to token numbers and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorcache/status.h"

namespace tensorcache {

struct EncodeOptions {
  // Whether control tokens such as <|endoftext|> are found in the text. If not, their characters are plain text, which is
  // what text from outside needs.
  bool special_tokens = false;
};

// Immutable and thread-safe. What has no room in memory is kIoError; after any error, what was to be appended to is as it
// was before.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // What a person would call it: "byte-level BPE (GPT-2)".
  virtual std::string kind() const { return "tokenizer"; }
  virtual int64_t vocab_size() const = 0;
  // Appends the tokens of `text`. Fails on text the tokenizer cannot represent. Never adds a begin or end token.
  Status Encode(std::string_view text, std::vector<int32_t>* tokens) const { return EncodeWith({}, text, tokens); }
  // The same, with options; a tokenizer without special tokens ignores them.
  Status EncodeWith(const EncodeOptions& options, std::string_view text, std::vector<int32_t>* tokens) const;
  // Appends the bytes of `tokens`; numbers outside the vocabulary are an error. Special tokens give their text. Undoes
  // Encode: the space that SentencePiece tokenizers put before the first word, and before the first word after a special
  // token, is dropped again. So these must be the tokens of a text from its start; for others there is DecodeAfter.
  Status Decode(std::span<const int32_t> tokens, std::string* text) const { return DecodeAfter(-1, tokens, text); }
  // The same for tokens that go on after the token `previous`, or begin a text if it is -1. What it gives for the parts of
  // a sequence, each after the last token of the part before, is what Decode gives for the whole.
  Status DecodeAfter(int32_t previous, std::span<const int32_t> tokens, std::string* text) const;
  // The token that ends a document, or -1.
  virtual int32_t end_of_text() const { return -1; }
  // The token that some models want before a document, or -1.
  virtual int32_t begin_of_text() const { return -1; }
  // The special or added token with this text, such as "<|im_end|>", or -1.
  virtual int32_t FindSpecial(std::string_view /*text*/) const { return -1; }
  // Whether `token` is a control token, which is not shown to readers.
  virtual bool IsSpecial(int32_t /*token*/) const { return false; }
  // Writes the file or files that LoadTokenizer reads again into `folder`, which must exist.
  Status Save(const std::string& folder) const;
  // Of everything that decides how text is encoded; the same for equal tokenizers on any machine.
  virtual uint64_t fingerprint() const = 0;

 private:
  // EncodeWith, DecodeAfter and Save, which may throw, and may leave anything behind what was there after an error.
  virtual Status DoEncode(const EncodeOptions& options, std::string_view text, std::vector<int32_t>* tokens) const = 0;
  virtual Status DoDecode(int32_t previous, std::span<const int32_t> tokens, std::string* text) const = 0;
  virtual Status DoSave(const std::string& folder) const = 0;
};

// `path_or_name` is "bytes", or a folder with tokenizer.json, tokenizer.model, encoder.json and vocab.bpe, vocab.json and
// merges.txt, characters.json or bytes.json (the first of these that is there; a tokenizer.json of an unsupported kind
// gives way to a tokenizer.model beside it), or one of these files. Kinds: bytes, characters, GPT-2 (both spellings),
// SentencePiece models, and tokenizer.json of byte-level BPE with the pre-tokenizer of GPT-2, Llama 3 or Qwen 2, or of
// SentencePiece BPE as of Llama 2.
Result<std::shared_ptr<const Tokenizer>> LoadTokenizer(const std::string& path_or_name);

// 256 tokens, one a byte.
std::shared_ptr<const Tokenizer> MakeByteTokenizer();

// One token for each of the distinct characters of `text`, which must be UTF-8, in the order of their code points.
// Encoding any other character is an error.
Result<std::shared_ptr<const Tokenizer>> MakeCharacterTokenizer(std::string_view text);

// A byte-level BPE vocabulary of the GPT-2 kind, learned from `texts`: 256 bytes, merges of the most frequent pairs, and
// <|endoftext|> as the last token. Smaller than `vocab_size` (at least 257) if no pair is left that occurs twice. A pure
// function of its arguments. Takes memory for every distinct word; 50 MB and 32,000 tokens take a few seconds.
Result<std::shared_ptr<const Tokenizer>> TrainByteLevelBpe(std::span<const std::string_view> texts, int64_t vocab_size);

// Turns tokens that come one by one into text for people: only whole UTF-8 characters come out, each as soon as its last
// byte is there. Bytes that are no character, which a model may well produce, come out as U+FFFD.
class StreamDecoder {
 public:
  // `previous` is the token before the first that is pushed: the last of the prompt, whose text the stream goes on. With
  // -1 the stream begins a text, and a SentencePiece tokenizer's first word comes without its space.
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, int32_t previous = -1)
      : tokenizer_(std::move(tokenizer)), previous_(previous) {}

  // Appends to *text the characters that `token` completes. After an error (a number outside the vocabulary, no memory)
  // nothing has changed.
  Status Push(int32_t token, std::string* text);
  // The end of the stream: an unfinished character comes out as U+FFFD. The decoder can be used again, for a new text.
  // Fails only where there is no memory, and has changed nothing then.
  Status Finish(std::string* text);

 private:
  Status Flush(bool is_end, std::string* text);

  std::shared_ptr<const Tokenizer> tokenizer_;
  int32_t previous_;
  std::string pending_;  // the bytes of an unfinished character, at most 3 between calls
};

}  // namespace tensorcache
