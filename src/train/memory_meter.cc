#include "train/memory_meter.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <unordered_map>

namespace tensorcache::train {
namespace {

// The default CPU allocator, counting. Installed for good with the first meter: tensors may outlive any meter.
class CountingAllocator final : public at::Allocator {
 public:
  static CountingAllocator& Get() {
    static auto* allocator = [] {
      auto* made = new CountingAllocator(c10::GetCPUAllocator());
      c10::SetCPUAllocator(made, /*priority=*/100);
      return made;
    }();
    return *allocator;
  }

  at::DataPtr allocate(size_t bytes) override {
    // LibTorch wants the context to be the pointer itself; so the sizes are in a table.
    void* data = inner_->raw_allocate(bytes);
    if (data != nullptr) Add(data, static_cast<int64_t>(bytes));
    return {data, data, &Free, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }

  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }
  void ResetPeak() { peak_ = live_.load(); }

 private:
  explicit CountingAllocator(at::Allocator* inner) : inner_(inner) {}

  void Add(void* data, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    sizes_[data] = bytes;
    live_ += bytes;
    if (live_ > peak_) peak_ = live_.load();
  }
  void Remove(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(data);
    live_ -= found->second;
    sizes_.erase(found);
  }
  static void Free(void* data) {
    if (data == nullptr) return;
    Get().Remove(data);
    Get().inner_->raw_deallocate(data);
  }

  at::Allocator* inner_;
  std::mutex mutex_;
  std::unordered_map<void*, int64_t> sizes_;
  std::atomic<int64_t> live_ = 0;
  std::atomic<int64_t> peak_ = 0;
};

}  // namespace

void StartMeteringMemory() { CountingAllocator::Get(); }
int64_t LiveTensorBytes() { return CountingAllocator::Get().live(); }
int64_t PeakTensorBytes() { return CountingAllocator::Get().peak(); }

void ResetMemoryPeaks() {
  CountingAllocator::Get().ResetPeak();
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // the kernel's peak of resident memory starts again
}

int64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

}  // namespace tensorcache::train
