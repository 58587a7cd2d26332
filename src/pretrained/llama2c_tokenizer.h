// The tokenizer files of llama2.c: the pieces of a SentencePiece model and their scores, without the rest of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tensorcache/status.h"

namespace tensorcache::pretrained {

// The tokenizer.model that encodes as llama2.c does: BPE by score, a space before the text, unknown characters as bytes.
// The file does not say how many tokens it has: `vocab_size` is the model's. Messages do not name the file.
Result<std::string> ConvertLlama2cTokenizer(std::string_view bytes, int64_t vocab_size);

}  // namespace tensorcache::pretrained
