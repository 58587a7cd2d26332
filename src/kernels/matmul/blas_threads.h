// Keeps BLAS on the calling thread while products of ours run: our callers split the work.
#pragma once

namespace tensorcache {

// As long as one of these lives, a product on the thread that made it stays on that thread. What the host process has set
// holds before and after. Any number may live at a time, on any threads.
//
// OpenBLAS with threads of its own has one setting for the process, also under openblas_set_num_threads_local of newer
// versions. So it is 1 from the first to the last of these, for the host's products, too; should the host set it in
// between, that stays. With OpenMP the setting is one of the calling thread, and nobody else sees it. A BLAS without
// threads is left alone, and so is any other than OpenBLAS: docs/library.md says what to do then.
class BlasOnOneThread {
 public:
  BlasOnOneThread();
  ~BlasOnOneThread();
  BlasOnOneThread(const BlasOnOneThread&) = delete;
  BlasOnOneThread& operator=(const BlasOnOneThread&) = delete;

 private:
  int thread_before_ = 0;  // OpenMP: what the calling thread had
};

}  // namespace tensorcache
