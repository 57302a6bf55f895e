#include "held_job.h"

#include "transport.h"

namespace holdfast::python {

HeldJob::HeldJob(const Path& run, nb::object transport, JobOptions options)
    : transport_(std::move(transport)) {
  Transport* const over =
      transport_.is_none() ? nullptr : &nb::cast<HeldTransport&>(transport_).over();
  options.saver.interrupted = [this] { return interruption_.seen(); };
  const nb::gil_scoped_release unlocked;
  job_ = unwrap(Job::open(env(), run, over, std::move(options)));
}

HeldJob::~HeldJob() {
  if (forks() != forks_) {
    static_cast<void>(job_.release());  // its threads exist only in the parent
    return;
  }
  const nb::gil_scoped_release unlocked;
  job_.reset();
}

void HeldJob::check_process() const {
  if (forks() == forks_) return;
  throw Raised(
      invalid("checkpointer: it belongs to process {}, and this is its child {}; "
              "expected a call from the process that opened it",
              process_, ::getpid()));
}

HeldHandle HeldJob::save(JobState state, nb::object owners) {
  forget_done();
  const SaveHandle handle = interruption_.watch(
      [&] { return call([&](Job& job) { return job.save(std::move(state)); }); });
  return under_way_.emplace_back(
      HeldHandle{handle, std::make_shared<nb::object>(std::move(owners))});
}

void HeldJob::forget_done() {
  // Destroying the arrays' owners may run any Python code, which must not see a
  // half-changed list. This copy keeps them alive until the list is complete again.
  const std::deque<HeldHandle> saves = under_way_;
  std::erase_if(under_way_,
                [](const HeldHandle& save) { return save.handle.is_done(); });
}

Settled HeldJob::settle(const std::vector<std::string>& changed, CudaStream stream,
                        std::optional<double> timeout) {
  check_process();
  return unwrap(call_interruptibly(timeout, [&](Instant until) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    return job_->settle(changed, stream, until);
  }));
}

// Waits in slices, so that Ctrl-C can end the wait. Job::close() with other ranks is
// called only once, because all ranks must call it equally often; there the wait for
// the saves comes first, in slices.
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
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    return alone ? job_->close_alone(until, orderly) : job_->close(until);
  }));
}

}  // namespace holdfast::python
