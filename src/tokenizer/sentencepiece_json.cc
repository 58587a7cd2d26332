#include "tokenizer/sentencepiece_json.h"

#include <fmt/format.h>

#include <unordered_set>
#include <utility>

#include "core/text.h"
#include "tokenizer/files.h"
#include "tokenizer/fingerprint.h"
#include "tokenizer/json_parts.h"
#include "tokenizer/merge_reader.h"
#include "tokenizer/piece_bpe.h"
#include "tokenizer/sentencepiece_tokenizer.h"
#include "tokenizer/tokenizer_json.h"

namespace tensorcache::tokenizer {
namespace {

// What the file says.
struct Parts {
  std::vector<std::string> names;  // by token, as they are spelled; empty where there is no such token
  std::vector<AddedToken> added;
  std::vector<Merge> merges;
  bool byte_fallback = false;
  int32_t unknown = -1;
  bool fuse_unknown = false;
  bool has_normalizer = false;
  SpacePrefix prefix = SpacePrefix::kNever;
  bool only_missing_prefix = false;  // no second space before text that begins with one
  bool split_words = false;
};

bool ReplacesSpaces(const Json& part, std::string_view from, std::string_view to) {
  return TypeOf(part) == "Replace" && IsText(Get(Get(part, "pattern"), "String"), from) &&
         IsText(Get(part, "content"), to);
}

// Calls `read` with the parts of a Sequence, or the part itself.
template <class Read>
Status ForEachPart(const Json& json, const char* key, const Read& read) {
  if (json.is_null()) return OkStatus();
  const Json& list = Get(json, key);
  if (TypeOf(json) != "Sequence" || !list.is_array()) return read(json);
  for (const Json& part : list) TC_RETURN_IF_ERROR(read(part));
  return OkStatus();
}

Status ReadNormalizer(const Json& normalizer, Parts* parts) {
  bool replaces = false;
  TC_RETURN_IF_ERROR(ForEachPart(normalizer, "normalizers", [&](const Json& part) {
    if (ReplacesSpaces(part, " ", kSpaceSign)) {
      replaces = true;
    } else if (TypeOf(part) == "Prepend" && IsText(Get(part, "prepend"), kSpaceSign)) {
      parts->prefix = SpacePrefix::kAlways;
    } else {
      return RefusePart("normalizer", part, "Prepend of U+2581 and Replace of spaces by it");
    }
    parts->has_normalizer = true;
    return OkStatus();
  }));
  if (parts->has_normalizer && !replaces) return Unsupported("normalizer: Prepend without Replace is not supported");
  return OkStatus();
}

Status ReadMetaspace(const Json& metaspace, Parts* parts) {
  if (!IsText(Get(metaspace, "replacement"), kSpaceSign)) {
    return Unsupported("pre_tokenizer: Metaspace is supported only with the replacement U+2581");
  }
  const Json& scheme = Get(metaspace, "prepend_scheme");
  const Json& old_scheme = Get(metaspace, "add_prefix_space");
  if (IsText(scheme, "always") || (scheme.is_null() && (old_scheme.is_null() || IsTrue(old_scheme)))) {
    parts->prefix = SpacePrefix::kAlways;
  } else if (IsText(scheme, "first")) {
    parts->prefix = SpacePrefix::kFirst;
  } else if (!scheme.is_null() && !IsText(scheme, "never")) {
    return Unsupported(fmt::format("pre_tokenizer: prepend_scheme {} is not supported", Describe(scheme)));
  }
  parts->only_missing_prefix = true;
  const Json& split = Get(metaspace, "split");
  parts->split_words = split.is_null() || IsTrue(split);
  return OkStatus();
}

Status ReadPreTokenizer(const Json& pre_tokenizer, Parts* parts) {
  const bool is_metaspace = TypeOf(pre_tokenizer) == "Metaspace";
  if (is_metaspace != parts->has_normalizer) {
    if (is_metaspace) return ReadMetaspace(pre_tokenizer, parts);
    // Behind a Replace of all spaces, a Split at spaces does nothing.
    const bool splits_nothing =
        TypeOf(pre_tokenizer) == "Split" && IsText(Get(Get(pre_tokenizer, "pattern"), "String"), " ");
    if (pre_tokenizer.is_null() || splits_nothing) return OkStatus();
  }
  return RefusePart("pre_tokenizer", pre_tokenizer,
                    "Metaspace, or none behind a normalizer that replaces spaces (in a model with byte_fallback)");
}

// Decoding undoes the encoding, so there is nothing to take from here.
Status CheckDecoder(const Json& decoder) {
  return ForEachPart(decoder, "decoders", [](const Json& part) {
    const std::string_view type = TypeOf(part);
    const bool is_strip = type == "Strip" && IsText(Get(part, "content"), " ") && Get(part, "start") == 1 &&
                          (Get(part, "stop").is_null() || Get(part, "stop") == 0);
    if (!is_strip && !ReplacesSpaces(part, kSpaceSign, " ") && type != "ByteFallback" && type != "Fuse" &&
        type != "Metaspace") {
      return RefusePart("decoder", part, "Metaspace, and Replace, ByteFallback, Fuse and Strip of one space");
    }
    return OkStatus();
  });
}

Status ReadTokens(const Json& json, Parts* parts) {
  const Json& vocabulary = Get(Get(json, "model"), "vocab");
  const Json& added = Get(json, "added_tokens");
  if (!added.is_null() && !added.is_array()) return Corrupt("'added_tokens' is not an array");
  const size_t count = vocabulary.size() + added.size();
  const auto place = [&](int32_t number, const std::string& name) {
    if (name.empty()) return Corrupt(fmt::format("token {} is empty", number));
    return PlaceToken(number, name, count, &parts->names);
  };
  for (const auto& [name, value] : vocabulary.items()) {
    const auto number = TokenNumber(value);
    if (!number) {
      return Corrupt(fmt::format("the number of token {} is {}; expected 0 to {}", Quoted(name), Quoted(value.dump()),
                                 BpeMerges::kMaxTokens - 1));
    }
    TC_RETURN_IF_ERROR(place(*number, name));
  }
  for (const Json& json_token : added) {
    TC_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(json_token));
    TC_RETURN_IF_ERROR(place(token.id, token.text));
    if (!token.special && parts->has_normalizer && IsTrue(Get(json_token, "normalized"))) {
      return Unsupported(
          fmt::format("added_tokens: normalized of {}, which is not special, is not supported with a normalizer",
                      Quoted(token.text)));
    }
    parts->added.push_back(std::move(token));
  }
  if (parts->names.empty()) return Corrupt("the vocabulary is empty");
  return OkStatus();
}

Status ReadModel(const Json& model, Parts* parts) {
  parts->byte_fallback = IsTrue(Get(model, "byte_fallback"));
  parts->fuse_unknown = IsTrue(Get(model, "fuse_unk"));
  if (IsTrue(Get(model, "ignore_merges"))) {
    return Unsupported("model: ignore_merges is not supported for SentencePiece BPE");
  }
  if (const Json& unknown = Get(model, "unk_token"); unknown.is_string()) {
    const auto number = TokenNumber(Get(Get(model, "vocab"), unknown.get_ref<const std::string&>().c_str()));
    if (!number)
      return Corrupt(fmt::format("model.unk_token {} is not in the vocabulary", Quoted(std::string(unknown))));
    parts->unknown = *number;
  }
  return OkStatus();
}

// The tokens that merges can make: not the unknown and not those of single bytes. U+2581 becomes a space, so a name with
// a real space, which no text has behind the normalizer, must not be mistaken for it.
std::vector<std::string> MergeablePieces(const Parts& parts) {
  std::vector<std::string> pieces(parts.names.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::string& name = parts.names[i];
    const bool is_byte = parts.byte_fallback && ByteOfPiece(name) >= 0;
    if (!is_byte && static_cast<int32_t>(i) != parts.unknown && name.find(' ') == name.npos)
      pieces[i] = WithSpaces(name);
  }
  return pieces;
}

Status ReadMerges(const Json& merges, Parts* parts, const std::vector<std::string>& pieces) {
  MergeReader reader(pieces, MergeSpelling::kSpaceSign);
  TC_RETURN_IF_ERROR(ReadJsonMerges(merges, &reader));
  parts->merges = reader.TakeMerges();
  if (std::ssize(pieces) > BpeMerges::kMaxTokens || std::ssize(parts->merges) > BpeMerges::kMaxMerges) {
    return Unsupported(fmt::format("{} tokens and {} merges; the largest vocabulary is {} tokens", pieces.size(),
                                   parts->merges.size(), BpeMerges::kMaxTokens));
  }
  std::unordered_set<uint64_t> pairs;
  for (size_t rank = 0; rank < parts->merges.size(); ++rank) {
    const auto [left, right, merged] = parts->merges[rank];
    if (!pairs.insert(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right)).second) {
      return Corrupt(
          fmt::format("merge {}, of {} and {}, is there twice", rank, Quoted(pieces[left]), Quoted(pieces[right])));
    }
  }
  return OkStatus();
}

