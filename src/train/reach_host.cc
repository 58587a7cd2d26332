#include "train/reach_host.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

namespace tensorcache::train {
namespace {

using Clock = std::chrono::steady_clock;

class Socket {
 public:
  explicit Socket(int family) : fd_(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Status SystemError(int error) { return IoError(std::generic_category().message(error)); }

std::string Numeric(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST];
  const int error =
      getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? host : "";
}

template <class GetName>
std::string NameOf(int fd, GetName get_name) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (get_name(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  return Numeric(address, length);
}

Result<Endpoints> ConnectOnce(const addrinfo& address, Clock::time_point deadline) {
  const Socket socket(address.ai_family);
  if (socket.fd() < 0) return SystemError(errno);
  if (connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return SystemError(errno);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting = {.fd = socket.fd(), .events = POLLOUT, .revents = 0};
    if (poll(&waiting, 1, static_cast<int>(std::clamp<int64_t>(left, 1, 5000))) <= 0) return SystemError(ETIMEDOUT);
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return SystemError(error);
  }
  return Endpoints{.local = NameOf(socket.fd(), getsockname), .remote = NameOf(socket.fd(), getpeername)};
}

Result<Endpoints> TryAllAddresses(const std::string& host, int port, Clock::time_point deadline) {
  const addrinfo hints = {.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0) {
    return IoError(gai_strerror(error));
  }
  const AddressList list(found, freeaddrinfo);
  Status failure;
  for (const addrinfo* address = list.get(); address != nullptr; address = address->ai_next) {
    Result<Endpoints> endpoints = ConnectOnce(*address, deadline);
    if (endpoints.ok()) return endpoints;
    failure = endpoints.status();
  }
  return failure;
}

}  // namespace

Result<Endpoints> ReachHost(const std::string& host, int port, Clock::time_point deadline) {
  constexpr std::chrono::milliseconds kPause(100);
  for (;;) {
    Result<Endpoints> endpoints = TryAllAddresses(host, port, deadline);
    if (endpoints.ok() || Clock::now() + kPause >= deadline) return endpoints;
    std::this_thread::sleep_for(kPause);
  }
}

bool IsLoopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

Status CheckPortIsFree(int port) {
  const Socket socket(AF_INET);
  if (socket.fd() < 0) return SystemError(errno);
  const int yes = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  if (bind(socket.fd(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) != 0) return SystemError(errno);
  if (listen(socket.fd(), 1) != 0) return SystemError(errno);
  return OkStatus();
}

}  // namespace tensorcache::train
