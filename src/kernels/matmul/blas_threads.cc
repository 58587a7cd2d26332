#include "kernels/matmul/blas_threads.h"

#include <mutex>

// Another BLAS leaves those of OpenBLAS null, one that does not use OpenMP the others.
extern "C" {
__attribute__((weak)) int openblas_get_parallel(void);
__attribute__((weak)) int openblas_get_num_threads(void);
__attribute__((weak)) void openblas_set_num_threads(int threads);
__attribute__((weak)) int omp_get_max_threads(void);
__attribute__((weak)) void omp_set_num_threads(int threads);
}

namespace tensorcache {
namespace {

enum class Threading { kNone, kOwn, kOpenMp };

Threading FindThreading() {
  if (openblas_get_num_threads == nullptr || openblas_set_num_threads == nullptr) return Threading::kNone;
  // Nothing pulls openblas_get_parallel out of a static library; those mostly have threads of their own.
  const int parallel = openblas_get_parallel == nullptr ? 1 : openblas_get_parallel();
  if (parallel == 2 && omp_get_max_threads != nullptr && omp_set_num_threads != nullptr) return Threading::kOpenMp;
  return parallel == 1 ? Threading::kOwn : Threading::kNone;
}

Threading BlasThreading() {
  static const Threading threading = FindThreading();
  return threading;
}

// The setting of the process, while somebody needs it to be 1.
class ProcessSetting {
 public:
  void Acquire() {
    const std::lock_guard lock(mutex_);
    if (users_++ > 0) return;
    before_ = openblas_get_num_threads();
    if (before_ != 1) openblas_set_num_threads(1);
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    if (--users_ > 0 || before_ == 1) return;
    if (openblas_get_num_threads() == 1) openblas_set_num_threads(before_);
  }

 private:
  std::mutex mutex_;
  int users_ = 0;
  int before_ = 1;
};

ProcessSetting process_setting;

}  // namespace

BlasOnOneThread::BlasOnOneThread() {
  if (BlasThreading() == Threading::kOwn) process_setting.Acquire();
  if (BlasThreading() != Threading::kOpenMp) return;
  thread_before_ = omp_get_max_threads();
  if (thread_before_ != 1) omp_set_num_threads(1);
}

BlasOnOneThread::~BlasOnOneThread() {
  if (BlasThreading() == Threading::kOwn) process_setting.Release();
  if (BlasThreading() == Threading::kOpenMp && thread_before_ != 1) omp_set_num_threads(thread_before_);
}

}  // namespace tensorcache