uint64_t FingerprintOf(const Parts& parts) {
  Fingerprint fingerprint;
  fingerprint.Add("SentencePiece BPE");
  for (const bool flag : {parts.byte_fallback, parts.fuse_unknown, parts.only_missing_prefix, parts.split_words}) {
    fingerprint.Add(flag);
  }
  fingerprint.Add(static_cast<uint64_t>(parts.prefix));
  fingerprint.Add(static_cast<uint64_t>(parts.unknown));
  for (const std::string& name : parts.names) fingerprint.Add(name);
  for (const auto& [left, right, merged] : parts.merges) {
    fingerprint.Add(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right));
    fingerprint.Add(static_cast<uint64_t>(merged));
  }
  for (const AddedToken& token : parts.added) {
    fingerprint.Add(static_cast<uint64_t>(token.id));
    fingerprint.Add(token.special);
  }
  return fingerprint.value();
}

// The added token that `key` of tokenizer_config.json names, as a text or as an object; otherwise the token `fallback`;
// -1 if there is none.
int32_t NamedToken(const Json& config, const char* key, std::string_view fallback, const AddedTokens& added) {
  const Json& named = Get(config, key);
  const Json& text = named.is_object() ? Get(named, "content") : named;
  const int32_t token = text.is_string() ? added.Find(text.get_ref<const std::string&>()) : -1;
  return token >= 0 ? token : added.Find(fallback);
}

