#include "held_job.h"

namespace holdfast::python {

HeldJob::~HeldJob() {
  if (forks() != forks_) {
    static_cast<void>(job_.release());  // its threads are not here to be joined
    return;
  }
  give_up_objects();
  const nb::gil_scoped_release unlocked;
  job_.reset();
}

void HeldJob::check_process() const {
  if (forks() == forks_) return;
  throw Raised(invalid("the checkpointer is of process {}, and this is its child {}",
                       process_, ::getpid()));
}

HeldHandle HeldJob::save(JobState state, nb::object owners) {
  make_room(state.stream);
  objects_ = std::make_shared<FutureObjects>();
  state.objects_later = objects_;
  const SaveHandle handle = call([&](Job& job) { return job.save(std::move(state)); });
  return under_way_.emplace_back(
      HeldHandle{handle, std::make_shared<nb::object>(std::move(owners))});
}

void HeldJob::give_objects(Result<SaveObjects> objects) {
  if (objects_ != nullptr) objects_->keep(std::move(objects));
  objects_ = nullptr;
}

void HeldJob::give_up_objects(std::string_view why) {
  give_objects(unavailable("objects: {}", why));
}

void HeldJob::forget_done() {
  const std::deque<HeldHandle> saves = under_way_;  // let go of, any code may run
  std::erase_if(under_way_,
                [](const HeldHandle& save) { return save.handle.is_done(); });
}

// Before the next save, which would wait and could not be interrupted.
void HeldJob::make_room(CudaStream stream) {
  give_up_objects();
  forget_done();
  if (under_way_.size() < room_) return;
  static_cast<void>(settle({}, stream, std::nullopt));  // else none is done
  wait_room(std::deque<HeldHandle>(under_way_), room_);
}

Settled HeldJob::settle(const std::vector<std::string>& changed, CudaStream stream,
                        std::optional<double> timeout) {
  give_up_objects();
  check_process();
  unwrap(call_interruptibly(timeout, [&](Instant until) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return job_->await_capture(until);
  }));
  return call([&](Job& job) { return Result<Settled>(job.settle(changed, stream)); });
}

// In slices, so that it can be interrupted, where no other rank has to make as many; else
// the saves are waited for first, in slices.
void HeldJob::close(std::optional<double> timeout, bool alone, bool orderly) {
  const Instant deadline = deadline_of(timeout);
  const auto left = [&]() -> std::optional<double> {
    if (!timeout.has_value()) return std::nullopt;
    return seconds_until(deadline);
  };
  static_cast<void>(settle({}, nullptr, left()));
  if (!alone && !transport_.is_none()) {
    for (const HeldHandle& save : std::deque<HeldHandle>(under_way_)) {
      static_cast<void>(wait_interruptibly(
          left(), [&](Instant until) { return save.handle.durable(until); },
          [&] { return save.handle.is_done(); }));
    }
    return call([&](Job& job) { return job.close(deadline); });
  }
  unwrap(call_interruptibly(left(), [&](Instant until) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return alone ? job_->close_alone(until, orderly) : job_->close(until);
  }));
}

}  // namespace holdfast::python
