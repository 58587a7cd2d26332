// Whether a TCP port can be reached, and which of this machine's addresses leads there.
#pragma once

#include <chrono>
#include <string>

#include "tensorcache/status.h"

namespace tensorcache::train {

// Both ends of a connection as numeric addresses.
struct Endpoints {
  std::string local;
  std::string remote;
};

// Tries until somebody accepts a connection to host:port, or until the deadline; the error then says why the last try
// failed, as the second half of a sentence ("Connection refused"). The connection is closed at once.
Result<Endpoints> ReachHost(const std::string& host, int port, std::chrono::steady_clock::time_point deadline);

// Is the numeric address one that only this machine can reach?
bool IsLoopback(const std::string& address);

// An error if nobody can listen on the port of this machine, because it is taken or needs privileges.
Status CheckPortIsFree(int port);

}  // namespace tensorcache::train
