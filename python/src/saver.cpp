#include "saver.h"

#include "holdfast/checkpoint/fetch.h"

namespace holdfast::python {

HeldSaver::HeldSaver(const Path& run, SaverOptions options)
    : warnings_(std::make_unique<Warnings>(env())) {
  options.events = warnings_.get();
  options.interrupted = [this] { return interruption_.seen(); };
  const nb::gil_scoped_release unlocked;
  unwrap(fetch_newest(env(), run, tiers_of(options.tiers),
                      {.allow_unreachable_tiers = options.allow_unreachable_tiers,
                       .events = options.events}));
  saver_ = unwrap(Saver::open(env(), run, nullptr, std::move(options)));
}

HeldSaver::~HeldSaver() {
  if (::getpid() != process_) {
    static_cast<void>(saver_.release());  // its threads exist only in the parent
    return;
  }
  const nb::gil_scoped_release unlocked;
  saver_.reset();  // waits for saves; under_way_ keeps their arrays alive
}

void HeldSaver::check_process() const {
  const pid_t here = ::getpid();
  if (here == process_) return;
  throw Raised(invalid(
      "{}: the saver belongs to process {}, and this is its child {}; expected a "
      "call from the process that opened it",
      run().native(), process_, here));
}

HeldHandle HeldSaver::save(SaveRequest request, const std::vector<Array>& arrays,
                           nb::object owners) {
  check_process();
  forget_done();
  const SaveHandle handle = interruption_.watch([&] {
    const nb::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool again = last_.collection != nullptr;
    LocalState state =
        unwrap(make_local_state(pieces_of(arrays), again ? &last_ : nullptr));
    request.state = &state;
    SaveHandle begun = unwrap(saver_->save(request));
    last_ = {.collection = state.collection, .rank = 0, .pieces = {}};
    return begun;
  });
  const HeldHandle held{handle, std::make_shared<nb::object>(std::move(owners))};
  under_way_.push_back(held);
  return held;
}

void HeldSaver::forget_done() {
  const std::deque<HeldHandle> saves = under_way_;
  std::erase_if(under_way_,
                [](const HeldHandle& save) { return save.handle.is_done(); });
  for (const HeldHandle& save : saves) static_cast<void>(save.is_captured());
}

// Waits for the saves first, because Ctrl-C can end that wait.
void HeldSaver::close(std::optional<double> timeout) {
  check_process();
  const Instant deadline = deadline_of(timeout);
  const std::deque<HeldHandle> saves = under_way_;
  for (const HeldHandle& save : saves) {
    const SaveHandle& handle = save.handle;
    std::optional<double> left = timeout;
    if (left.has_value()) left = seconds_until(deadline);
    // The outcome is ignored here: Saver::close() reports failures.
    static_cast<void>(wait_interruptibly(
        left, [&](Instant until) { return handle.durable(until); },
        [&] { return handle.is_done(); }));
  }
  forget_done();
  if (timeout.has_value()) timeout = seconds_until(deadline);
  unwrap(call_interruptibly(timeout, [&](Instant until) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return saver_->close(until);
  }));
}

}  // namespace holdfast::python
