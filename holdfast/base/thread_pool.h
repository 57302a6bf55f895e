// A fixed number of threads that run tasks from a bounded queue.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "holdfast/base/mutex.h"

namespace holdfast {

struct ThreadPoolOptions {
  int threads = 1;
  size_t queue = 64;  // how many tasks may wait
  // How long a thread that has run a task stays awake for the next one, since to wake a thread
  // takes tens of microseconds. It gives its processor to any other thread that has work.
  std::chrono::nanoseconds linger{0};
};

// Tasks start in the order of submission. A task must not throw (that ends the process)
// and must not call submit() or wait_idle() on its own pool: if all threads waited for
// room in the queue, none would be left to make room. All calls are safe from several
// threads. The destructor runs all submitted tasks, then joins the threads.
class ThreadPool {
 public:
  using Task = std::function<void()>;

  // Starts a thread that runs the task, or throws std::system_error.
  using Starter = std::function<std::jthread(Task)>;

  // If the system refuses some of the threads, the pool works with fewer; it aborts if
  // the system refuses all of them. Tests pass a `start` of their own.
  explicit ThreadPool(ThreadPoolOptions options, const Starter& start = start_thread);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Waits for room in the queue.
  void submit(Task task);
  // Returns when no task waits or runs. Tasks submitted meanwhile are waited for too.
  void wait_idle();
  // The number of threads that could be started.
  int threads() const { return static_cast<int>(threads_.size()); }

 private:
  static std::jthread start_thread(Task task);
  void start_threads(int count, const Starter& start);
  void work();
  void run_next() HOLDFAST_REQUIRES(mutex_);
  void linger() HOLDFAST_REQUIRES(mutex_);
  bool has_room() const HOLDFAST_REQUIRES(mutex_) { return queue_.size() < limit_; }
  void enqueue(Task task) HOLDFAST_REQUIRES(mutex_);

  const size_t limit_;
  const std::chrono::nanoseconds linger_;
  // True if a task waits, or the pool ends. Threads that linger look at it without the mutex.
  std::atomic<bool> is_called_ = false;
  Mutex mutex_;
  Condition task_there_;
  Condition room_there_;
  Condition idle_;
  std::deque<Task> queue_ HOLDFAST_GUARDED_BY(mutex_);
  size_t running_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  size_t lingering_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;  // the last member: threads use those above
};

}  // namespace holdfast
