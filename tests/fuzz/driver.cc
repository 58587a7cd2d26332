#include "tests/fuzz/driver.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <filesystem>

#include "core/json.h"
#include "core/text.h"

namespace tensorcache::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "tensorcache-fuzz-";

// The folder of process N is tensorcache-fuzz-N. A process that ended with a finding leaves its own behind: those of
// processes that are no more go now.
std::string MakeFolder() {
  std::error_code ignored;
  const fs::path memory = "/dev/shm";
  const fs::path parent = fs::is_directory(memory, ignored) ? memory : fs::temp_directory_path();
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    pid_t process = 0;
    if (!name.starts_with(kPrefix)) continue;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), process);
    if (process > 0 && kill(process, 0) != 0 && errno == ESRCH) fs::remove_all(entry.path(), ignored);
  }
  const fs::path folder = parent / (std::string(kPrefix) + std::to_string(getpid()));
  fs::remove_all(folder, ignored);
  TC_CHECK(fs::create_directory(folder));
  std::atexit([] { fs::remove_all(Folder()); });
  return folder.string();
}

// A line of libFuzzer's dictionaries.
std::string DictionaryLine(std::string_view word) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string line = "\"";
  for (const char c : word) {
    const auto byte = static_cast<uint8_t>(c);
    line += {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
  }
  return line + "\"\n";
}

volatile unsigned sink;

}  // namespace

void CheckMessage(const Status& status) {
  TC_CHECK(!status.ok());
  TC_CHECK(!status.message().empty());
  TC_CHECK(status.message().find('\n') == std::string::npos);
  TC_CHECK(IsValidUtf8(status.message()));
}

std::vector<std::string_view> Split(std::string_view input, size_t count) {
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < count) {
    const size_t end = std::min(input.find('\0'), input.size());
    parts.push_back(input.substr(0, end));
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  parts.push_back(input);
  return parts;
}

std::string Join(std::initializer_list<std::string_view> parts) {
  std::string input;
  for (const std::string_view* part = parts.begin(); part != parts.end(); ++part) {
    if (part != parts.begin()) input += '\0';
    input += *part;
  }
  return input;
}

const std::string& Folder() {
  static const std::string& folder = *new std::string(MakeFolder());  // outlives the handler of atexit
  return folder;
}

std::string PathOf(std::string_view name) { return Folder() + "/" + std::string(name); }

std::string Put(std::string_view name, std::string_view content) {
  std::string path = PathOf(name);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  TC_CHECK(file >= 0);
  TC_CHECK(write(file, content.data(), content.size()) == std::ssize(content));
  close(file);
  return path;
}

std::string Get(const std::string& path) {
  auto content = ReadWholeFile(path, INT64_MAX);
  TC_CHECK(content.ok());
  return std::move(content).value();
}

void Remove(std::string_view name) { fs::remove_all(PathOf(name)); }

void Touch(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<unsigned>(byte);
  sink = sink + sum;
}

SplitSafetensors MakeSafetensors(const std::vector<SeedTensor>& tensors) {
  Json header = Json::object();
  SplitSafetensors file;
  float next = 0.125;
  for (const auto& [name, shape] : tensors) {
    const size_t begin = file.data.size();
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    for (int64_t i = 0; i < count; ++i, next = -0.75F * next + 0.25F) file.data += Raw(next);
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, file.data.size()}}};
  }
  file.header = header.dump();
  return file;
}

std::string JoinSafetensors(std::string_view header, std::string_view data) {
  return Raw(uint64_t{header.size()}) + std::string(header) + std::string(data);
}

}  // namespace tensorcache::fuzz

// Inputs are read from fresh memory by the 100 KB: what is freed must come back soon, or most of the time goes to the system.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the name that the sanitizer asks for.
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=8"; }

// Writes the seeds and the dictionary to files and names them to libFuzzer, which calls this first.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace tensorcache::fuzz;
  static std::vector<std::string> added;
  static std::vector<char*> arguments(*argv, *argv + *argc);
  std::string list, dictionary;
  for (const std::string& seed : Seeds()) {
    list += list.empty() ? "" : ",";
    list += Put("seed-" + std::to_string(list.size()), seed);
  }
  for (const std::string& word : Words()) dictionary += DictionaryLine(word);
  added = {"-seed_inputs=@" + Put("seeds", list), "-dict=" + Put("words", dictionary)};
  for (std::string& argument : added) arguments.push_back(argument.data());
  *argc = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  *argv = arguments.data();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tensorcache::fuzz::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
