// tensorcache generate, eval and info, end to end, on checkpoints that are made here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numbers>
#include <sstream>

#include "core/config.h"
#include "core/rng.h"
#include "core/safetensors.h"
#include "core/text.h"
#include "tensorcache/model.h"
#include "tensorcache/sampling.h"
#include "tensorcache/session.h"
#include "tensorcache/tokenizer.h"
#include "tests/run_testing.h"

namespace tensorcache {
namespace {

// The tokens that the program should write after `prompt`, by way of the library.
std::vector<int32_t> ExpectedTokens(const std::string& folder, const std::string& prompt, int64_t count,
                                    const SamplingOptions& options) {
  const auto tokenizer = LoadTokenizer(folder).value();
  Session session = Session::Create(Model::Load(folder).value()).value();
  std::vector<int32_t> tokens;
  EXPECT_TRUE(tokenizer->Encode(prompt, &tokens).ok());
  EXPECT_TRUE(session.Prefill(tokens).ok());
  Sampler sampler = Sampler::Create(options).value();
  std::vector<int32_t> written;
  for (int64_t i = 0; i < count; ++i) {
    const auto logits = session.logits().first(static_cast<size_t>(tokenizer->vocab_size()));
    const int32_t token = sampler.Sample(logits, session.recent(), static_cast<uint64_t>(session.position())).value();
    if (token == tokenizer->end_of_text()) break;
    written.push_back(token);
    EXPECT_TRUE(session.Decode(token).ok());
  }
  return written;
}

// And their text.
std::string Expected(const std::string& folder, const std::string& prompt, int64_t count,
                     const SamplingOptions& options) {
  StreamDecoder decoder(LoadTokenizer(folder).value());
  std::string text;
  for (const int32_t token : ExpectedTokens(folder, prompt, count, options)) {
    EXPECT_TRUE(decoder.Push(token, &text).ok());
  }
  EXPECT_TRUE(decoder.Finish(&text).ok());
  return text;
}

TEST_F(RunTest, WritesWhatModelAndSamplerSay) {
  const std::string model = ByteModel();
  const Args args = {"--model", model, "--prompt", "To be", "--max-tokens", "60"};
  const Outcome greedy = Run(With({"generate", "--temperature", "0"}, args));
  ASSERT_EQ(greedy.status, 0) << greedy.err;
  EXPECT_EQ(greedy.out, Expected(model, "To be", 60, {.temperature = 0}));
  EXPECT_TRUE(IsValidUtf8(greedy.out));
  EXPECT_TRUE(greedy.err.starts_with("prefill 5 tokens, ")) << greedy.err;
  EXPECT_NE(greedy.err.find("; decode 60 tokens, "), std::string::npos) << greedy.err;
  // 2 layers x (8 tokens of k and v, and a matrix) of 2 heads of 8 numbers.
  EXPECT_NE(greedy.err.find("position 65; state 3 KiB, constant\n"), std::string::npos) << greedy.err;

  const SamplingOptions sampling = {.temperature = 0.8,
                                    .top_k = 40,
                                    .top_p = 0.95,
                                    .min_p = 0.01,
                                    .repetition_penalty = 1.2,
                                    .repetition_window = 20,
                                    .seed = 7};
  const Args sampled = With(args, {"--temperature", "0.8", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01",
                                   "--repetition-penalty", "1.2", "--repetition-window", "20", "--quiet"});
  const std::string text = Expected(model, "To be", 60, sampling);
  const Outcome seed7 = Run(With({"generate", "--seed", "7"}, sampled));
  EXPECT_EQ(seed7.out, text);
  EXPECT_EQ(seed7.err, "");
  EXPECT_NE(Generate(With(sampled, {"--seed", "8"})), text);
  const std::string file = temp_.Put("prompt.txt", "To be");
  Args from_file = With({"--seed", "7", "--threads", "1", "--file", file}, sampled);
  std::erase(from_file, "--prompt");
  std::erase(from_file, "To be");
  EXPECT_EQ(Generate(from_file), text);
}

TEST_F(RunTest, StopsAtStopStrings) {
  const std::string model = ByteModel();
  const Args args = {"--model", model, "--prompt", "x", "--max-tokens", "80", "--top-k", "40"};
  const std::string text = Generate(args);
  // Some text of two characters and more, from the middle.
  size_t at = text.size() / 2;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  size_t end = at + 6;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  const std::string stop = text.substr(at, end - at);
  const Outcome stopped = Run(With({"generate", "--stop", "never written by it", "--stop", stop}, args));
  EXPECT_EQ(stopped.out, text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped.err.find("decode 80 tokens"), std::string::npos) << "it went on unseen: " << stopped.err;
  EXPECT_EQ(Generate(With(args, {"--stop", "never written by it"})), text) << "all that was held back came out";
}

TEST_F(RunTest, SessionsGoOnBitForBit) {
  const std::string model = ByteModel(), session = temp_.Path("session");
  for (const Args& sampling : {Args{"--temperature", "0"}, Args{"--temperature", "1.3", "--seed", "5"}}) {
    const Args args = With({"--model", model}, sampling);
    const std::string whole = Generate(With(args, {"--prompt", "start", "--max-tokens", "40"}));
    for (const int first : {1, 17, 20}) {
      fs::remove(session);
      const Args with = With(args, {"--session", session});
      std::string parts = Generate(With(with, {"--prompt", "start", "--max-tokens", std::to_string(first)}));
      if (first == 20) parts += Generate(With(with, {"--max-tokens", "0"}));
      parts += Generate(With(with, {"--max-tokens", std::to_string(40 - first)}));
      // The last part leaves a character that it could not finish to another run.
      EXPECT_TRUE(whole.starts_with(parts)) << first;
      EXPECT_LE(whole.size() - parts.size(), 3u) << "one U+FFFD";
    }
    // A second prompt comes after the text so far.
    EXPECT_EQ(Generate(With(args, {"--session", session, "--prompt", " and", "--max-tokens", "0"})), "");
    const Session restored = Session::Restore(Model::Load(model).value(), session).value();
    EXPECT_EQ(restored.position(), 5 + 40 + 4);
    const auto tail = restored.recent().last(4);
    EXPECT_EQ(std::string(tail.begin(), tail.end()), " and");
  }
}

TEST_F(RunTest, SessionsGoOnWithinACharacter) {
  const std::string model = ByteModel(), session = temp_.Path("session");
  // Where the model writes a character of two bytes.
  const SamplingOptions options = {.temperature = 2, .seed = 1};
  const std::vector<int32_t> tokens = ExpectedTokens(model, "x", 400, options);
  size_t cut = 1;
  while (cut < tokens.size() && !(tokens[cut - 1] >= 0xC2 && tokens[cut - 1] < 0xE0 && tokens[cut] >> 6 == 2)) ++cut;
  ASSERT_LT(cut, tokens.size());
  const Args args = {"--model", model, "--session", session, "--temperature", "2", "--seed", "1"};
  const std::string first = Generate(With(args, {"--prompt", "x", "--max-tokens", std::to_string(cut)}));
  const std::string second = Generate(With(args, {"--max-tokens", "1"}));
  const std::string character = {static_cast<char>(tokens[cut - 1]), static_cast<char>(tokens[cut])};
  EXPECT_EQ(second, character);
  EXPECT_EQ(first + second, Expected(model, "x", static_cast<int64_t>(cut) + 1, options));
}

TEST_F(RunTest, InteractiveTurnsGoOnInAnotherRun) {
  const std::string model = ByteModel();
  const Args args = {"--model", model, "--interactive", "--max-tokens", "12", "--seed", "3", "--quiet"};
  const std::string one = Generate(With(args, {"--session", temp_.Path("a")}), "first\nsecond\nthird");
  EXPECT_TRUE(one.ends_with('\n')) << one;

  const Args with = With(args, {"--session", temp_.Path("b")});
  std::string two;
  {
    Process process(With({"generate"}, with), temp_.path());
    process.Type("first\n");
    ASSERT_TRUE(WaitUntil([&] { return fs::exists(temp_.Path("b")); }));
    process.Signal(SIGKILL);
    EXPECT_EQ(process.Wait(), 128 + SIGKILL);
    two = process.Out();
  }
  two += Generate(with, "second\n");
  two += Generate(with, "third");
  EXPECT_EQ(two, one);
  EXPECT_EQ(ReadAll(temp_.Path("a")), ReadAll(temp_.Path("b")));
}

TEST_F(RunTest, SignalsEndTheTextAndKeepTheSession) {
  const std::string model = MakeModel("numbers", TinyConfig(40), nullptr);
  for (const int number : {SIGINT, SIGTERM}) {
    const std::string session = temp_.Path("signalled");
    fs::remove(session);
    Process process(
        {"generate", "--model", model, "--tokens", "1 2,3", "--max-tokens", "1000000000", "--session", session},
        temp_.path());
    ASSERT_TRUE(WaitUntil([&] { return process.Out().size() > 100; }));
    process.Signal(number);
    ASSERT_EQ(process.Wait(), 0) << process.Err();
    std::istringstream shown(process.Out());
    std::vector<int32_t> tokens;
    for (int32_t token = 0; shown >> token;) tokens.push_back(token);
    const Session restored = Session::Restore(Model::Load(model).value(), session).value();
    EXPECT_EQ(restored.position(), 3 + std::ssize(tokens));
    EXPECT_EQ(restored.recent().back(), tokens.back());
    EXPECT_NE(process.Err().find("; position " + std::to_string(restored.position())), std::string::npos);
  }
}

TEST_F(RunTest, ModelsWithoutTokenizerTakeAndWriteNumbers) {
  const std::string model = MakeModel("numbers", TinyConfig(40), nullptr);
  const Outcome outcome =
      Run({"generate", "--model", model, "--tokens", "1 2 3", "--max-tokens", "3", "--temperature", "0"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  Session session = Session::Create(Model::Load(model).value()).value();
  ASSERT_TRUE(session.Prefill(std::vector<int32_t>{1, 2, 3}).ok());
  std::string expected;
  for (int i = 0; i < 3; ++i) {
    const auto logits = session.logits();
    const auto token = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    expected += std::to_string(token) + (i < 2 ? " " : "\n");
    ASSERT_TRUE(session.Decode(token).ok());
  }
  EXPECT_EQ(outcome.out, expected);
  ExpectMistake({"generate", "--model", model, "--prompt", "x"},
                "has no tokenizer; name one with --tokenizer, or give");
  ExpectMistake({"generate", "--model", model, "--tokens", "1", "--stop", "x"}, "--stop is text");
  ExpectMistake({"generate", "--model", model, "--tokens", "40"}, "outside the vocabulary of 40");
  ExpectMistake({"generate", "--model", model, "--tokens", "1 two"}, "'two' is not a token number");
  ExpectMistake({"generate", "--model", model, "--tokenizer", "bytes", "--prompt", "x"}, "belongs to another model");
}

TEST_F(RunTest, TheEndOfTextTokenEndsTheText) {
  const std::string_view text = "some text to learn from";
  const auto tokenizer = TrainByteLevelBpe({&text, 1}, 257).value();
  ASSERT_EQ(tokenizer->end_of_text(), 256);
  // Three more tokens than the tokenizer has, as models with rounded-up vocabularies have; they must never be drawn.
  const std::string model = MakeModel("padded", TinyConfig(260), tokenizer.get());
  uint64_t seed = 0;
  std::string expected;
  for (; seed < 100; ++seed) {
    expected = Expected(model, "x", 400, {.temperature = 10, .seed = seed});
    if (expected.size() > 20 && expected.size() < 300) break;
  }
  ASSERT_LT(seed, 100u) << "no seed ends the text";
  const Args args = {"--model", model,           "--prompt", "x",      "--max-tokens",
                     "400",     "--temperature", "10",       "--seed", std::to_string(seed)};
  const Outcome ended = Run(With({"generate"}, args));
  EXPECT_EQ(ended.out, expected);
  EXPECT_NE(ended.err.find("; the model ended the text"), std::string::npos) << ended.err;
  const std::string longer = Generate(With(args, {"--ignore-end"}));
  EXPECT_TRUE(longer.starts_with(expected + "<|endoftext|>"));
  EXPECT_GT(longer.size(), expected.size() + 100);
  ExpectMistake(With({"generate", "--begin"}, args), "--begin");
}

TEST_F(RunTest, BadSessionsAreRefusedAndStayAsTheyAre) {
  const std::string model = ByteModel(), session = temp_.Path("session");
  const Args args = {"--model", model, "--max-tokens", "5", "--session", session};
  Generate(With(args, {"--prompt", "Hello"}));
  const std::string good = ReadAll(session);
  const auto refuses = [&](const std::string& content, const Args& with, const std::string& message) {
    temp_.Put("session", content);
    ExpectMistake(With({"generate", "--prompt", "more"}, with), message);
    EXPECT_EQ(ReadAll(session), content);
  };
  std::string damaged = good;
  damaged[good.size() / 2] ^= 1;
  refuses(damaged, args, "session");
  refuses(good.substr(0, good.size() - 9), args, "session");
  refuses("", args, "session");
  refuses("not a session at all", args, "session");
  refuses(good, With(args, {"--window", "9"}), "session");
  Args other = args;
  other[1] = MakeModel("other", TinyConfig(), MakeByteTokenizer().get(), 2);
  refuses(good, other, "session");
  temp_.Put("session", good);
  Generate(args);
  EXPECT_EQ(ReadAll(session).size(), good.size()) << "a session does not grow";
}

TEST_F(RunTest, MistakesAreOneLineAndStatus2) {
  const std::string model = ByteModel(), text = temp_.Put("text.txt", "A short text.");
  const Args generate = {"generate", "--model", model, "--prompt", "x"};
  ExpectMistake({"generate", "--model", temp_.Path("nothing"), "--prompt", "x"}, "there is no model");
  ExpectMistake({"info", temp_.Path("nothing")}, "there is no model");
  ExpectMistake({"info", temp_.path()}, "config.json");
  ExpectMistake({"generate", "--prompt", "x"}, "--model is required");
  ExpectMistake({"generate", "--model", model}, "no text to go on from");
  ExpectMistake(With(generate, {"--temprature", "1"}), "did you mean '--temperature'?");
  ExpectMistake(With(generate, {"--tokens", "1"}), "exclude each other");
  ExpectMistake(With(generate, {"--temperature", "-1"}), "temperature");
  ExpectMistake(With(generate, {"--max-tokens", "-1"}), "--max-tokens");
  ExpectMistake(With(generate, {"--stop", ""}), "stop string");
  ExpectMistake(With(generate, {"--method", "windw"}), "did you mean 'window'?");
  ExpectMistake(With(generate, {"--method", "window,full"}), "one name each");
  ExpectMistake(With(generate, {"--method", ""}), "--method has no ''");
  ExpectMistake({"generate", "--model", model, "--tokens", "1,,2"}, "'' is not a token number");
  ExpectMistake({"generate", "--model", model, "--tokens", "1 2,"}, "'' is not a token number");
  ExpectMistake(With(generate, {"--method", "infini"}),
                "lacks learned weights that method infini needs; take full, window or streaming_llm, or a model");
  ExpectMistake(With(generate, {"--method", "full", "--window", "4"}), "--window means nothing to method full");
  ExpectMistake(With(generate, {"--sinks", "4"}), "--sinks is for method streaming_llm alone");
  ExpectMistake(With(generate, {"--window", "0"}), "window is 0");
  ExpectMistake(With(generate, {"--weights", "int4"}), "--weights has no 'int4'");
  ExpectMistake(With(generate, {"--ring", "fp16"}), "--ring has no 'fp16'");
  ExpectMistake(With(generate, {"--threads", "-1"}), "threads is -1");
  ExpectMistake(With(generate, {"--tokenizer", temp_.Path("nothing")}), "there is no tokenizer");
  ExpectMistake(With(generate, {"--session", temp_.Path("no/such/file")}), "no folder");

  const Args eval = {"eval", "--model", model, "--data", text};
  ExpectMistake(With(eval, {"--context", "13"}), "needs a text of 14 tokens or more; this one has 13");
  ExpectMistake(With(eval, {"--context", "4,x"}), "--context");
  ExpectMistake(With(eval, {"--context", "0"}), "a context needs 1");
  ExpectMistake(With(eval, {"--context", "4", "--starts", "0"}), "start positions");
  ExpectMistake(With(eval, {"--context", "4", "--bins", "3,2"}), "out of order");
  ExpectMistake(With(eval, {"--context", "4", "--last", "0"}), "--last");
  ExpectMistake(With(eval, {"--context", "4", "--method", "window,window"}), "twice");
  ExpectMistake({"eval", "--model", model}, "--data is required");
  ExpectMistake({"eval", "--model", model, "--data", temp_.Path("nothing")}, "nothing");
  ExpectMistake({"eval", "--model", MakeModel("numbers", TinyConfig(40), nullptr), "--data", text}, "no tokenizer");
}

TEST_F(RunTest, EvalAgreesWithScoresOfTheLibrary) {
  const std::string model = ByteModel();
  std::string text;
  Rng rng(3);
  for (int i = 0; i < 900; ++i) text += static_cast<char>('a' + rng.Below(26));
  const std::string file = temp_.Put("text.txt", text), json_file = temp_.Path("eval.json");
  const Outcome outcome =
      Run({"eval", "--model", model, "--data", file, "--context", "100,300", "--starts", "3", "--method",
           "tensor_cache,window", "--weights", "fp32,bf16", "--bins", "50,200", "--json", json_file});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json json = Json::parse(ReadAll(json_file));
  EXPECT_EQ(json["tokens"], 900);
  ASSERT_EQ(json["rows"].size(), 8u);
  for (const Json& row : json["rows"]) {
    ModelOptions options = {.weights = row["weights"] == "bf16" ? WeightType::kBf16 : WeightType::kFp32,
                            .cache = TinyConfig().cache};
    if (row["method"] == "window") options.cache->method = CacheMethod::kWindow;
    Session session = Session::Create(Model::Load(model, options).value()).value();
    const auto context = row["context"].get<size_t>();
    double mean = 0, difference = 0;
    ASSERT_EQ(row["starts"].size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      const Json& start = row["starts"][i];
      const auto at = start["start"].get<size_t>();
      ASSERT_LE(at + context + 1, text.size());
      std::vector<int32_t> tokens(text.begin() + static_cast<ptrdiff_t>(at),
                                  text.begin() + static_cast<ptrdiff_t>(at + context + 1));
      std::vector<float> nll(tokens.size());
      session.Clear();
      ASSERT_TRUE(session.Score(tokens, nll).ok());
      double sum = 0, first_bin = 0;
      for (size_t k = 1; k < nll.size(); ++k) {
        sum += nll[k];
        if (k <= 50) first_bin += nll[k];
      }
      // The same sums in the same order; JSON keeps every digit.
      EXPECT_DOUBLE_EQ(start["nll"].get<double>(), sum / static_cast<double>(context));
      EXPECT_DOUBLE_EQ(start["bins"][0].get<double>(), first_bin / 50);
      EXPECT_EQ(start["bytes"], context);
      mean += start["nll"].get<double>() / 3;
      for (const Json& first : json["rows"]) {
        const bool is_first = first["method"] == "tensor_cache" && first["weights"] == "fp32";
        if (!is_first || first["context"] != row["context"]) continue;
        EXPECT_EQ(first["starts"][i]["start"], start["start"]) << "paired";
        difference += (start["nll"].get<double>() - first["starts"][i]["nll"].get<double>()) / 3;
      }
    }
    EXPECT_NEAR(row["nll"].get<double>(), mean, 1e-12);
    EXPECT_NEAR(row["difference"].get<double>(), difference, 1e-12);
    EXPECT_NEAR(row["perplexity"].get<double>(), std::exp(mean), 1e-9);
    EXPECT_NEAR(row["bits_per_byte"].get<double>(), mean / std::numbers::ln2, 1e-12) << "a token is a byte";
    EXPECT_EQ(row["state_bytes"], session.state_bytes().total());
    char cell[32];
    std::snprintf(cell, sizeof(cell), "%.4f +- %.4f", row["nll"].get<double>(), row["nll_std"].get<double>());
    EXPECT_NE(outcome.out.find(cell), std::string::npos) << cell << "\n" << outcome.out;
  }
  EXPECT_NE(outcome.out.find("NLL - tensor_cache fp32"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("at context 300\n"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("The model was trained with method tensor_cache."), std::string::npos) << outcome.out;
  EXPECT_EQ(json["trained_method"], "tensor_cache");

  const Outcome last = Run({"eval", "--model", model, "--data", file, "--context", "89", "--last", "0.1"});
  EXPECT_TRUE(last.out.starts_with("90 tokens of ")) << last.out << last.err;
  EXPECT_EQ(last.out.find("was trained with"), std::string::npos) << "its own method: " << last.out;
  const Outcome full = Run({"eval", "--model", model, "--data", file, "--context", "64,65", "--method", "full"});
  EXPECT_NE(full.out.find("more than the 64 tokens the model was trained on"), std::string::npos) << full.out;
}

TEST_F(RunTest, EvalComparesCheckpointsAndAnswers) {
  const auto bytes = MakeByteTokenizer();
  const std::string a = MakeModel("a", TinyConfig(), bytes.get()), b = MakeModel("b", TinyConfig(), bytes.get(), 2);
  std::string text;
  for (int i = 0; i < 100; ++i) text += "The answer is " + std::string(1, static_cast<char>('a' + i % 26)) + ". ";
  const std::string file = temp_.Put("text.txt", text), json_file = temp_.Path("eval.json");
  const Args eval = {"eval", "--model", a, "--data", file, "--context", "340", "--starts", "2", "--json", json_file};
  const Outcome outcome = Run(With(eval, {"--compare", b, "--only-after", "answer is "}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("NLL - a tensor_cache"), std::string::npos) << outcome.out;
  const Json json = Json::parse(ReadAll(json_file));
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][1]["model"], b);
  EXPECT_NE(json["rows"][0]["nll"], json["rows"][1]["nll"]);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(json["rows"][0]["starts"][i]["start"], json["rows"][1]["starts"][i]["start"]) << "paired";
    EXPECT_NEAR(json["rows"][0]["starts"][i]["counted"].get<int>(), 340.0 / 17, 1) << "an answer every 17 bytes";
  }
  const auto characters = MakeCharacterTokenizer(text);
  ASSERT_TRUE(characters.ok());
  const std::string other = MakeModel("other", TinyConfig(), characters->get());
  ExpectMistake(With(eval, {"--compare", other}), "another tokenizer");
  ExpectMistake(With(eval, {"--compare", temp_.Path("nothing")}), "no model");
  const Outcome none = Run(With(eval, {"--only-after", "no such text"}));
  EXPECT_EQ(none.status, 2);
  EXPECT_NE(none.err.find("nothing to count"), std::string::npos) << none.err;
}

TEST_F(RunTest, InfoTellsSizesAndWhatWasLearned) {
  const std::string model = ByteModel(), json_file = temp_.Path("info.json");
  const Outcome outcome = Run({"info", model, "--json", json_file});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  for (const char* part : {"cache        tensor_cache, window 8\n", "tensor_cache.write.rule = \"delta\"\n",
                           "tensor_cache.address.normalize_keys = true\n", "tokenizer    bytes, 256 tokens\n"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << outcome.out;
  }
  EXPECT_EQ(outcome.out.find("lambda_init"), std::string::npos) << "a default";
  const Json json = Json::parse(ReadAll(json_file));
  EXPECT_EQ(json["parameters"], parameters_);
  EXPECT_EQ(json["file_bytes"], fs::file_size(model + "/model.safetensors"));
  ASSERT_EQ(json["memories"].size(), 2u);
  const Json& memory = json["memories"][0];
  const double slow = 1 / (1 + std::exp(-4.0));  // the second head's logit
  EXPECT_NEAR(memory["lambda"][0]["high"].get<double>(), slow, 1e-12);
  EXPECT_NEAR(memory["half_life"][0]["high"].get<double>(), std::log(0.5) / std::log(slow), 1e-9);
  EXPECT_LT(memory["half_life"][0]["low"], memory["half_life"][0]["high"]);
  ASSERT_EQ(json["states"].size(), 10u);
  for (const Json& row : json["states"]) {
    ModelOptions options = {.ring = row["ring"] == "bf16" ? RingType::kBf16 : RingType::kFp32,
                            .cache = TinyConfig().cache};
    if (row["method"] == "full") {
      EXPECT_EQ(row["bytes"][4], (row["ring"] == "bf16" ? 2 : 4) * 2 * 2 * 2 * 8 * 1'000'000);
    }
    if (row["method"] != "tensor_cache" && row["method"] != "window") continue;
    if (row["method"] == "window") options.cache->method = CacheMethod::kWindow;
    const auto session = Session::Create(Model::Load(model, options).value());
    EXPECT_EQ(row["bytes"][0], session->state_bytes().total());
    EXPECT_EQ(row["bytes"][4], row["bytes"][0]);
  }
}

// A published model: its weights have Llama's names, but for the embedding, which is stored as the output projection.
TEST_F(RunTest, ARealModelWritesStories) {
  const fs::path source = TENSORCACHE_SHARED_DATA "/models/tinystories-656k";
  if (!fs::exists(source)) GTEST_SKIP() << source << " is not there";
  const std::string model = temp_.Path("stories");
  fs::create_directories(model);
  const auto file = SafetensorsFile::Open(source / "model.safetensors").value();
  SafetensorsWriter writer;
  for (const std::string_view name : file.names()) {
    const TensorRef tensor = file.Find(name).value();
    const bool embedding = name == "lm_head.weight";
    writer.Add(embedding ? "model.embed_tokens.weight" : std::string(name), tensor.dtype,
               {tensor.shape.begin(), tensor.shape.end()}, tensor.data.data());
  }
  ASSERT_TRUE(writer.Write(model + "/model.safetensors").ok());
  const ModelConfig config = {.vocab_size = 2048,
                              .hidden_size = 128,
                              .intermediate_size = 384,
                              .num_hidden_layers = 2,
                              .num_attention_heads = 8,
                              .num_key_value_heads = 4,
                              .max_position_embeddings = 512,
                              .norm = NormKind::kRmsNorm,
                              .norm_eps = 1e-6,
                              .hidden_act = Activation::kSilu,
                              .gated_mlp = true,
                              .cache = {.method = CacheMethod::kFull}};
  temp_.Put("stories/config.json", ToJson(config).dump());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(source / name, fs::path(model) / name);
  }
  const Args args = {"--model", model, "--begin", "--temperature", "0", "--prompt", "Once upon a time"};
  const std::string story = Generate(With(args, {"--max-tokens", "40"}));
  EXPECT_TRUE(story.starts_with(", a little girl named Lily")) << story;
  // Within the window nothing has changed.
  EXPECT_EQ(Generate(With(args, {"--max-tokens", "40", "--method", "window", "--window", "64"})), story);

  const std::string text =
      temp_.Put("story.txt",
                "Once upon a time there was a little boy named Tim. He liked to play with his red ball in the park. "
                "One day, Tim saw a big dog. The dog was sad. Tim gave the dog his ball and they were happy.");
  const Outcome outcome = Run({"eval", "--model", model, "--data", text, "--context", "27", "--json", "/dev/stdout"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json json = Json::parse(outcome.out.substr(outcome.out.find('{')));
  EXPECT_LT(json["rows"][0]["nll"].get<double>(), 4) << "of log 2048 = 7.6";
  // The whole text: its first token, which was not predicted, is the space that SentencePiece puts before a text.
  EXPECT_EQ(json["rows"][0]["starts"][0]["bytes"], ReadAll(text).size());
}

}  // namespace
}  // namespace tensorcache
