#include "train/memory_meter.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

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
    auto* block = new Block{inner_->allocate(bytes), static_cast<int64_t>(bytes)};
    const int64_t live = live_.fetch_add(block->bytes) + block->bytes;
    for (int64_t peak = peak_; live > peak && !peak_.compare_exchange_weak(peak, live);) {
    }
    return {block->data.get(), block, &Free, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }

  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }
  void ResetPeak() { peak_ = live_.load(); }

 private:
  struct Block {
    at::DataPtr data;
    int64_t bytes;
  };

  explicit CountingAllocator(at::Allocator* inner) : inner_(inner) {}

  static void Free(void* context) {
    auto* block = static_cast<Block*>(context);
    Get().live_ -= block->bytes;
    delete block;
  }

  at::Allocator* inner_;
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
