#include "apps/tensorcache/stop_signal.h"

#include <signal.h>

namespace tensorcache::cli {
namespace {

std::atomic<bool> stop_wanted = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void AskToStop(int signal_number) {
  stop_wanted = true;
  signal(signal_number, SIG_DFL);
}

}  // namespace

const std::atomic<bool>* StopOnSignals() {
  struct sigaction action = {};
  action.sa_handler = AskToStop;  // without SA_RESTART: waiting for a line ends as well
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return &stop_wanted;
}

bool StopWanted() { return stop_wanted; }

void EndOnSignals() {
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
}

}  // namespace tensorcache::cli
