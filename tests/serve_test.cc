// tensorcache serve: what it refuses before it listens, and how it ends. What it answers is asked by src/server/service_test.cc and
// tests/server.
#include <gtest/gtest.h>

#include "tests/run_testing.h"

namespace tensorcache {
namespace {

class ServeTest : public RunTest {
 protected:
  void ExpectRefusal(const Args& more, const std::string& message) const {
    ExpectMistake(With({"serve", "--model", model_, "--port", "0"}, more), message);
  }

  const std::string model_ = ByteModel();
};

TEST_F(ServeTest, RefusesWhatCannotBeServed) {
  ExpectMistake({"serve"}, "--model");
  ExpectMistake({"serve", "--model", temp_.Path("nowhere")}, "there is no model");
  ExpectMistake({"serve", "--model", MakeModel("numbers", TinyConfig(40), nullptr)},
                "has no tokenizer; name one with --tokenizer");
  ExpectRefusal({"--begin"}, "no begin-of-text token");
  ExpectRefusal({"--method", "window,full"}, "one name each");
  for (const char* option : {"--max-batch", "--queue", "--max-tokens", "--block", "--max-body", "--max-connections"}) {
    ExpectRefusal({option, "0"}, option);
  }
  ExpectMistake({"serve", "--model", model_, "--port", "65536"}, "--port is 65536");
}

TEST_F(ServeTest, AnOpenAddressNeedsKeys) {
  for (const char* host : {"0.0.0.0", "::", "example.org"}) ExpectRefusal({"--host", host}, "give --api-key-file");
  ExpectRefusal({"--api-key-file", temp_.Path("none")}, "none");
  ExpectRefusal({"--api-key-file", temp_.Put("keys", "short\n")}, "line 1 is no key");
  ExpectRefusal({"--api-key-file", temp_.Put("keys", "# nothing\n")}, "has no key");
}

TEST_F(ServeTest, ChatTemplatesAreReadAtTheStart) {
  ExpectRefusal({"--chat-template", temp_.Path("none")}, "none");
  ExpectRefusal({"--chat-template", temp_.Put("template", "a\n{% nothing %}")},
                "line 2: {% nothing %} is not supported");
  // The model's own need not keep it from starting.
  temp_.Put("bytes/chat_template.jinja", "{{ ");
  Process process({"serve", "--model", model_, "--port", "0"}, temp_.path());
  ASSERT_TRUE(WaitUntil([&] { return process.Out().find("http://127.0.0.1:") != std::string::npos; }));
  EXPECT_NE(process.Err().find("/v1/chat/completions is not there"), std::string::npos);
}

TEST_F(ServeTest, SignalsEndIt) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Process process({"serve", "--model", model_, "--port", "0", "--name", "other"}, temp_.path());
    ASSERT_TRUE(WaitUntil([&] { return process.Out().ends_with("/v1\n"); }));
    EXPECT_TRUE(process.Out().starts_with("Serving other on http://127.0.0.1:"));
    process.Signal(signal);
    EXPECT_EQ(process.Wait(), 0);
  }
}

}  // namespace
}  // namespace tensorcache
