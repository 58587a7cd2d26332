// Hugging Face tokenizer.json: the byte-level BPE kinds here, SentencePiece's in sentencepiece_json.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/json.h"
#include "tensorcache/tokenizer.h"
#include "tokenizer/byte_level_bpe.h"

namespace tensorcache::tokenizer {

// Refuses (kUnsupported) whatever would change how text is encoded and is not known here: other models, normalizers,
// pre-tokenizers, decoders. Ignores what has no part in it: truncation, padding, and the post-processor, which only adds
// begin and end tokens. Messages name the field, not the file. `config`, tokenizer_config.json if there is one, matters
// only to the SentencePiece kind.
Result<std::shared_ptr<const Tokenizer>> ParseTokenizerJson(const Json& json, const Json& config = {});

// Writes tokenizer.json, as ParseTokenizerJson and Hugging Face's library read it.
Status SaveTokenizerJson(const BpeParts& parts, const std::string& folder);

// A number that a token may have.
std::optional<int32_t> TokenNumber(const Json& json);

// From token -> number, spelled as in byte_level.h, to parts.tokens. Tokens in parts->added stand for themselves.
Status ReadVocabulary(const Json& vocabulary, BpeParts* parts);

}  // namespace tensorcache::tokenizer
