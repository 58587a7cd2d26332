// The process group of c10d: a key-value store at rank 0 where all processes meet, then connections between all pairs.
#include "train/process_group.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <future>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
// CUDA wheels of LibTorch have NCCL, but its header comes in a package of its own. Without it, Gloo exchanges CUDA
// tensors through host memory.
#if defined(USE_C10D_NCCL) && __has_include(<nccl.h>)
#define TC_HAVE_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "train/reach_host.h"

namespace tensorcache::train {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class C10dGroup final : public ProcessGroup {
 public:
  C10dGroup(c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::Backend> backend)
      : store_(std::move(store)), backend_(std::move(backend)) {}

  Wait StartSum(const at::Tensor& flat) override {
    std::vector<at::Tensor> tensors = {flat};
    return WaitFor(backend_->allreduce(tensors));
  }

  Wait StartBarrier() override { return WaitFor(backend_->barrier()); }

  void Abort() override { backend_->abort(); }

 private:
  static Wait WaitFor(c10::intrusive_ptr<c10d::Work> work) {
    return [work = std::move(work)] {
      if (!work->wait()) throw std::runtime_error("the exchange was aborted");
    };
  }

  c10::intrusive_ptr<c10d::Store> store_;  // outlives the backend, which uses it
  c10::intrusive_ptr<c10d::Backend> backend_;
};

// What the caller of JoinProcessGroup may want to know when the thread that joins does not come back.
struct Progress {
  std::atomic<int> came = 0;  // processes known to have come
};

// Joins on a thread of its own; see JoinProcessGroup.
class Joiner {
 public:
  Joiner(const WorldOptions& options, at::Device device, std::shared_ptr<Progress> progress)
      : options_(options),
        device_(device),
        progress_(std::move(progress)),
        deadline_(Clock::now() +
                  std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.timeout_seconds))) {
  }

  Result<std::unique_ptr<ProcessGroup>> Join() {
    try {
      TC_RETURN_IF_ERROR(OpenStore());
      TC_RETURN_IF_ERROR(Register());
      TC_RETURN_IF_ERROR(AwaitOthers());
      std::unique_ptr<ProcessGroup> group = std::make_unique<C10dGroup>(store_, Connect());
      // Rank 0 must not take the store away while others still connect.
      group->StartBarrier()();
      return group;
    } catch (const std::exception& error) {
      return Failure(fmt::format("joining the other processes failed, {} ({}); see their messages", CameText(),
                                 FirstSentence(error)));
    }
  }

 private:
  Status Failure(std::string_view text) const {
    return IoError(fmt::format("rank {} of {}: {}", options_.rank, options_.size, text));
  }

  std::string CameText() const {
    return fmt::format("{} of {} came to {}:{}", progress_->came.load(), options_.size, options_.master_address,
                       options_.master_port);
  }

  milliseconds TimeLeft() const {
    return std::max(std::chrono::ceil<milliseconds>(deadline_ - Clock::now()), milliseconds(1));
  }

  Status OpenStore() {
    c10d::TCPStoreOptions store_options;
    store_options.port = static_cast<uint16_t>(options_.master_port);
    store_options.isServer = options_.rank == 0;
    store_options.waitWorkers = false;
    // The first try to reach rank 0 is ours: c10d would write a warning for each one that fails.
    if (options_.rank == 0) {
      if (const Status free = CheckPortIsFree(options_.master_port); !free.ok()) {
        return Failure(fmt::format("cannot listen on port {} ({}); set MASTER_PORT to another one for all processes",
                                   options_.master_port, free.message()));
      }
    } else {
      TC_RETURN_IF_ERROR(ReachMaster());
    }
    store_options.timeout = TimeLeft();
    store_ = c10::make_intrusive<c10d::TCPStore>(options_.master_address, store_options);
    if (options_.rank == 0) TC_RETURN_IF_ERROR(ReachMaster());
    return OkStatus();
  }

  Status ReachMaster() {
    Result<Endpoints> endpoints = ReachHost(options_.master_address, options_.master_port, deadline_);
    if (!endpoints.ok()) {
      return Failure(fmt::format(
          "cannot reach rank 0 at {}:{} within {:g} s ({}); start rank 0, and check MASTER_ADDR, "
          "MASTER_PORT and the firewalls",
          options_.master_address, options_.master_port, options_.timeout_seconds, endpoints.status().message()));
    }
    endpoints_ = std::move(endpoints).value();
    return OkStatus();
  }

  // Finds out whether the launchers of all processes told them the same.
  Status Register() {
    const std::string size_key = "tensorcache/size";
    const std::string size = std::to_string(options_.size);
    if (options_.rank == 0) store_->set(size_key, std::vector<uint8_t>(size.begin(), size.end()));
    const std::vector<uint8_t> answer = store_->get(size_key);
    if (const std::string size_of_root(answer.begin(), answer.end()); size_of_root != size) {
      return InvalidArgument(
          fmt::format("rank {} of {}: rank 0 at {}:{} expects {} processes; start all with the same "
                      "WORLD_SIZE, or another MASTER_PORT if they are not of one run",
                      options_.rank, options_.size, options_.master_address, options_.master_port, size_of_root));
    }
    if (store_->add(fmt::format("tensorcache/rank/{}", options_.rank), 1) != 1) {
      return InvalidArgument(fmt::format("rank {} of {}: another process at {}:{} has the same rank; give each its own",
                                         options_.rank, options_.size, options_.master_address, options_.master_port));
    }
    store_->set(MasterKey(options_.rank), std::vector<uint8_t>(endpoints_.remote.begin(), endpoints_.remote.end()));
    return OkStatus();
  }

  static std::string MasterKey(int rank) { return fmt::format("tensorcache/master_seen_by/{}", rank); }

  Status AwaitOthers() {
    const std::string key = "tensorcache/came";
    constexpr int64_t kGaveUp = int64_t{1} << 32;  // added by rank 0 when it ends the waiting
    constexpr milliseconds kPause(20);
    for (int64_t came = store_->add(key, 1); came != options_.size; came = store_->add(key, 0)) {
      progress_->came = static_cast<int>(came % kGaveUp);
      if (came >= kGaveUp || Clock::now() >= deadline_) {
        if (options_.rank == 0) {
          store_->add(key, kGaveUp);
          std::this_thread::sleep_for(10 * kPause);  // the store ends with this process; let the others read it
        }
        return Failure(fmt::format("only {} within {:g} s; start the others, or see their messages", CameText(),
                                   options_.timeout_seconds));
      }
      std::this_thread::sleep_for(kPause);
    }
    progress_->came = options_.size;
    return OkStatus();
  }

  // The address under which the others reach this process: where its way to rank 0 begins. The host name of a machine
  // often resolves to a loopback address on that machine itself, so rank 0 asks the others how they see it.
  std::string OwnAddress() {
    if (options_.rank != 0 || !IsLoopback(endpoints_.local)) return endpoints_.local;
    for (int rank = 1; rank < options_.size; ++rank) {
      const std::vector<uint8_t> value = store_->get(MasterKey(rank));
      std::string seen(value.begin(), value.end());
      if (!IsLoopback(seen)) return seen;
    }
    return endpoints_.local;
  }

  c10::intrusive_ptr<c10d::Backend> Connect() {
    const milliseconds timeout(std::max<int64_t>(1, std::llround(options_.timeout_seconds * 1000)));
    store_->setTimeout(timeout);
#ifdef TC_HAVE_NCCL
    if (device_.is_cuda()) {
      // Makes a wait end with an exception after the timeout, where otherwise a watchdog would end the program.
      setenv("TORCH_NCCL_BLOCKING_WAIT", "1", 0);
      auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
      nccl_options->timeout = timeout;
      auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(store_, options_.rank, options_.size, nccl_options);
      nccl->setBoundDeviceId(at::Device(at::kCUDA, device_.has_index() ? device_.index() : at::DeviceIndex(0)));
      return nccl;
    }
#endif
    const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
    auto gloo_options = c10d::ProcessGroupGloo::Options::create(timeout);
    gloo_options->devices.push_back(interface != nullptr && *interface != '\0'
                                        ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                        : c10d::ProcessGroupGloo::createDeviceForHostname(OwnAddress()));
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store_, options_.rank, options_.size, gloo_options);
  }

  const WorldOptions options_;
  const at::Device device_;
  const std::shared_ptr<Progress> progress_;
  const Clock::time_point deadline_;
  Endpoints endpoints_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

