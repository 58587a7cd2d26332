// Compiles and links if LibTorch has what src/train/process_group.cc needs.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

int main(int argc, char** argv) {
  auto store = c10::make_intrusive<c10d::TCPStore>(std::string(argv[0]), c10d::TCPStoreOptions{});
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(argc));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("localhost"));
  auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, 0, 1, options);
  c10::intrusive_ptr<c10d::Backend> backend = group;
  backend->abort();
  return backend->barrier()->wait() ? 0 : 1;
}
