// The Python class Tokenizer.
#pragma once

#include <memory>
#include <string>

#include "tensorcache/tokenizer.h"

namespace tensorcache::python {

struct TokenizerObject {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string source;  // what LoadTokenizer was given; "" if it was not loaded: then it cannot be pickled
};

}  // namespace tensorcache::python
