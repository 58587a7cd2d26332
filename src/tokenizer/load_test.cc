// LoadTokenizer and the tokenizers without merges.
#include <gtest/gtest.h>

#include "tokenizer/files.h"
#include "tokenizer/sentencepiece_testing.h"
#include "tokenizer/tokenizer_testing.h"

namespace tensorcache::tokenizer {
namespace {

using Tokens = std::vector<int32_t>;

std::string LoadError(const std::string& path) {
  const auto tokenizer = LoadTokenizer(path);
  return tokenizer.ok() ? "loaded" : MessageOf(tokenizer.status());
}

Json Vocabulary() { return SmallTokenizerJson({{"h", "e"}})["model"]["vocab"]; }

TEST(ByteTokenizer, IsOneTokenAByte) {
  const auto tokenizer = MakeByteTokenizer();
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const Tokens tokens = EncodeOrFail(*tokenizer, all);
  ASSERT_EQ(tokens.size(), 256);
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(tokens[byte], byte);
  EXPECT_EQ(DecodeOrFail(*tokenizer, tokens), all);
  std::string text = "x";
  EXPECT_EQ(MessageOf(tokenizer->Decode(Tokens{65, 256}, &text)), "there is no token 256: bytes are 0 to 255");
  EXPECT_EQ(text, "x");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->end_of_text(), -1);
}

TEST(CharacterTokenizer, SortsTheCharacters) {
  const auto tokenizer = MakeCharacterTokenizer("b\u00E9a\U0001F999ab\n").value();
  EXPECT_EQ(tokenizer->vocab_size(), 5);
  const Tokens tokens = EncodeOrFail(*tokenizer, "\nab\u00E9\U0001F999");
  EXPECT_EQ(tokens, (Tokens{0, 1, 2, 3, 4}));
  EXPECT_EQ(DecodeOrFail(*tokenizer, tokens), "\nab\u00E9\U0001F999");
}

TEST(CharacterTokenizer, NamesWhatItDoesNotKnow) {
  const auto tokenizer = MakeCharacterTokenizer("ab\u00E9").value();
  Tokens tokens = {1};
  EXPECT_EQ(MessageOf(tokenizer->Encode("a\u00E9\u4E00b", &tokens)),
            "the character '\u4E00' (U+4E00) at byte 3 of the text is not in the vocabulary of 3");
  EXPECT_EQ(MessageOf(tokenizer->Encode("ab\xFF", &tokens)),
            "the character '\\xff' (not UTF-8) at byte 2 of the text is not in the vocabulary of 3");
  EXPECT_EQ(tokens, Tokens{1});
  std::string text;
  EXPECT_FALSE(tokenizer->Decode(Tokens{3}, &text).ok());
  EXPECT_FALSE(tokenizer->Decode(Tokens{-1}, &text).ok());
  EXPECT_FALSE(MakeCharacterTokenizer("").ok());
  EXPECT_EQ(MessageOf(MakeCharacterTokenizer("ab\xC3").status()),
            "the text is not UTF-8 at byte 2; take the tokenizer 'bytes'");
}

TEST(Load, ReadsWhatWasSaved) {
  const auto characters = MakeCharacterTokenizer("to be\n\"or\" \\ not\u00E9\x01").value();
  const auto other = MakeCharacterTokenizer("to be").value();
  EXPECT_NE(characters->fingerprint(), other->fingerprint());
  EXPECT_NE(characters->fingerprint(), MakeByteTokenizer()->fingerprint());
  for (const auto& tokenizer : {characters, MakeByteTokenizer()}) {
    const TempFolder folder;
    ASSERT_TRUE(tokenizer->Save(folder.path()).ok());
    const auto again = LoadTokenizer(folder.path());
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ((*again)->fingerprint(), tokenizer->fingerprint());
    EXPECT_EQ((*again)->vocab_size(), tokenizer->vocab_size());
  }
  EXPECT_EQ((*LoadTokenizer("bytes"))->fingerprint(), MakeByteTokenizer()->fingerprint());
}

TEST(Load, SaveRefusesAFolderWithATokenizerThatWouldBeReadInstead) {
  const TempFolder folder;
  folder.Put("tokenizer.json", "{}");
  EXPECT_EQ(MessageOf(MakeByteTokenizer()->Save(folder.path())),
            folder.path() + ": there is already a tokenizer.json, another tokenizer; remove it first");
  const TempFolder second;
  ASSERT_TRUE(MakeCharacterTokenizer("ab").value()->Save(second.path()).ok());
  ASSERT_TRUE(MakeCharacterTokenizer("abc").value()->Save(second.path()).ok());
  EXPECT_FALSE(MakeByteTokenizer()->Save(second.path()).ok());
  EXPECT_EQ((*LoadTokenizer(second.path()))->vocab_size(), 3);
  EXPECT_FALSE(MakeByteTokenizer()->Save(second.path() + "/missing").ok());
}

TEST(Load, ReadsPairsOfFiles) {
  for (const auto& [vocabulary, merges] : kFilePairs) {
    const TempFolder folder;
    Json vocab = Vocabulary();
    vocab["<|endoftext|>"] = 257;
    const std::string first = folder.Put(vocabulary, vocab.dump());
    EXPECT_NE(LoadError(folder.path()), "loaded");
    const std::string second = folder.Put(merges, "#version: 0.2\nh e\r\n\n");
    for (const std::string& path : {folder.path(), first, second}) {
      const auto tokenizer = LoadTokenizer(path);
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
      EXPECT_EQ(EncodeOrFail(**tokenizer, "he"), Tokens{256});
      EXPECT_EQ((*tokenizer)->end_of_text(), 257);
      // The same as the tokenizer.json with the same content.
      const TempFolder saved;
      ASSERT_TRUE((*tokenizer)->Save(saved.path()).ok());
      EXPECT_EQ((*LoadTokenizer(saved.path()))->fingerprint(), (*tokenizer)->fingerprint());
    }
    folder.Put(merges, "h e\nh e l\n");
    EXPECT_EQ(LoadError(first), second + ": merge 1 is 'h e l'; expected two tokens with a space between");
    folder.Put(merges, "h e\nh e\n");
    EXPECT_EQ(LoadError(first), second + ": merge 1, of 'h' and 'e', is there twice");
    folder.Put(vocabulary, "[]");
    EXPECT_EQ(LoadError(first), first + ": not an object of tokens and their numbers");
  }
}

TEST(Load, RefusesPairsOfOtherModels) {
  const TempFolder folder;
  folder.Put("vocab.json", Vocabulary().dump());
  folder.Put("merges.txt", "h e\n");
  folder.Put("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
  EXPECT_EQ(LoadError(folder.path()), "loaded");
  folder.Put("tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer"})");
  EXPECT_EQ(LoadError(folder.path()),
            folder.path() +
                "/tokenizer_config.json: the vocabulary belongs to a 'Qwen2Tokenizer', not to GPT-2; add its "
                "tokenizer.json");
}

TEST(Load, TokenizerJsonGoesFirst) {
  const TempFolder folder;
  folder.Put("vocab.json", "x");
  folder.Put("merges.txt", "x");
  folder.Put("characters.json", "x");
  const std::string path = folder.Put("tokenizer.json", SmallTokenizerJson({}).dump());
  EXPECT_EQ(LoadError(folder.path()), "loaded");
  EXPECT_EQ(LoadError(path), "loaded");
  EXPECT_EQ(LoadError(folder.Put("mine.json", SmallTokenizerJson({}).dump())), "loaded");
}

TEST(Load, TokenizerModelGoesSecond) {
  const TempFolder folder;
  folder.Put("vocab.json", "x");
  folder.Put("merges.txt", "x");
  const std::string model = folder.Put("tokenizer.model", WriteSentencePieceFile(BpeFile({"\u2581", "a"}, true)));
  EXPECT_EQ(LoadTokenizer(folder.path()).value()->vocab_size(), 3 + 256 + 2);
  EXPECT_EQ(LoadTokenizer(model).value()->vocab_size(), 3 + 256 + 2);
  // Behind a tokenizer.json, but not if that is of a kind that is not known.
  folder.Put("tokenizer.json", SmallTokenizerJson({}).dump());
  EXPECT_EQ(LoadTokenizer(folder.path()).value()->vocab_size(), 257);
  folder.Put("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
  EXPECT_EQ(LoadTokenizer(folder.path()).value()->vocab_size(), 3 + 256 + 2);
  const std::string json = folder.Put("tokenizer.json", "{\"model\": ");
  EXPECT_NE(LoadError(folder.path()).find(json), std::string::npos);
}

TEST(Load, ErrorsNameTheFile) {
  const TempFolder folder;
  EXPECT_NE(LoadError(folder.path()).find("no tokenizer in this folder"), std::string::npos);
  EXPECT_EQ(LoadError("byte"), "there is no tokenizer 'byte': it is neither 'bytes' nor a file or folder that exists");
  EXPECT_NE(LoadError(""), "loaded");
  const std::string model = folder.Put("a.model", "");
  EXPECT_EQ(LoadError(model), model + ": the file is empty; fetch or convert it again");
  EXPECT_NE(LoadError(folder.Put("a.txt", "")).find("a.txt: not a kind of tokenizer file"), std::string::npos);
  const std::string json = folder.Put("tokenizer.json", "{\"model\": ");
  EXPECT_NE(LoadError(json).find(json + ": line 1"), std::string::npos);
  folder.Put("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
  EXPECT_EQ(LoadError(json), json + ": model 'Unigram' is not supported, only byte-level BPE and SentencePiece BPE");
  const std::string characters = folder.Put("characters.json", "{\"characters\": \"aba\"}");
  EXPECT_EQ(LoadError(characters), characters + ": the character 'a' is there twice");
  folder.Put("characters.json", "{\"characters\": [\"a\"]}");
  EXPECT_EQ(LoadError(characters), characters + ": there is no string 'characters' with the characters in it");
  const std::string bytes = folder.Put("bytes.json", "{\"bytes\": 255}");
  EXPECT_EQ(LoadError(bytes), bytes + ": expected {\"bytes\": 256}");
}

}  // namespace
}  // namespace tensorcache::tokenizer
