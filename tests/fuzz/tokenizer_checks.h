// What is true of every tokenizer, wherever it came from.
#pragma once

#include <memory>
#include <string_view>

#include "tensorcache/tokenizer.h"

namespace tensorcache::fuzz {

// Encodes `text`, decodes, and takes the tokenizer through Save and LoadTokenizer.
void CheckTokenizer(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view text);

}  // namespace tensorcache::fuzz
