#pragma once

#include <manyhead/threads.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace manyhead::examples {

/// A pool as programs have one, and how it serves as the team. Its threads take jobs from a queue,
/// first come, first served; the thread that asks for workers is one of them.
class PoolExecutor {
 public:
  explicit PoolExecutor(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Serve(); });
  }
  ~PoolExecutor() {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  PoolExecutor(const PoolExecutor&) = delete;
  PoolExecutor& operator=(const PoolExecutor&) = delete;

  /// For SetThreads. The pool has to last until another team is set.
  ThreadsOptions Options() {
    ThreadsOptions options;
    options.team = Team::kExecutor;
    options.run = [](void* pool, int num_workers, ExecutorTask task, void* task_context) {
      static_cast<PoolExecutor*>(pool)->RunAll(num_workers, task, task_context);
    };
    options.context = this;
    options.max_workers = 1 + static_cast<int>(threads_.size());
    return options;
  }

 private:
  void RunAll(int num_workers, ExecutorTask task, void* task_context) {
    int left = num_workers - 1;
    {
      const std::scoped_lock lock(mutex_);
      for (int i = 1; i < num_workers; ++i) {
        queue_.push_back([this, i, task, task_context, &left] {
          task(task_context, i);
          const std::scoped_lock done(mutex_);
          --left;
          changed_.notify_all();
        });
      }
    }
    changed_.notify_all();
    task(task_context, 0);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&left] { return left == 0; });
  }

  void Serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> job = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace manyhead::examples
