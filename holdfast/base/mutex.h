// A mutex and a condition that Clang's thread safety analysis understands: fields say
// which mutex guards them, functions say which mutex their caller must hold, and a
// wrong access does not compile (with -Wthread-safety).
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define HOLDFAST_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define HOLDFAST_THREAD_ATTRIBUTE(x)
#endif
#define HOLDFAST_GUARDED_BY(mutex) HOLDFAST_THREAD_ATTRIBUTE(guarded_by(mutex))
#define HOLDFAST_REQUIRES(...) \
  HOLDFAST_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))

namespace holdfast {

class HOLDFAST_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() HOLDFAST_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() HOLDFAST_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

class HOLDFAST_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HOLDFAST_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() HOLDFAST_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A wait releases the mutex while it waits, and it may return for no reason: always
// wait in a loop.
class Condition {
 public:
  void wait(Mutex& mutex) HOLDFAST_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // Waits in real time, which a test's Env does not control. It is for the
  // implementation of Env::wait_until, and for callers that look again after a moment
  // in any case.
  void wait_for(Mutex& mutex, std::chrono::nanoseconds at_most)
      HOLDFAST_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_for(lock, at_most);
    lock.release();
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace holdfast