bool HasDistributedTraining() { return true; }

// The store's clients read without a timeout, so a mute server would hold the caller for ever: the work is done on a
// thread that can be left behind.
Result<std::unique_ptr<ProcessGroup>> JoinProcessGroup(const WorldOptions& options, at::Device device) {
  using Joined = Result<std::unique_ptr<ProcessGroup>>;
  const auto progress = std::make_shared<Progress>();
  std::packaged_task<Joined()> task([=] {
    // Gloo's threads inherit this. They write to sockets that the other side may have closed, and are told so by an
    // error of the write as well; the signal would end the program.
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    return Joiner(options, device, progress).Join();
  });
  std::future<Joined> joined = task.get_future();
  std::thread(std::move(task)).detach();
  constexpr double kGraceSeconds = 2;
  if (joined.wait_for(std::chrono::duration<double>(options.timeout_seconds + kGraceSeconds)) ==
      std::future_status::ready) {
    return joined.get();
  }
  return IoError(
      fmt::format("rank {} of {}: no answer at {}:{} within {:g} s ({} of {} came); rank 0 hangs, or another "
                  "program uses that port",
                  options.rank, options.size, options.master_address, options.master_port, options.timeout_seconds,
                  progress->came.load(), options.size));
}

}  // namespace tensorcache::train
