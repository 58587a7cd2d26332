// Ctrl-C and SIGTERM as a wish, for commands that save their work before they end.
#pragma once

#include <atomic>

namespace tensorcache::cli {

// True once a signal has come. A second signal ends the program at once, as if nobody listened. Listens from the first call.
const std::atomic<bool>* StopOnSignals();
bool StopWanted();
// From now on a signal ends the program at once: for work that would not be saved anyway.
void EndOnSignals();

}  // namespace tensorcache::cli
