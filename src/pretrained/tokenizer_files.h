// The files that a tokenizer consists of, as they travel with a model.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pretrained/hf_config.h"
#include "pretrained/model_folder.h"
#include "tensorcache/status.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::pretrained {

// All names that such files have, and generation_config.json, which goes with them.
std::span<const std::string_view> TokenizerFileNames();

struct TokenizerFiles {
  std::vector<NamedFile> files;
  std::shared_ptr<const Tokenizer> tokenizer;  // null if there is none that we can read;
  std::string problem;                         // then this says why
};

// Those of a model's folder. A tokenizer that we cannot read travels all the same.
Result<TokenizerFiles> TokenizerFilesOf(const std::string& folder);
// Those that a user named: a folder, or a file and what belongs to it. Must be readable.
Result<TokenizerFiles> TokenizerFilesNamed(const std::string& path);

// The files as Hugging Face's library expects them: GPT-2's under their newer names, and a tokenizer_config.json. Adds to
// *notes what it cannot have.
Status MakeHfTokenizerFiles(TokenizerFiles* files, std::vector<std::string>* notes);
// The tokens that a config.json names.
HfTokens HfTokensOf(const TokenizerFiles& files);

}  // namespace tensorcache::pretrained
