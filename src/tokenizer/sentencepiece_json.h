// Hugging Face tokenizer.json of SentencePiece's BPE kind: Llama 2, Mistral, TinyLlama.
#pragma once

#include <memory>

#include "core/json.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::tokenizer {

// Whether the file is of this kind: its model falls back to bytes, or its pre-tokenizer is Metaspace.
bool IsSentencePieceJson(const Json& json);

// Spaces are U+2581 in the vocabulary, put there by the normalizer (Prepend, Replace) or by the pre-tokenizer Metaspace.
// Refuses what would change the tokens and is not known here. Added tokens are found as they are spelled, whatever
// `normalized` says; Hugging Face's library finds those with `normalized` only behind a space. `config` is
// tokenizer_config.json, or null: it names the begin and the end token; without it they are <s> and </s>.
Result<std::shared_ptr<const Tokenizer>> ParseSentencePieceJson(const Json& json, const Json& config);

}  // namespace tensorcache::tokenizer