// What NamedToken reads again.
std::string ConfigText(const SentencePieceParts& parts) {
  std::string lines;
  const auto add = [&](std::string_view key, int32_t token) {
    if (token < 0) return;
    lines += fmt::format("{}  \"{}\": {}", lines.empty() ? "" : ",\n", key, Json(parts.tokens[token]).dump());
  };
  add("bos_token", parts.begin_of_text);
  add("eos_token", parts.end_of_text);
  return lines.empty() ? "" : fmt::format("{{\n{}\n}}\n", lines);
}

PieceBpeParts BpePartsOf(const Parts& parts, std::vector<std::string> pieces) {
  PieceBpeParts bpe{.pieces = std::move(pieces),
                    .merges = parts.merges,
                    .unknown = parts.unknown,
                    .fuse_unknown = parts.fuse_unknown,
                    .split_words = parts.split_words};
  bpe.byte_tokens.fill(-1);
  for (size_t i = 0; parts.byte_fallback && i < parts.names.size(); ++i) {
    if (const int byte = ByteOfPiece(parts.names[i]); byte >= 0) bpe.byte_tokens[byte] = static_cast<int32_t>(i);
  }
  return bpe;
}

}  // namespace

bool IsSentencePieceJson(const Json& json) {
  return IsTrue(Get(Get(json, "model"), "byte_fallback")) || TypeOf(Get(json, "pre_tokenizer")) == "Metaspace";
}

Result<std::shared_ptr<const Tokenizer>> ParseSentencePieceJson(const Json& json, const Json& config) {
  Parts parts;
  const Json& model = Get(json, "model");
  TC_RETURN_IF_ERROR(CheckBpeModel(model, "BPE"));
  TC_RETURN_IF_ERROR(ReadNormalizer(Get(json, "normalizer"), &parts));
  TC_RETURN_IF_ERROR(ReadPreTokenizer(Get(json, "pre_tokenizer"), &parts));
  TC_RETURN_IF_ERROR(CheckDecoder(Get(json, "decoder")));
  TC_RETURN_IF_ERROR(ReadTokens(json, &parts));
  TC_RETURN_IF_ERROR(ReadModel(model, &parts));
  std::vector<std::string> pieces = MergeablePieces(parts);
  TC_RETURN_IF_ERROR(ReadMerges(Get(model, "merges"), &parts, pieces));

  SentencePieceParts made{.kind = "SentencePiece BPE (tokenizer.json)", .prefix = parts.prefix};
  made.fingerprint = FingerprintOf(parts);
  made.encoder = MakeBpeSegments(BpePartsOf(parts, std::move(pieces)), parts.only_missing_prefix);
  for (const std::string& name : parts.names) {
    const int byte = parts.byte_fallback ? ByteOfPiece(name) : -1;
    made.tokens.push_back(byte >= 0 ? std::string(1, static_cast<char>(byte)) : WithSpaces(name));
  }
  for (const AddedToken& token : parts.added) made.tokens[token.id] = token.text;
  const AddedTokens added(parts.added);
  made.begin_of_text = NamedToken(config, "bos_token", "<s>", added);
  made.end_of_text = NamedToken(config, "eos_token", "</s>", added);
  for (AddedToken& token : parts.added)
    (token.id == parts.unknown ? made.named : made.added).push_back(std::move(token));
  made.file_name = kTokenizerJson;
  made.file = json.dump();
  made.config = ConfigText(made);
  return MakeSentencePieceTokenizer(std::move(made));
}

}  // namespace tensorcache::tokenizer
