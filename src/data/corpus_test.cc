#include "data/corpus.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/rng.h"
#include "core/text.h"
#include "data/data_testing.h"
#include "data/tokenize.h"

namespace tensorcache::data {
namespace {

namespace fs = std::filesystem;

class CorpusTest : public DataTest {
 protected:
  TextDataConfig Config(const std::string& path) const {
    return {.path = Path(path), .valid_fraction = 0, .cache_dir = Path("cache")};
  }

  Corpus Open(const TextDataConfig& config, const Tokenizer& tokenizer) {
    calls_ = 0;
    auto corpus = OpenCorpus(config, tokenizer, [&](int64_t done, int64_t total) {
      EXPECT_GE(done, calls_ == 0 ? 0 : last_done_);
      EXPECT_LE(done, total);
      last_done_ = done;
      last_total_ = total;
      ++calls_;
    });
    EXPECT_TRUE(corpus.ok()) << corpus.status().message();
    return std::move(corpus).value();
  }

  std::string ErrorOf(const TextDataConfig& config, const Tokenizer& tokenizer = FakeTokenizer()) const {
    const auto corpus = OpenCorpus(config, tokenizer, {});
    if (corpus.ok()) return "ok";
    EXPECT_EQ(corpus.status().message().find('\n'), std::string::npos);
    return corpus.status().message();
  }

  std::vector<int32_t> TrainTokens(const TextDataConfig& config, const Tokenizer& tokenizer) {
    return ReadAll(*Open(config, tokenizer).train.file);
  }

  int64_t CachedFiles() const { return std::distance(fs::directory_iterator(Path("cache")), fs::directory_iterator()); }

