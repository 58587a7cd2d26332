#include "train/tensor_pool.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "train/torch.h"

namespace tensorcache::train {
namespace {

constexpr size_t kSmallest = size_t{64} << 10;  // below it the system's own allocator keeps what is freed
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 4096, kCacheLine = 64;
constexpr size_t kAlwaysKept = size_t{64} << 20;

// Sizes of blocks: sixteen between one power of two and the next, so that tensors of about a size share them.
size_t BlockBytes(size_t bytes) {
  const size_t step = std::max(kSmallest, std::bit_floor(bytes) / 16);
  return (bytes + step - 1) / step * step;
}

struct Block {
  void* mapping;
  size_t mapped;
  size_t bytes;  // for a tensor
};

class TensorPool final : public at::Allocator {
 public:
  static TensorPool& Get() {
    static auto* pool = [] {
      auto* made = new TensorPool(c10::GetCPUAllocator());
      c10::SetCPUAllocator(made, /*priority=*/50);
      return made;
    }();
    return *pool;
  }

  at::DataPtr allocate(size_t bytes) override {
    // LibTorch wants the context to be the pointer itself; so what a block is stands in a table.
    void* data = bytes < kSmallest ? nullptr : Take(BlockBytes(bytes));
    if (data == nullptr) data = inner_->raw_allocate(bytes);  // which says so when there is no memory
    return {data, data, &Free, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }

  int64_t kept() {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(kept_);
  }

 private:
  explicit TensorPool(at::Allocator* inner) : inner_(inner) {}

  // Null: the system has no more.
  void* Take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<void*>& free = free_[bytes];
    void* data = nullptr;
    if (!free.empty()) {
      data = free.back();
      free.pop_back();
      kept_ -= bytes;
    } else {
      data = Map(bytes);
      if (data == nullptr && kept_ > 0) {
        UnmapKept();
        data = Map(bytes);
      }
      if (data == nullptr) return nullptr;
    }
    live_ += bytes;
    most_ = std::max(most_, live_);
    return data;
  }

  void* Map(size_t bytes) {
    const bool huge = bytes >= kHugePage;
    const size_t mapped = bytes + kPage + (huge ? kHugePage : 0);
    void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return nullptr;
    auto start = reinterpret_cast<uintptr_t>(mapping);
    if (huge) {
      start = (start + kHugePage - 1) / kHugePage * kHugePage;
      madvise(reinterpret_cast<void*>(start), bytes, MADV_HUGEPAGE);  // no matter if it is refused
    }
    // At another place of its page than the block before: kernels that walk through several tensors at once would
    // otherwise meet in the same sets of the cache.
    constexpr size_t kStep = 13 * kCacheLine;
    start += maps_++ * kStep % kPage;
    void* data = reinterpret_cast<void*>(start);
    blocks_.emplace(data, Block{.mapping = mapping, .mapped = mapped, .bytes = bytes});
    return data;
  }

  static void Free(void* data) {
    if (data != nullptr && !Get().GiveBack(data)) Get().inner_->raw_deallocate(data);
  }

  // False: it is not from here.
  bool GiveBack(void* data) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(data);
    if (block == blocks_.end()) return false;
    const size_t bytes = block->second.bytes;
    free_[bytes].push_back(data);
    live_ -= bytes;
    kept_ += bytes;
    if (live_ + kept_ > 2 * most_ + kAlwaysKept) UnmapKept();
    return true;
  }

  void UnmapKept() {
    for (auto& [bytes, free] : free_) {
      for (void* data : free) {
        const auto block = blocks_.find(data);
        munmap(block->second.mapping, block->second.mapped);
        blocks_.erase(block);
      }
      free.clear();
    }
    kept_ = 0;
  }

  at::Allocator* inner_;
  std::mutex mutex_;
  std::unordered_map<size_t, std::vector<void*>> free_;  // by size
  std::unordered_map<void*, Block> blocks_;
  size_t live_ = 0, kept_ = 0, most_ = 0;
  size_t maps_ = 0;
};

}  // namespace

void PoolTensors() { TensorPool::Get(); }

int64_t PooledBytes() { return TensorPool::Get().kept(); }

}  // namespace tensorcache::train
