#include "holdfast/exchange/exchange_progress.h"

#include "holdfast/transport/agreement.h"

namespace holdfast {

void ExchangeProgress::fail(const Error& error) {
  MutexLock lock(mutex_);
  if (!error_.has_value() || weight_of(error) < weight_of(*error_)) error_ = error;
  failed_ = true;
  changed_.notify_all();
}

Result<void> ExchangeProgress::outcome() const {
  MutexLock lock(mutex_);
  return error_.has_value() ? Result<void>(*error_) : Result<void>();
}

Result<void> ExchangeProgress::wait_for_change(std::string_view what) {
  if (error_.has_value()) return *error_;
  if (env_.now() >= deadline_) {
    return timed_out("exchange: the deadline passed while waiting for {}", what);
  }
  env_.wait_until(changed_, mutex_, deadline_);
  return {};
}

void ExchangeProgress::come_up(uint32_t lots) {
  MutexLock lock(mutex_);
  up_ = lots;
  changed_.notify_all();
}

uint32_t ExchangeProgress::up() const {
  MutexLock lock(mutex_);
  return up_;
}

Result<void> ExchangeProgress::wait_until_up(uint32_t lot) {
  MutexLock lock(mutex_);
  while (lot >= up_) HOLDFAST_TRY(wait_for_change("memory for new pieces"));
  return {};
}

void ExchangeProgress::arrive(uint32_t arrival, int64_t bytes) {
  MutexLock lock(mutex_);
  arrived_[arrival] = bytes;
  changed_.notify_all();
}

Result<void> ExchangeProgress::wait_for_arrival(uint32_t arrival, int64_t bytes) {
  MutexLock lock(mutex_);
  while (arrived_[arrival] < bytes) HOLDFAST_TRY(wait_for_change("a box to pass on"));
  return {};
}

void ExchangeProgress::add_work(uint32_t lot, int64_t count) {
  MutexLock lock(mutex_);
  open_[lot].work += count;
}

void ExchangeProgress::finish_work(uint32_t lot, int64_t count) {
  MutexLock lock(mutex_);
  open_[lot].work -= count;
  if (open_[lot].work > 0) return;
  open_bytes_ -= open_[lot].bytes;
  open_[lot].bytes = 0;
  changed_.notify_all();
}

Result<void> ExchangeProgress::open(uint32_t lot, int64_t bytes, int64_t limit) {
  MutexLock lock(mutex_);
  while (open_bytes_ > 0 && open_bytes_ + bytes > limit) {
    HOLDFAST_TRY(wait_for_change("memory that others still read"));
  }
  open_[lot].bytes = bytes;
  open_bytes_ += bytes;
  return {};
}

}  // namespace holdfast