  int calls_ = 0;
  int64_t last_done_ = 0, last_total_ = 0;
};

std::vector<int32_t> Encoded(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> tokens;
  EXPECT_TRUE(tokenizer.Encode(text, &tokens).ok());
  return tokens;
}

std::vector<std::string> Names(const std::vector<TextFile>& files, const std::string& below) {
  std::vector<std::string> names;
  for (const TextFile& file : files) names.push_back(fs::relative(file.path, below).native());
  return names;
}

TEST_F(CorpusTest, ListsVisibleFilesInOrder) {
  Put("text/b.txt", "b");
  Put("text/a/z", "z");
  Put("text/a/deep/y.md", "y");
  Put("text/a.txt", "a");
  Put("text/.hidden", "no");
  Put("text/.git/config", "no");
  Put("text/empty.txt", "");
  Put("elsewhere.txt", "linked");
  fs::create_symlink(Path("elsewhere.txt"), Path("text/link.txt"));
  fs::create_directory_symlink(Path("text"), Path("text/a/loop"));
  const auto files = ListTextFiles(Path("text"));
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(Names(*files, Path("text")),
            (std::vector<std::string>{"a.txt", "a/deep/y.md", "a/z", "b.txt", "../elsewhere.txt"}));
  EXPECT_TRUE(files->back().path.ends_with("/text/link.txt"));
  EXPECT_EQ(files->back().bytes, 6);
  EXPECT_EQ(ListTextFiles(Path("text/.hidden"))->size(), 1u);  // asked for by name
}

TEST_F(CorpusTest, PathsWithoutTextAreErrors) {
  EXPECT_EQ(ErrorOf({}), "data.text.path is empty; give a text file or a folder of text files");
  EXPECT_NE(ErrorOf(Config("missing")).find("No such file"), std::string::npos);
  fs::create_directories(Path("folder"));
  EXPECT_NE(ErrorOf(Config("folder")).find("no text in"), std::string::npos);
  Put("empty", "");
  EXPECT_NE(ErrorOf(Config("empty")).find("is empty"), std::string::npos);
  EXPECT_NE(ErrorOf({.path = "/dev/null"}).find("neither a file nor a folder"), std::string::npos);
}

TEST_F(CorpusTest, OneFileBecomesItsTokens) {
  Put("a.txt", "hello\nw\u00f6rld\n");
  const FakeTokenizer tokenizer(1, true);
  const Corpus corpus = Open(Config("a.txt"), tokenizer);
  EXPECT_EQ(ReadAll(*corpus.train.file), Encoded(tokenizer, "hello\nw\u00f6rld\n"));
  EXPECT_EQ(corpus.train.begin, 0);
  EXPECT_EQ(corpus.train.end, 13);
  EXPECT_EQ(corpus.valid.begin, corpus.valid.end);
  EXPECT_GE(calls_, 2);
  EXPECT_EQ(last_done_, 13);
  EXPECT_EQ(last_total_, 13);
}

TEST_F(CorpusTest, EndOfTextStandsBetweenOrAfterDocuments) {
  Put("text/1", "ab");
  Put("text/2", "c");
  Put("text/3", "de");
  const FakeTokenizer ends(1, true), plain;
  TextDataConfig config = Config("text");
  EXPECT_EQ(TrainTokens(config, ends), (std::vector<int32_t>{'a', 'b', 65536, 'c', 65536, 'd', 'e'}));
  EXPECT_EQ(TrainTokens(config, plain), (std::vector<int32_t>{'a', 'b', 'c', 'd', 'e'}));
  config.documents = Documents::kSeparate;
  EXPECT_EQ(TrainTokens(config, ends), (std::vector<int32_t>{'a', 'b', 65536, 'c', 65536, 'd', 'e', 65536}));
  const Corpus corpus = Open(config, ends);
  ASSERT_EQ(corpus.train.file->documents(), 3);
  EXPECT_EQ(corpus.train.file->document(1), (std::pair<int64_t, int64_t>(3, 5)));
}

TEST_F(CorpusTest, BeginOfTextStandsBeforeEachFileIfWanted) {
  Put("text/1", "ab");
  Put("text/2", "c");
  TextDataConfig config = Config("text");
  const FakeTokenizer begins(1, true), plain;
  const std::vector<int32_t> without = TrainTokens(config, begins);
  config.begin = true;
  EXPECT_EQ(TrainTokens(config, begins), (std::vector<int32_t>{65535, 'a', 'b', 65536, 65535, 'c'}));
  config.begin = false;
  EXPECT_EQ(TrainTokens(config, begins), without);  // a token file of its own
  config.begin = true;
  EXPECT_EQ(OpenCorpus(config, plain, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(CorpusTest, TheLastPartIsForValidation) {
  Put("a.txt", std::string(1000, 'x'));
  TextDataConfig config = Config("a.txt");
  EXPECT_EQ(TextDataConfig{}.valid_fraction, 0.1);
  for (const auto& [fraction, train] :
       std::vector<std::pair<double, int64_t>>{{0.1, 900}, {0, 1000}, {0.9994, 1}, {0.0004, 1000}, {0.5, 500}}) {
    config.valid_fraction = fraction;
    const Corpus corpus = Open(config, FakeTokenizer());
    EXPECT_EQ(corpus.train.end, train);
    EXPECT_EQ(corpus.valid.begin, train);
    EXPECT_EQ(corpus.valid.end, 1000);
  }
  EXPECT_EQ(CachedFiles(), 1);  // the fraction decides nothing about the file
  for (const double fraction : {1.0, -0.1, 2.0}) {
    config.valid_fraction = fraction;
    EXPECT_NE(ErrorOf(config).find("valid_fraction"), std::string::npos);
  }
}

TEST_F(CorpusTest, ValidationFromAPathOfItsOwn) {
  Put("train/a", "abc");
  Put("valid/b", "de");
  TextDataConfig config = Config("train");
  config.valid_path = Path("valid");
  const Corpus corpus = Open(config, FakeTokenizer());
  EXPECT_EQ(ReadAll(*corpus.train.file), (std::vector<int32_t>{'a', 'b', 'c'}));
  EXPECT_EQ(ReadAll(*corpus.valid.file), (std::vector<int32_t>{'d', 'e'}));
  EXPECT_EQ(corpus.valid.end, 2);
  EXPECT_EQ(last_done_, 5);
  EXPECT_EQ(last_total_, 5);
  config.path = folder_;
  EXPECT_NE(ErrorOf(config).find("is in both"), std::string::npos);
}

TEST_F(CorpusTest, ASecondRunMapsTheFileAndChangesAreNoticed) {
  Put("text/a", "abc");
  Put("text/b", "def");
  const TextDataConfig config = Config("text");
  const FakeTokenizer tokenizer;
  Open(config, tokenizer);
  EXPECT_GT(calls_, 0);
  Open(config, tokenizer);
  EXPECT_EQ(calls_, 0);
  EXPECT_EQ(CachedFiles(), 1);

  // A content of the same size.
  const auto before = fs::last_write_time(Path("text/a"));
  Put("text/a", "xyz");
  fs::last_write_time(Path("text/a"), before + std::chrono::nanoseconds(1000));
  EXPECT_EQ(TrainTokens(config, tokenizer), Encoded(tokenizer, "xyzdef"));
  Put("text/c", "g");
  EXPECT_EQ(TrainTokens(config, tokenizer), Encoded(tokenizer, "xyzdefg"));
  fs::rename(Path("text/c"), Path("text/0"));
  EXPECT_EQ(TrainTokens(config, tokenizer), Encoded(tokenizer, "gxyzdef"));
  const FakeTokenizer other(2);
  EXPECT_EQ(TrainTokens(config, other).size(), 1u + 2 + 2);
}

TEST_F(CorpusTest, ADamagedTokenFileIsMadeAgain) {
  Put("a.txt", "abc");
  const TextDataConfig config = Config("a.txt");
  const FakeTokenizer tokenizer;
  Open(config, tokenizer);
  const fs::path cached = fs::directory_iterator(Path("cache"))->path();
  EXPECT_TRUE(cached.filename().native().starts_with("a_txt-")) << cached;
  const std::string whole = ReadWholeFile(cached.native(), 1 << 20).value();
  std::string flipped = whole;
  flipped[16] ^= 1;  // a token, and still one of the vocabulary
  for (const std::string& damaged : {whole.substr(0, 30), flipped}) {
    Put("cache/" + cached.filename().native(), damaged);
    EXPECT_EQ(TrainTokens(config, tokenizer), Encoded(tokenizer, "abc"));
    EXPECT_GT(calls_, 0);
    EXPECT_EQ(CachedFiles(), 1);
  }
}

TEST_F(CorpusTest, TheFirstFileThatIsNotTextIsNamed) {
  Put("text/a", "fine");
  Put("text/b", std::string("ab\xff") + "c");
  Put("text/c", "\xc3");
  const std::string expected = "/text/b' is not UTF-8 text (byte 2); convert it or take it away";
  EXPECT_TRUE(ErrorOf(Config("text")).ends_with(expected)) << ErrorOf(Config("text"));
  EXPECT_EQ(CachedFiles(), 0);
  Put("text/b", "a\x01");
  EXPECT_TRUE(ErrorOf(Config("text")).ends_with("/text/b': an unknown character")) << ErrorOf(Config("text"));
}

// Several pieces of one file, with characters of every length across their borders; bytes can be cut anywhere.
TEST_F(CorpusTest, LongFilesAreTheSameInPieces) {
  const std::vector<std::string> characters = {"a", "\u00e9", "\u20ac", "\U0001f600", "\n"};
  Rng rng(5);
  std::string text;
  while (text.size() < (size_t{9} << 20) + 12345) text += characters[rng.Below(characters.size())];
  Put("text/long", text);
  Put("text/short", "the end");
  const FakeTokenizer bytes(1, true);
  std::vector<int32_t> expected = Encoded(bytes, text);
  expected.push_back(65536);
  for (const char c : std::string_view("the end")) expected.push_back(c);
  TextDataConfig config = Config("text");
  EXPECT_EQ(TrainTokens(config, bytes), expected);
  EXPECT_GE(calls_, 3);
  // An error far into a file is still told by its place in the file.
  text[size_t{5} << 20] = '\xff';
  const size_t bad = Utf8ErrorOffset(text);
  Put("text/long", text);
  EXPECT_NE(ErrorOf(config).find("(byte " + std::to_string(bad) + ")"), std::string::npos) << ErrorOf(config);
}

TEST_F(CorpusTest, OtherTokenizersSeeWholeFiles) {
  const std::string text((size_t{3} << 20) + 1, 'q');
  Put("text/1", "a" + text);
  Put("text/2", text);
  const FakeTokenizer pairs(2);
  TextDataConfig config = Config("text");
  config.tokenizer = "some/tokenizer.json";
  std::vector<int32_t> expected = Encoded(pairs, "a" + text);
  ASSERT_TRUE(pairs.Encode(text, &expected).ok());
  EXPECT_EQ(TrainTokens(config, pairs), expected);
}

// Text in which line feeds stand beside everything that a pattern could treat in its own way.
TEST_F(CorpusTest, ByteLevelBpeIsTheSameInPieces) {
  const std::vector<std::string> parts = {
      "\n", "\n", "\n\n", "\r\n", " ",  "  ",     "\t",      "the",    "word",          "'s",
      "'",  "12", "345",  ".",    "!?", "\u00e9", "e\u0301", "\u4e2d", "<|endoftext|>", "\u00a0"};
  Rng rng(6);
  std::string text;
  while (text.size() < size_t{5} << 20) text += parts[rng.Below(parts.size())];
  const std::string_view sample = std::string_view(text).substr(0, 20000);
  const auto tokenizer = TrainByteLevelBpe(std::span(&sample, 1), 600);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  ASSERT_EQ(FindSafeCuts("some/path", **tokenizer), SafeCuts::kLines);
  Put("long", text);
  TextDataConfig config = Config("long");
  config.tokenizer = "some/path";
  EXPECT_EQ(TrainTokens(config, **tokenizer), Encoded(**tokenizer, text));
  for (const std::string_view end : {"", "\n", "\nx"}) {  // hardly a place to cut
    const std::string line = std::string((size_t{1} << 20) + 5, 'x').append(end);
    Put("long", line);
    EXPECT_EQ(TrainTokens(config, **tokenizer), Encoded(**tokenizer, line));
  }
}

TEST_F(CorpusTest, OnlyWhatIsCertainIsCut) {
  EXPECT_EQ(FindSafeCuts("bytes", FakeTokenizer()), SafeCuts::kAnywhere);
  EXPECT_EQ(FindSafeCuts("characters", FakeTokenizer()), SafeCuts::kAnywhere);
  EXPECT_EQ(FindSafeCuts("else", FakeTokenizer()), SafeCuts::kNowhere);
}

TEST_F(CorpusTest, ManySmallFiles) {
  std::vector<int32_t> expected;
  for (int i = 0; i < 5000; ++i) {
    const std::string name = std::to_string(10000 + i);
    Put("text/" + name, name);
    for (const char c : name) expected.push_back(c);
  }
  TextDataConfig config = Config("text");
  config.documents = Documents::kSeparate;
  const Corpus corpus = Open(config, FakeTokenizer());
  EXPECT_EQ(corpus.train.file->documents(), 5000);
  EXPECT_EQ(ReadAll(*corpus.train.file), expected);
}

TEST_F(CorpusTest, ProcessesAtTheSameTimeDoNotDisturbEachOther) {
  Put("a.txt", std::string(300000, 'x'));
  const TextDataConfig config = Config("a.txt");
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      const auto corpus = OpenCorpus(config, FakeTokenizer(), {});
      _exit(corpus.ok() && corpus->train.file->tokens() == 300000 ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(CachedFiles(), 1);
  EXPECT_EQ(TrainTokens(config, FakeTokenizer()), std::vector<int32_t>(300000, 'x'));
  EXPECT_EQ(calls_, 0);
}

TEST_F(CorpusTest, TheDefaultCacheFolder) {
  Put("a.txt", "abc");
  TextDataConfig config = Config("a.txt");
  config.cache_dir.clear();
  setenv("XDG_CACHE_HOME", Path("xdg").c_str(), 1);
  setenv("HOME", Path("home").c_str(), 1);
  Open(config, FakeTokenizer());
  EXPECT_FALSE(fs::is_empty(Path("xdg/tensorcache")));
  unsetenv("XDG_CACHE_HOME");
  Open(config, FakeTokenizer());
  EXPECT_FALSE(fs::is_empty(Path("home/.cache/tensorcache")));
  unsetenv("HOME");
  EXPECT_NE(ErrorOf(config).find("data.text.cache_dir"), std::string::npos);
  config.cache_dir = Path("a.txt/no");
  EXPECT_NE(ErrorOf(config).find("set data.text.cache_dir"), std::string::npos) << ErrorOf(config);
}

TEST_F(CorpusTest, DistinctCharacters) {
  Put("train/a", "abca\u00e9");
  Put("train/b", "\U0001f600b\u20ac\n");
  Put("valid", "z\u00e9");
  TextDataConfig config = Config("train");
  EXPECT_EQ(*DistinctCharacters(config), "abc\u00e9\U0001f600\u20ac\n");
  config.valid_path = Path("valid");
  EXPECT_EQ(*DistinctCharacters(config), "abc\u00e9\U0001f600\u20ac\nz");
  Put("train/c", "\xff");
  EXPECT_NE(DistinctCharacters(config).status().message().find("/train/c' is not UTF-8"), std::string::npos);
}

TEST_F(CorpusTest, ConfigReadsJson) {
  TextDataConfig config;
  ASSERT_TRUE(ApplyOverride("documents=separate", &config).ok());
  EXPECT_EQ(config.documents, Documents::kSeparate);
  EXPECT_EQ(ToJson(config)["tokenizer"], "bytes");
}

}  // namespace
}  // namespace tensorcache::data
