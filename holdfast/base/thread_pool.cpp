#include "holdfast/base/thread_pool.h"

#include <system_error>

#include "holdfast/base/result.h"

namespace holdfast {

ThreadPool::ThreadPool(ThreadPoolOptions options, const Starter& start)
    : limit_(options.queue), linger_(options.linger) {
  HOLDFAST_CHECK(options.threads > 0, "{} threads", options.threads);
  HOLDFAST_CHECK(options.queue > 0, "a queue without room");
  start_threads(options.threads, start);
}

std::jthread ThreadPool::start_thread(Task task) {
  return std::jthread([task = std::move(task)]() noexcept { task(); });
}

void ThreadPool::start_threads(int count, const Starter& start) {
  threads_.reserve(static_cast<size_t>(count));
  // The exception is caught here: if it left the constructor, the threads that already
  // run would be joined without having been told to stop, and the join would never end.
  try {
    while (threads() < count) threads_.push_back(start([this] { work(); }));
  } catch (const std::system_error& error) {
    HOLDFAST_CHECK(!threads_.empty(), "no thread can be started: {}", error.what());
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    is_called_ = true;
  }
  task_there_.notify_all();
  threads_.clear();
}

void ThreadPool::enqueue(Task task) {
  queue_.push_back(std::move(task));
  is_called_ = true;
  // Each thread that lingers takes a task before it sleeps.
  if (queue_.size() > lingering_) task_there_.notify_one();
}

void ThreadPool::submit(Task task) {
  MutexLock lock(mutex_);
  HOLDFAST_CHECK(!stopping_, "task for a pool that is being destroyed");
  while (!has_room()) room_there_.wait(mutex_);
  enqueue(std::move(task));
}

void ThreadPool::wait_idle() {
  MutexLock lock(mutex_);
  while (!queue_.empty() || running_ > 0) idle_.wait(mutex_);
}

void ThreadPool::work() {
  mutex_.lock();
  while (true) {
    while (queue_.empty() && !stopping_) task_there_.wait(mutex_);
    if (queue_.empty()) break;
    run_next();
    if (linger_.count() > 0 && queue_.empty() && !stopping_) linger();
  }
  mutex_.unlock();
}

void ThreadPool::run_next() {
  Task task = std::move(queue_.front());
  queue_.pop_front();
  is_called_ = !queue_.empty() || stopping_;
  ++running_;
  room_there_.notify_one();
  mutex_.unlock();
  task();
  // Destroys what the task holds before wait_idle() can return.
  task = nullptr;
  mutex_.lock();
  if (--running_ == 0 && queue_.empty()) idle_.notify_all();
}

void ThreadPool::linger() {
  ++lingering_;
  mutex_.unlock();
  const auto end = std::chrono::steady_clock::now() + linger_;
  while (!is_called_ && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  mutex_.lock();
  --lingering_;
}

}  // namespace holdfast
