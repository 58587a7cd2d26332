#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <limits>

#include "core/file.h"
#include "core/rng.h"
#include "tokenizer/files.h"
#include "tokenizer/sentencepiece_testing.h"
#include "tokenizer/tokenizer_testing.h"
#ifdef TENSORCACHE_SENTENCEPIECE_TRAINER
#include <sentencepiece_trainer.h>
#endif

namespace tensorcache::tokenizer {
namespace {

using Tokens = std::vector<int32_t>;

const std::vector<std::string> kTexts = {"\u2581h", "el", "lo", "\u2581hel", "\u2581hello", "\u2581\u2581",
                                         "wor",     "ld", "or", "\u2581",    "h",           "e",
                                         "l",       "o",  "w",  "r",         "d",           "\u00E9"};

std::shared_ptr<const Tokenizer> LoadOrFail(const std::string& model) {
  const TempFolder folder;
  folder.Put("tokenizer.model", model);
  const auto tokenizer = LoadTokenizer(folder.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return *tokenizer;
}

// The message of the error, without the file's name; "" if it loads. Nothing may be printed.
std::string LoadError(const std::string& model) {
  const TempFolder folder;
  const std::string path = folder.Put("x.model", model);
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  const auto tokenizer = LoadTokenizer(path);
  EXPECT_EQ(::testing::internal::GetCapturedStderr() + ::testing::internal::GetCapturedStdout(), "");
  if (tokenizer.ok()) return "";
  const std::string message = MessageOf(tokenizer.status());
  EXPECT_TRUE(message.starts_with(path + ": ")) << message;
  return message.substr(std::min(message.size(), path.size() + 2));
}

std::string Stream(const std::shared_ptr<const Tokenizer>& tokenizer, const Tokens& tokens, int32_t previous = -1) {
  StreamDecoder decoder(tokenizer, previous);
  std::string text;
  for (const int32_t token : tokens) EXPECT_TRUE(decoder.Push(token, &text).ok());
  EXPECT_TRUE(decoder.Finish(&text).ok());
  return text;
}

TEST(SentencePieceModel, EncodesAndDecodes) {
  const auto tokenizer = LoadOrFail(WriteSentencePieceFile(BpeFile(kTexts, true)));
  constexpr int32_t kFirst = 3 + 256;
  EXPECT_EQ(tokenizer->kind(), "SentencePiece BPE (tokenizer.model)");
  EXPECT_EQ(tokenizer->vocab_size(), kFirst + std::ssize(kTexts));
  EXPECT_EQ(tokenizer->begin_of_text(), 1);
  EXPECT_EQ(tokenizer->end_of_text(), 2);
  EXPECT_EQ(EncodeOrFail(*tokenizer, ""), Tokens{});
  EXPECT_EQ(EncodeOrFail(*tokenizer, "hello"), Tokens{kFirst + 4});
  EXPECT_EQ(EncodeOrFail(*tokenizer, " hello"), (Tokens{kFirst + 9, kFirst + 4}));
  EXPECT_EQ(EncodeOrFail(*tokenizer, "hello world"), (Tokens{kFirst + 4, kFirst + 9, kFirst + 6, kFirst + 7}));
  EXPECT_EQ(EncodeOrFail(*tokenizer, "\n\u4E00"), (Tokens{kFirst + 9, 3 + 0x0A, 3 + 0xE4, 3 + 0xB8, 3 + 0x80}));
  for (const std::string text :
       {"hello", " hello", "  hello  hello ", " ", "\u4E00", "hello\nworld\t\u00E9", "bytes \xFF\xC3", "<s>", ""}) {
    const Tokens tokens = EncodeOrFail(*tokenizer, text);
    EXPECT_EQ(DecodeOrFail(*tokenizer, tokens), text);
    EXPECT_EQ(Stream(tokenizer, tokens), text.substr(0, 6) == "bytes " ? "bytes \uFFFD\uFFFD" : text);
  }
  std::string text = "x";
  EXPECT_EQ(MessageOf(tokenizer->Decode(Tokens{kFirst, 1000}, &text)), "there is no token 1000 in a vocabulary of 277");
  EXPECT_EQ(text, "x");
}

TEST(SentencePieceModel, SpecialTokensAreFoundOnlyIfAskedFor) {
  const auto tokenizer = LoadOrFail(WriteSentencePieceFile(BpeFile(kTexts, true)));
  const int32_t hello = 3 + 256 + 4;
  const std::string text = "<s>hello</s>hello<unk>";
  const Tokens special = EncodeOrFail(*tokenizer, text, {.special_tokens = true});
  EXPECT_EQ(Tokens(special.begin(), special.begin() + 4), (Tokens{1, hello, 2, hello}));
  EXPECT_EQ(DecodeOrFail(*tokenizer, special), text);
  EXPECT_EQ(Stream(tokenizer, special), text);
  const Tokens plain = EncodeOrFail(*tokenizer, text);
  EXPECT_EQ(std::ranges::count_if(plain, [&](int32_t token) { return tokenizer->IsSpecial(token); }), 0);
  EXPECT_EQ(DecodeOrFail(*tokenizer, plain), text);
  EXPECT_EQ(tokenizer->FindSpecial("</s>"), 2);
  EXPECT_EQ(tokenizer->FindSpecial("<unk>"), 0);
  EXPECT_EQ(tokenizer->FindSpecial("<0x0A>"), -1);
  EXPECT_TRUE(tokenizer->IsSpecial(0));
  EXPECT_TRUE(tokenizer->IsSpecial(1));
  EXPECT_FALSE(tokenizer->IsSpecial(3));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
}

TEST(SentencePieceModel, AStreamThatGoesOnKeepsItsFirstSpace) {
  const auto tokenizer = LoadOrFail(WriteSentencePieceFile(BpeFile(kTexts, true)));
  const int32_t hello = 3 + 256 + 4;
  EXPECT_EQ(Stream(tokenizer, {hello, hello}), "hello hello");
  EXPECT_EQ(Stream(tokenizer, {hello, hello}, hello), " hello hello");
  EXPECT_EQ(Stream(tokenizer, {hello}, tokenizer->begin_of_text()), "hello");
  EXPECT_EQ(Stream(tokenizer, {1, hello}), "<s>hello");
  // The same decoder for a second text.
  StreamDecoder decoder(tokenizer);
  for (int i = 0; i < 2; ++i) {
    std::string text;
    ASSERT_TRUE(decoder.Push(hello, &text).ok());
    EXPECT_TRUE(decoder.Finish(&text).ok());
    EXPECT_EQ(text, "hello");
  }
}

TEST(SentencePieceModel, BeginAndEndAreThePiecesThatTheFileNames) {
  for (const bool by_library : {false, true}) {
    SentencePieceFile file = BpeFile(kTexts, true);
    file.remove_extra_whitespaces = by_library;
    file.begin = "</s>";
    file.end = "el";  // no control piece
    const std::string model = WriteSentencePieceFile(file);
    sentencepiece::SentencePieceProcessor library;
    ASSERT_TRUE(library.LoadFromSerializedProto(model).ok());
    EXPECT_EQ(library.bos_id(), 2);
    EXPECT_EQ(library.eos_id(), -1);
    EXPECT_EQ(LoadOrFail(model)->begin_of_text(), 2);
    EXPECT_EQ(LoadOrFail(model)->end_of_text(), -1);
  }
}

TEST(SentencePieceModel, WithoutBytesThereIsTheUnknown) {
  const auto tokenizer = LoadOrFail(WriteSentencePieceFile(BpeFile(kTexts, false)));
  EXPECT_EQ(EncodeOrFail(*tokenizer, "hello\u4E00\u4E01 hello"), (Tokens{3 + 4, 0, 3 + 4}));
  EXPECT_EQ(DecodeOrFail(*tokenizer, {3 + 4, 0, 3 + 4}), "hello<unk> hello");
}

TEST(SentencePieceModel, WithoutDummyPrefixNothingIsAddedOrDropped) {
  SentencePieceFile file = BpeFile(kTexts, true);
  file.add_dummy_prefix = false;
  const auto tokenizer = LoadOrFail(WriteSentencePieceFile(file));
  EXPECT_EQ(EncodeOrFail(*tokenizer, " hello"), Tokens{3 + 256 + 4});
  for (const std::string text : {"hello", " hello"}) {
    EXPECT_EQ(DecodeOrFail(*tokenizer, EncodeOrFail(*tokenizer, text)), text);
  }
}

TEST(SentencePieceModel, UserDefinedSymbolsAreAlwaysFound) {
  SentencePieceFile file = BpeFile(kTexts, true);
  file.pieces.push_back({"<tool>", 0, PieceType::kUserDefined});
  const auto tokenizer = LoadOrFail(WriteSentencePieceFile(file));
  const auto tool = static_cast<int32_t>(file.pieces.size()) - 1;
  const Tokens tokens = EncodeOrFail(*tokenizer, "hello<tool> hello");
  EXPECT_EQ(tokens, (Tokens{3 + 256 + 4, tool, 3 + 256 + 4}));
  EXPECT_EQ(DecodeOrFail(*tokenizer, tokens), "hello<tool> hello");
  EXPECT_EQ(tokenizer->FindSpecial("<tool>"), tool);
  EXPECT_FALSE(tokenizer->IsSpecial(tool));
}

TEST(SentencePieceModel, SavedItIsTheSame) {
  const std::string model = WriteSentencePieceFile(BpeFile(kTexts, true));
  const auto tokenizer = LoadOrFail(model);
  const TempFolder folder;
  ASSERT_TRUE(tokenizer->Save(folder.path()).ok());
  EXPECT_EQ(ReadWholeFile(folder.Path("tokenizer.model"), 1 << 20).value(), model);
  EXPECT_EQ((*LoadTokenizer(folder.path()))->fingerprint(), tokenizer->fingerprint());
  EXPECT_NE(LoadOrFail(WriteSentencePieceFile(BpeFile(kTexts, false)))->fingerprint(), tokenizer->fingerprint());
  EXPECT_FALSE(MakeByteTokenizer()->Save(folder.path()).ok());
  folder.Put("tokenizer.json", "{}");
  EXPECT_EQ(MessageOf(tokenizer->Save(folder.path())),
            folder.path() + ": there is already a tokenizer.json, another tokenizer; remove it first");
}

// Our own merging against the library's, on vocabularies and texts at random.
TEST(SentencePieceModel, IsWhatTheLibraryGives) {
  const std::vector<std::string> characters = {"a", "b", "c", "\u2581", "\u00E9"};
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Rng rng(seed, 1);
    const auto pick = [&](size_t n) { return rng.NextU32() % n; };
    std::vector<std::string> texts = characters;
    while (texts.size() < 30) {
      const std::string text = texts[pick(texts.size())] + texts[pick(texts.size())];
      if (text.size() <= 12 && std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
    }
    SentencePieceFile file = BpeFile(texts, seed % 2 == 0);
    if (seed % 3 == 1) {  // as the runs of spaces in Llama 2's model
      for (ModelPiece& piece : file.pieces) piece.score = std::max(piece.score, -12.0f);
    }
    const std::string model = WriteSentencePieceFile(file);
    const auto tokenizer = LoadOrFail(model);
    sentencepiece::SentencePieceProcessor library;
    ASSERT_TRUE(library.LoadFromSerializedProto(model).ok());
    for (int trial = 0; trial < 50; ++trial) {
      std::string text;
      const size_t length = pick(80);
      for (size_t i = 0; i < length; ++i) {
        const size_t kind = pick(12);
        text += kind == 0 ? "\u4E00" : kind < 4 ? " " : characters[pick(characters.size())];
      }
      std::vector<int> expected;
      ASSERT_TRUE(library.Encode(text, &expected).ok());
      EXPECT_EQ(EncodeOrFail(*tokenizer, text), expected) << seed << " '" << text << "'";
    }
  }
}

TEST(SentencePieceModel, BadFilesGiveAnErrorOfOneLine) {
  const SentencePieceFile good = BpeFile(kTexts, true);
  const auto error_of = [&](const std::function<void(SentencePieceFile&)>& change) {
    SentencePieceFile file = good;
    change(file);
    return LoadError(WriteSentencePieceFile(file));
  };
  const auto add = [](const ModelPiece& piece) {
    return [piece](SentencePieceFile& file) { file.pieces.push_back(piece); };
  };
  EXPECT_EQ(error_of([](SentencePieceFile&) {}), "");
  EXPECT_EQ(LoadError(""), "the file is empty; fetch or convert it again");
  const std::string damaged = "not a SentencePiece model, or damaged; fetch or convert it again";
  EXPECT_EQ(LoadError("version https://git-lfs.github.com/spec/v1\noid sha256:9e55\n"), damaged);
  EXPECT_EQ(LoadError("{\"model\": {}}"), damaged);
  EXPECT_EQ(LoadError(std::string(1000, '\0')), damaged);
  EXPECT_EQ(LoadError(WriteSentencePieceFile(good).substr(0, 2000)), damaged);
  EXPECT_EQ(error_of([](SentencePieceFile& file) { file.pieces.clear(); }), damaged);
  EXPECT_EQ(error_of(add({"", 0, PieceType::kNormal})), "piece 277 is empty");
  EXPECT_EQ(error_of(add({"\xC3", 0, PieceType::kNormal})), "piece 277, '\\xc3', is not UTF-8");
  EXPECT_EQ(error_of(add({"x", std::numeric_limits<float>::quiet_NaN(), PieceType::kNormal})),
            "the score of piece 277 is not a number");
  EXPECT_EQ(error_of(add({"x", 0, static_cast<PieceType>(9)})), "piece 277 has the unknown type 9");
  EXPECT_EQ(error_of(add({"x", 0, PieceType::kByte})), "piece 277 is a byte but is spelled 'x', not like <0x0A>");
  EXPECT_EQ(error_of(add({"el", 0, PieceType::kNormal})), "piece 'el' is there twice");
  EXPECT_EQ(error_of(add({"x", 0, PieceType::kUnknown})), "2 pieces for the unknown; expected one");
  EXPECT_EQ(error_of([](SentencePieceFile& file) { file.pieces.erase(file.pieces.begin() + 9); }),
            "255 pieces for single bytes; expected 256");
  EXPECT_EQ(error_of([](SentencePieceFile& file) { file.byte_fallback = false; }),
            "256 pieces for single bytes; expected 0");
  EXPECT_EQ(error_of([](SentencePieceFile& file) { file.model = static_cast<PieceModel>(7); }), "unknown model type 7");
  const std::string model = WriteSentencePieceFile(good);
  EXPECT_EQ(LoadError(model + ProtoBytes(2, ProtoNumber(24, 1))), "treat_whitespace_as_suffix is not supported");
  EXPECT_EQ(LoadError(model + ProtoBytes(3, ProtoNumber(5, 0))), "a model without escape_whitespaces is not supported");
  EXPECT_EQ(LoadError(model + ProtoBytes(5, ProtoBytes(2, "x"))), "a model with a denormalizer is not supported");
  for (const std::string& charsmap :
       {std::string("x"), std::string(8, '\0'), std::string("\4\0\0\0\xFF\xFF\xFF\x7F\0", 9)}) {
    EXPECT_EQ(LoadError(model + ProtoBytes(3, ProtoBytes(2, charsmap))), "the table of the normalizer is damaged");
  }
  // The library would try these and report on stderr.
  EXPECT_EQ(LoadError(model + ProtoBytes(4, ProtoBytes(1, ProtoBytes(1, "hello") + ProtoBytes(2, "wrong")))), "");
  // A file that is larger than any model.
  const TempFolder folder;
  const std::string huge = folder.Put("huge.model", "");
  std::filesystem::resize_file(huge, int64_t{1} << 40);
  EXPECT_NE(MessageOf(LoadTokenizer(huge).status()).find(huge), std::string::npos);
  EXPECT_NE(MessageOf(LoadTokenizer(folder.Put("folder.model/x", "")).status()).find("not a kind"), std::string::npos);
}

// Any file gives an error of one line or a tokenizer that works.
void DamageDoesNoHarm(const std::string& model, int trials) {
  const TempFolder folder;
  const std::string path = folder.Path("x.model");
  Rng rng(1, 0);
  int loaded = 0;
  ::testing::internal::CaptureStderr();
  for (int trial = 0; trial < trials; ++trial) {
    std::string damaged = model;
    if (trial % 4 == 0) damaged.resize(rng.NextU32() % damaged.size());
    const size_t changes = 1 + rng.NextU32() % 4;
    for (size_t i = 0; i < changes && !damaged.empty(); ++i) {
      // Half of the changes in the options, which stand at the end.
      const size_t from = i % 2 == 0 ? 0 : damaged.size() - std::min<size_t>(damaged.size(), 200);
      damaged[from + rng.NextU32() % (damaged.size() - from)] = static_cast<char>(rng.NextU32());
    }
    folder.Put("x.model", damaged);
    const auto tokenizer = LoadTokenizer(path);
    if (!tokenizer.ok()) {
      MessageOf(tokenizer.status());
      continue;
    }
    ++loaded;
    Tokens tokens;
    const Status status = (*tokenizer)->Encode("hello \u4E00\uFF21\u00BD \xFF world", &tokens);
    if (!status.ok()) continue;
    for (const int32_t token : tokens) {
      EXPECT_GE(token, 0);
      EXPECT_LT(token, (*tokenizer)->vocab_size());
    }
    DecodeOrFail(**tokenizer, tokens);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_GT(loaded, trials / 50);
}

TEST(SentencePieceModel, DamagedFilesDoNoHarm) {
  DamageDoesNoHarm(WriteSentencePieceFile(BpeFile(kTexts, true)), 1500);
}

#ifdef TENSORCACHE_SENTENCEPIECE_TRAINER

class TrainedModel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string text;
    Rng rng(3, 0);
    const std::vector<std::string> words = {"the", "tensor", "cache", "holds", "keys", "\u00BD", "\uFF21bc", "values,"};
    for (int line = 0; line < 300; ++line) {
      for (int i = 0; i < 8; ++i) text += words[rng.NextU32() % words.size()] + " ";
      text += '\n';
    }
    const std::string input = folder_.Put("text", text);
    ::testing::internal::CaptureStderr();
    const auto status = sentencepiece::SentencePieceTrainer::Train(
        "--input=" + input + " --model_prefix=" + folder_.Path("tokenizer") + " --model_type=" + GetParam() +
        " --vocab_size=60 --hard_vocab_limit=false");
    ::testing::internal::GetCapturedStderr();  // the trainer talks much
    ASSERT_TRUE(status.ok()) << status.ToString();
    model_ = ReadWholeFile(folder_.Path("tokenizer.model"), 1 << 24).value();
  }

  const TempFolder folder_;
  std::string model_;
};

TEST_P(TrainedModel, WithItsNormalizer) {
  const auto loaded = LoadTokenizer(folder_.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Tokenizer& tokenizer = **loaded;
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(model_).ok());
  for (const std::string text : {"the tensor cache holds keys", "  cache  \uFF21bc \u00BD ", "\u4E00", "\n"}) {
    std::vector<int> expected;
    ASSERT_TRUE(library.Encode(text, &expected).ok());
    EXPECT_EQ(EncodeOrFail(tokenizer, text), expected) << text;
  }
  // NFKC, and one space in the place of several.
  EXPECT_EQ(DecodeOrFail(tokenizer, EncodeOrFail(tokenizer, "  the \uFF21bc   cache ")), "the Abc cache");
  EXPECT_EQ(tokenizer.begin_of_text(), 1);
  EXPECT_EQ(tokenizer.end_of_text(), 2);
}

TEST_P(TrainedModel, DamagedFilesDoNoHarm) { DamageDoesNoHarm(model_, 60); }

INSTANTIATE_TEST_SUITE_P(Kinds, TrainedModel, ::testing::Values("unigram", "bpe", "char", "word"),
                         [](const auto& info) { return std::string(info.param); });

#endif

}  // namespace
}  // namespace tensorcache::tokenizer
