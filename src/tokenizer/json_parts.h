// Looking at parts of tokenizer.json, and refusing those that are not known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "tensorcache/status.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/merge_reader.h"

namespace tensorcache::tokenizer {

// object[key], or null.
const Json& Get(const Json& object, const char* key);
bool IsTrue(const Json& value);
// Unlike ==, it makes no Json of `text` first, which where memory ends ends the program.
bool IsText(const Json& value, std::string_view text);
// object["type"], or "".
std::string_view TypeOf(const Json& object);
// How a part of the file is named in messages.
std::string Describe(const Json& part);
Status RefusePart(std::string_view name, const Json& part, std::string_view known);

// tokens[number] = text, in a file that names `count` tokens. kUnsupported if there would be many more numbers than
// tokens, as a few bytes must not ask for much memory; kCorrupt if another token has the number.
Status PlaceToken(int32_t number, const std::string& text, size_t count, std::vector<std::string>* tokens);

// An entry of added_tokens. Refuses the options that would change where it is found.
Result<AddedToken> ReadAddedToken(const Json& json);
// That `model` is BPE, with nothing in it that no kind has here.
Status CheckBpeModel(const Json& model, std::string_view known);
Status ReadJsonMerges(const Json& merges, MergeReader* reader);

}  // namespace tensorcache::tokenizer
