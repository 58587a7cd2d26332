// A thread that does one task after the other: parsing and tokenising of long requests, which must hold up neither the
// connections nor the model.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace tensorcache::server {

class TaskThread {
 public:
  TaskThread() : thread_([this] { Loop(); }) {}
  ~TaskThread() { Stop(); }
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // `task` must not throw. It is dropped if the thread has been stopped.
  void Do(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      if (!stop_) tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }
  // Waits for the task that runs; those that have not begun are dropped. Not from several threads at once.
  void Stop() {
    std::deque<std::function<void()>> dropped;
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      dropped.swap(tasks_);
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Loop() {
    while (true) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
        if (stop_) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool stop_ = false;                        // guarded by mutex_
  std::thread thread_;
};

}  // namespace tensorcache::server
