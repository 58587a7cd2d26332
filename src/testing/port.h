// TCP ports for tests.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/check.h"

namespace tensorcache::testing {

// A TCP port of loopback that nobody else uses, held until Release.
class Port {
 public:
  Port() {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    TC_CHECK(fd_ >= 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t length = sizeof(address);
    TC_CHECK(bind(fd_, reinterpret_cast<sockaddr*>(&address), length) == 0);
    TC_CHECK(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    number_ = ntohs(address.sin_port);
  }
  ~Port() { Release(); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  void Release() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // Connections are accepted by the kernel, but nobody ever answers.
  void Listen() const { TC_CHECK(listen(fd_, 8) == 0); }
  int number() const { return number_; }

 private:
  int fd_ = -1;
  int number_ = 0;
};

inline int FreePort() { return Port().number(); }

}  // namespace tensorcache::testing
