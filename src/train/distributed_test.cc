// The processes of a world are this program itself, started with --worker.
#include "train/distributed.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <thread>

#include "core/check.h"
#include "core/checksum.h"
#include "testing/port.h"
#include "train/torch.h"

extern char** environ;

namespace tensorcache::train {
namespace {

using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

// One line for the test that started this process. Unbuffered: the process may be killed at any time.
void Say(const std::string& line) {
  const std::string text = line + "\n";
  TC_CHECK(write(STDOUT_FILENO, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

// What rank `rank` brings to a sum: whole numbers, so that sums are exact in any order.
std::vector<at::Tensor> Contribution(int rank) {
  const auto values = [rank](at::IntArrayRef shape, at::ScalarType type) {
    const at::Tensor one = at::zeros(shape, type);
    return at::arange(one.numel(), at::kFloat).remainder_(16).add_(1).mul_(rank + 1).to(type).reshape(shape);
  };
  return {
      values({3, 5}, at::kFloat),         values({}, at::kFloat),
      values({0, 4}, at::kFloat),         values({7}, at::kDouble),
      values({6, 4}, at::kFloat).t(),   // not contiguous
      values({4'000'000}, at::kFloat),  // 16 MB: two of them do not fit a bucket
      values({2, 2'000'000}, at::kFloat), values({300, 5}, at::kDouble).slice(0, 0, 300, 2),
      values({11}, at::kBFloat16),        at::zeros({0}),
  };
}

Status CheckSums(World& world) {
  std::vector<at::Tensor> sum = Contribution(world.rank());
  sum[0].requires_grad_();  // as a parameter
  std::vector<at::Tensor> expected = Contribution(0);
  for (int rank = 1; rank < world.size(); ++rank) {
    const std::vector<at::Tensor> more = Contribution(rank);
    for (size_t i = 0; i < more.size(); ++i) expected[i] = expected[i] + more[i];
  }
  TC_RETURN_IF_ERROR(world.AllReduceSum(sum));
  for (size_t i = 0; i < sum.size(); ++i) {
    if (!sum[i].equal(expected[i])) return Corrupt(fmt::format("sum of tensor {}", i));
  }

  // Numbers whose sum depends on the order must still agree between ranks.
  at::Tensor noise = at::sin(at::arange(100'003, at::kFloat).mul(world.rank() + 1.37));
  TC_RETURN_IF_ERROR(world.AllReduceSum({noise}));
  Crc64 checksum;
  checksum.Add(std::as_bytes(std::span(noise.const_data_ptr<float>(), static_cast<size_t>(noise.numel()))));
  const double bits = static_cast<double>(checksum.value() >> 32);  // sums of such numbers are exact

  std::vector<double> figures = {1.0 + world.rank(), 0.5, bits};
  TC_RETURN_IF_ERROR(world.AllReduceSum(std::span<double>(figures)));
  const int n = world.size();
  if (figures[0] != 0.5 * n * (n + 1) || figures[1] != 0.5 * n) return Corrupt("sum of figures");
  if (figures[2] != n * bits) return Corrupt("ranks disagree about a sum");
  return OkStatus();
}

// Exchanges gradients until that fails; says the error, then that later calls fail with the same.
Status ExchangeUntilError(World& world) {
  std::vector<at::Tensor> gradients = {at::ones({1000, 1000}), at::ones({10}), at::ones({500}, at::kDouble)};
  for (int step = 0;; ++step) {
    for (at::Tensor& gradient : gradients) gradient.fill_(1);
    if (step == 3) Say("ready");
    const Status status = world.AllReduceSum(gradients);
    if (status.ok()) continue;
    double figure = 1;
    const bool sticky = world.AllReduceSum(std::span(&figure, 1)).message() == status.message() &&
                        world.AllReduceSum(gradients).message() == status.message();
    return sticky ? status : Corrupt("later calls do not fail with the first error");
  }
}

int WorkerMain(char** argv) {
  const std::string scenario = argv[0];
  WorldOptions options;
  options.rank = std::atoi(argv[1]);
  options.size = std::atoi(argv[2]);
  options.master_port = std::atoi(argv[3]);
  options.timeout_seconds = std::atof(argv[4]);
  at::set_num_threads(1);
  // Timeouts begin when all processes are up, however long that takes.
  Say("here");
  char go = 0;
  TC_CHECK(read(STDIN_FILENO, &go, 1) == 1);
  {
    Result<std::unique_ptr<World>> world = World::Join(options, at::kCPU);
    if (!world.ok()) {
      Say(world.status().message());
      return 3;
    }
    const Status status = scenario == "exchange" ? ExchangeUntilError(**world) : CheckSums(**world);
    Say(status.ok() ? "done" : status.message());
  }
  Say("left");  // the world is destroyed
  return 0;
}

// A worker process and the lines it says. Killed and waited for at the latest by the destructor.
class Worker {
 public:
  explicit Worker(const std::vector<std::string>& arguments) {
    int ends[2];
    TC_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<std::string> words = {"distributed_test", "--worker"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    TC_CHECK(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    fd_ = ends[0];
  }

  ~Worker() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(fd_);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Send(int signal) const { TC_CHECK(kill(pid_, signal) == 0); }

  void Go() const { TC_CHECK(send(fd_, "\n", 1, MSG_NOSIGNAL) == 1); }

  // Whether it said something that NextLine has not returned, or ended; waits up to `milliseconds` for that.
  bool HasNews(int milliseconds) {
    pollfd readable = {.fd = fd_, .events = POLLIN, .revents = 0};
    return !text_.empty() || poll(&readable, 1, milliseconds) > 0;
  }

  // The next line; "(silence)" after a minute, "(end)" when the process closed its output.
  std::string NextLine() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (;;) {
      if (const size_t end = text_.find('\n'); end != std::string::npos) {
        std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        return line;
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd readable = {.fd = fd_, .events = POLLIN, .revents = 0};
      if (left.count() <= 0 || poll(&readable, 1, static_cast<int>(left.count())) <= 0) return "(silence)";
      char buffer[4096];
      const ssize_t count = read(fd_, buffer, sizeof(buffer));
      if (count <= 0) return "(end)";
      text_.append(buffer, static_cast<size_t>(count));
    }
  }

  // Waits for the process; its exit status, or minus the signal that ended it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
  std::string text_;
};

using testing::FreePort;
using testing::Port;

using Workers = std::vector<std::unique_ptr<Worker>>;

struct Place {
  int rank;
  int size;
};

// Starts a worker for each place and lets all of them join at the same moment.
Workers Start(const std::string& scenario, const std::vector<Place>& places, int port, double timeout) {
  Workers workers;
  for (const auto [rank, size] : places) {
    workers.push_back(std::make_unique<Worker>(std::vector<std::string>{
        scenario, std::to_string(rank), std::to_string(size), std::to_string(port), std::to_string(timeout)}));
  }
  for (const std::unique_ptr<Worker>& worker : workers) EXPECT_EQ(worker->NextLine(), "here");
  for (const std::unique_ptr<Worker>& worker : workers) worker->Go();
  return workers;
}

AssertionResult Has(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) return AssertionFailure() << "no '" << part << "' in: " << text;
  }
  return AssertionSuccess();
}

class DistributedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasDistributedTraining()) GTEST_SKIP() << "this build has no distributed training";
  }
};

class WorldSizeTest : public DistributedTest, public ::testing::WithParamInterface<int> {};

TEST_P(WorldSizeTest, SumsOverAllRanks) {
  const int size = GetParam();
  std::vector<Place> places;
  for (int rank = size - 1; rank >= 0; --rank) places.push_back({rank, size});
  const Workers workers = Start("check", places, FreePort(), 20);
  for (const std::unique_ptr<Worker>& worker : workers) {
    EXPECT_EQ(worker->NextLine(), "done");
    EXPECT_EQ(worker->NextLine(), "left");
    EXPECT_EQ(worker->Wait(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, WorldSizeTest, ::testing::Values(2, 3));

class LostRankTest : public DistributedTest, public ::testing::WithParamInterface<int> {};

TEST_P(LostRankTest, TheOtherReturnsAnErrorWhenItIsKilled) {
  const int killed = GetParam();
  const Workers workers = Start("exchange", {{0, 2}, {1, 2}}, FreePort(), 30);
  Worker& survivor = *workers[1 - killed];
  for (const std::unique_ptr<Worker>& worker : workers) ASSERT_EQ(worker->NextLine(), "ready");
  workers[killed]->Send(SIGKILL);
  EXPECT_TRUE(Has(survivor.NextLine(), {fmt::format("rank {} of 2: ", 1 - killed), "lost contact with another process",
                                        "gradient exchange", "--resume"}));
  EXPECT_EQ(survivor.NextLine(), "left");
  EXPECT_EQ(survivor.Wait(), 0);
}

TEST_P(LostRankTest, TheOtherReturnsAnErrorWhenItHangs) {
  const int stopped = GetParam();
  const Workers workers = Start("exchange", {{0, 2}, {1, 2}}, FreePort(), 1.5);
  Worker& victim = *workers[stopped];
  Worker& survivor = *workers[1 - stopped];
  for (const std::unique_ptr<Worker>& worker : workers) ASSERT_EQ(worker->NextLine(), "ready");
  victim.Send(SIGSTOP);
  EXPECT_TRUE(Has(survivor.NextLine(), {fmt::format("rank {} of 2: ", 1 - stopped),
                                        "no answer from another process for 1.5 s", "--resume"}));
  EXPECT_EQ(survivor.NextLine(), "left");
  EXPECT_EQ(survivor.Wait(), 0);
  // Awake again, it finds the connection closed.
  victim.Send(SIGCONT);
  EXPECT_TRUE(Has(victim.NextLine(), {fmt::format("rank {} of 2: ", stopped), "--resume"}));
  EXPECT_EQ(victim.NextLine(), "left");
  EXPECT_EQ(victim.Wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, LostRankTest, ::testing::Values(0, 1));

TEST_F(DistributedTest, JoinTellsHowManyCame) {
  const int port = FreePort();
  const Workers workers = Start("check", {{0, 3}, {1, 3}}, port, 1.5);
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(Has(workers[rank]->NextLine(),
                    {fmt::format("rank {} of 3: only 2 of 3 came to 127.0.0.1:{} within 1.5 s", rank, port)}));
    EXPECT_EQ(workers[rank]->Wait(), 3);
  }
}

TEST_F(DistributedTest, JoinWithoutRank0) {
  const int port = FreePort();
  const Workers workers = Start("check", {{1, 2}}, port, 0.5);
  EXPECT_TRUE(Has(workers[0]->NextLine(), {fmt::format("rank 1 of 2: cannot reach rank 0 at 127.0.0.1:{} ", port)}));
  EXPECT_EQ(workers[0]->Wait(), 3);
}

TEST_F(DistributedTest, JoinAtAPortOfAnotherProgram) {
  const Port port;
  port.Listen();
  const Workers workers = Start("check", {{0, 2}, {1, 2}}, port.number(), 0.2);
  EXPECT_TRUE(Has(workers[0]->NextLine(), {"rank 0 of 2: cannot listen on port", "MASTER_PORT"}));
  EXPECT_TRUE(Has(workers[1]->NextLine(), {fmt::format("rank 1 of 2: no answer at 127.0.0.1:{} ", port.number())}));
  for (const std::unique_ptr<Worker>& worker : workers) EXPECT_EQ(worker->Wait(), 3);
}

TEST_F(DistributedTest, JoinFindsContradictions) {
  const Workers workers = Start("check", {{1, 3}, {1, 3}, {1, 2}, {0, 3}}, FreePort(), 30);
  EXPECT_TRUE(Has(workers[2]->NextLine(), {"rank 1 of 2: rank 0 ", "expects 3 processes", "WORLD_SIZE"}));
  // One of the two comes first, is welcome, and waits for rank 2.
  Worker* late = nullptr;
  for (int tries = 0; late == nullptr && tries < 300; ++tries) {
    for (const int i : {0, 1}) {
      if (workers[i]->HasNews(50)) late = workers[i].get();
    }
  }
  ASSERT_NE(late, nullptr);
  EXPECT_TRUE(Has(late->NextLine(), {"rank 1 of 3: another process", "has the same rank"}));
}

TEST(WorldTest, OneProcessNeedsNobody) {
  Result<std::unique_ptr<World>> world = World::Join({}, at::kCPU);
  ASSERT_TRUE(world.ok());
  EXPECT_EQ((*world)->rank(), 0);
  EXPECT_EQ((*world)->size(), 1);
  const at::Tensor tensor = at::full({3}, 7.0);
  std::vector<double> figures = {2.5};
  EXPECT_TRUE((*world)->AllReduceSum({tensor}).ok());
  EXPECT_TRUE((*world)->AllReduceSum(std::span<double>(figures)).ok());
  EXPECT_TRUE(tensor.equal(at::full({3}, 7.0)));
  EXPECT_EQ(figures[0], 2.5);
}

TEST(WorldTest, JoinRefusesBadOptions) {
  const auto code = [](const WorldOptions& options) { return World::Join(options, at::kCPU).status().code(); };
  EXPECT_EQ(code({.rank = 2, .size = 2}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.rank = -1, .size = 2}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.rank = 0, .size = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.rank = 0, .size = 2, .master_port = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.rank = 0, .size = 2, .master_address = ""}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.rank = 0, .size = 2, .timeout_seconds = 0}), StatusCode::kInvalidArgument);
}

TEST(WorldTest, JoinSaysWhenTheBuildCannot) {
  if (HasDistributedTraining()) GTEST_SKIP() << "this build can";
  const Result<std::unique_ptr<World>> world = World::Join({.rank = 0, .size = 2}, at::kCPU);
  EXPECT_EQ(world.status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(Has(world.status().message(), {"this build has no distributed training"}));
}

using Environment = std::map<std::string, std::string>;

// Runs with these variables of launchers and no others.
Result<WorldOptions> With(const Environment& variables) {
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE",
        "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}) {
    unsetenv(name);
  }
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  return WorldFromEnvironment();
}

TEST(WorldFromEnvironmentTest, Launchers) {
  struct Case {
    Environment variables;
    std::string expected;  // rank/size local rank address:port
  };
  const std::vector<Case> cases = {
      {{}, "0/1 0 127.0.0.1:29500"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "1"}}, "0/1 0 127.0.0.1:29500"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}}, "1/2 0 127.0.0.1:29500"},
      {{{"RANK", ""}, {"WORLD_SIZE", ""}}, "0/1 0 127.0.0.1:29500"},
      {{{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}, "0/1 0 127.0.0.1:29500"},
      {{{"RANK", "5"},
        {"WORLD_SIZE", "8"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_WORLD_SIZE", "4"},
        {"MASTER_ADDR", "node-a"},
        {"MASTER_PORT", "4321"}},
       "5/8 1 node-a:4321"},
      {{{"OMPI_COMM_WORLD_RANK", "2"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
       "2/4 2 127.0.0.1:29500"},
      {{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_PORT", "65535"}}, "1/2 0 127.0.0.1:65535"},
      {{{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}, {"MASTER_ADDR", "n1"}}, "3/4 1 n1:29500"},
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}, "0/1 0 127.0.0.1:29500"},  // inside sbatch, without srun
      {{{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
       "1/3 0 127.0.0.1:29500"},  // torchrun started by mpirun
  };
  for (const Case& c : cases) {
    const Result<WorldOptions> world = With(c.variables);
    ASSERT_TRUE(world.ok()) << world.status().message() << ", expected " << c.expected;
    EXPECT_EQ(fmt::format("{}/{} {} {}:{}", world->rank, world->size, world->local_rank, world->master_address,
                          world->master_port),
              c.expected);
  }
}

TEST(WorldFromEnvironmentTest, Errors) {
  struct Case {
    Environment variables;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {{{"RANK", "0"}}, {"RANK is set", "not WORLD_SIZE"}},
      {{{"WORLD_SIZE", "2"}}, {"WORLD_SIZE is set", "not RANK"}},
      {{{"OMPI_COMM_WORLD_RANK", "0"}}, {"not OMPI_COMM_WORLD_SIZE"}},
      {{{"RANK", "zero"}, {"WORLD_SIZE", "2"}}, {"RANK is 'zero'", "whole number"}},
      {{{"RANK", "1x"}, {"WORLD_SIZE", "2"}}, {"'1x'"}},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, {"'-1'", "from 0"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE is '0'", "from 1"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}, {"'99999999999'"}},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK=2", "WORLD_SIZE=2"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "0"}}, {"MASTER_PORT is '0'", "65535"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "http"}}, {"MASTER_PORT is 'http'"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}}, {"LOCAL_RANK is '2'"}},
      {{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
       {"2 of the 4 processes", "MASTER_ADDR is not set"}},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "x"}}, {"MPI_LOCALNRANKS is 'x'"}},
      {{{"SLURM_PROCID", "4"}, {"SLURM_NTASKS", "4"}, {"MASTER_ADDR", "n1"}}, {"SLURM_PROCID=4"}},
  };
  for (const Case& c : cases) {
    const Result<WorldOptions> world = With(c.variables);
    ASSERT_FALSE(world.ok()) << "no error about " << c.parts[0];
    EXPECT_EQ(world.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Has(world.status().message(), c.parts));
  }
}

}  // namespace
}  // namespace tensorcache::train

int main(int argc, char** argv) {
  // Whatever else follows --worker: one that ran the tests would start workers, which would run the tests.
  if (argc > 1 && std::strcmp(argv[1], "--worker") == 0) {
    return argc == 7 ? tensorcache::train::WorkerMain(argv + 2) : 2;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
