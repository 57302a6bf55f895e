// What the training thread does to plan and begin a save.
#include "holdfast/checkpoint/saver.h"

#include <algorithm>
#include <new>

#include "holdfast/base/json_text.h"
#include "holdfast/checkpoint/events.h"
#include "holdfast/checkpoint/ring_share.h"
#include "holdfast/checkpoint/run_saver_internal.h"
#include "holdfast/checkpoint/wire_tags.h"

namespace holdfast {
namespace {

// The most bytes of a ring when the tensors are first copied inside their device.
constexpr int64_t kDeviceRing = int64_t{256} << 20;

// Checks the texts that go into the manifest unchanged.
Result<void> check_texts(const SaveRequest& request,
                         const std::map<std::string, std::string>& software) {
  std::vector<std::string_view> texts{request.parallel, request.parent};
  for (const auto& [name, value] : request.metrics) texts.push_back(name);
  for (const auto& [name, version] : software) {
    texts.push_back(name);
    texts.push_back(version);
  }
  for (const std::string_view text : texts) {
    if (!is_utf8(text))
      return invalid(
          "step {}: metrics, software, parallel or parent has text that is not UTF-8",
          request.step);
  }
  return {};
}

// Calls a function that allocates memory in proportion to the state, and returns
// kNoSpace if there is not enough.
Result<void> if_memory_lasts(const auto& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return no_space("save: no memory is left to copy the state into");
  }
}

}  // namespace

bool may_pass(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kNoSpace:
    case ErrorCode::kIo:
    case ErrorCode::kDenied:
    case ErrorCode::kTimeout:
    case ErrorCode::kUnavailable:
    case ErrorCode::kNotFound: return true;
    default: return false;
  }
}

RunSaver::RunSaver(Env& env, Run run, std::optional<Owner> owner, Transport* transport,
                   SaverOptions options, int ranks_here, Strike strike)
    : env_(env),
      transport_(transport),
      run_(std::move(run)),
      owner_(std::move(owner)),
      options_(std::move(options)),
      ranks_here_(ranks_here),
      agree_(env, transport, kAgreeTag),
      close_(env, transport, kCloseTag, true),
      committer_(run_, owner_.has_value() ? &*owner_ : nullptr, transport, options_,
                 std::move(strike)),
      copier_(env, run_.path(),
              owner_.has_value() ? options_.tiers : std::vector<TierCopy>(),
              options_.events, options_.background, options_.tier_duty),
      history_(options_.incremental, options_.full_every) {
  if (!options_.background) return;
  capturer_ = std::jthread([this] { capture_tasks(); });
  committer_thread_ = std::jthread([this] { commit_tasks(); });
  if (owner_.has_value()) keeper_ = std::jthread([this] { keep_lease(); });
}

Result<SaveHandle> RunSaver::save(SaveRequest request) {
  if (closed_) {
    return invalid("{}: the saver is closed; expected the call before close()",
                   run_.path().native());
  }
  // A save that is not settled cannot be committed, so waiting for room could take
  // forever.
  if (!unsettled_.empty()) settle_captured({}, request.stream);
  const Message decision = request.decision != nullptr
                               ? *request.decision
                               : HOLDFAST_TRY(agree(request.step, request.last));
  serial_ = decision.serial;
  if (decision.error.has_value()) return *decision.error;
  if (decision.kind == "skip") {
    SaveHandle skipped(env_);
    skipped.set_captured();
    skipped.set_done(conflict("step {}: skipped, because {} saves are under way",
                              request.step, options_.in_flight));
    tell(SaveSkipped{.step = request.step});
    return skipped;
  }
  const auto make_objects = request.make_objects;
  const Task task = make_task(std::move(request), decision);
  const SaveHandle handle = task->handle;
  const auto objects = task->objects;
  if (make_objects && !options_.background) objects->keep(make_objects());
  enqueue(task);  // from here on the tensors are copied
  if (make_objects && options_.background) objects->keep(make_objects());
  return handle;
}

// Rank 0 decides for all ranks, so that no rank waits for a save that others do not
// make.
Result<Message> RunSaver::agree(int64_t step, bool last) {
  if (!agree_.coordinator()) {
    // Rank 0 may be waiting for room.
    return agree_.hear(++serial_, options_.timeout + options_.write_timeout);
  }
  const Message decision = propose(step, last);
  // A rank that this message does not reach does not vote, and a missing vote ends the
  // attempt at the deadline.
  static_cast<void>(agree_.tell_all(decision, options_.timeout));
  return decision;
}

Message RunSaver::propose(int64_t step, bool last) {
  const Result<bool> room = wait_for_room(last);
  Message decision{.serial = ++serial_, .kind = "go", .attempt = env_.random64()};
  MutexLock lock(mutex_);
  if (std::optional<Error> error = take_failure()) {
    decision.error = error->within(fmt::format("before step {}", step));
  } else if (!room.ok()) {
    decision.error = room.error().within(fmt::format("step {}", step));
  } else if (!*room) {
    decision.kind = "skip";
  } else {
    decision.text = history_.choose();
  }
  return decision;
}

bool RunSaver::has_to_raise() {
  MutexLock lock(mutex_);
  return is_to_raise();
}

bool RunSaver::is_to_raise() const {
  if (!failure_.has_value()) return false;
  if (!may_pass(*failure_)) return true;
  return options_.fail_after.has_value() && failing_since_.has_value() &&
         env_.now() - *failing_since_ >= *options_.fail_after;
}

// Returns the error of the last saves if it is time to raise it, and forgets it, so
// that later saves are tried again.
std::optional<Error> RunSaver::take_failure() {
  if (!is_to_raise()) return std::nullopt;
  failing_since_.reset();
  return std::exchange(failure_, std::nullopt);
}

// Waits until another save may begin. Returns false if the save is to be skipped. Does
// not wait if save() is going to raise an earlier failure.
Result<bool> RunSaver::wait_for_room(bool last) {
  constexpr Duration kSlice = std::chrono::milliseconds(200);
  while (true) {
    {
      MutexLock lock(mutex_);
      if (is_to_raise() || has_room()) return true;
      if (options_.backpressure == Backpressure::kSkip && !last) return false;
      changed_.wait_for(mutex_, kSlice);
    }
    if (options_.interrupted && options_.interrupted()) {
      return unavailable("save: interrupted while waiting for earlier saves");
    }
  }
}

bool RunSaver::has_room() {
  const bool is_full = in_flight_ >= options_.in_flight;
  if (is_full && options_.backpressure == Backpressure::kNewest) supersede_waiting();
  return in_flight_ < options_.in_flight;
}

// Drops the saves that wait to be written, which makes room at once. The committing
// thread tells the other ranks when the turn of these saves comes.
void RunSaver::supersede_waiting() {
  for (const Task& task : to_commit_) {
    if (task->superseded) continue;
    task->superseded = task->dropped = true;
    if (task->writer != nullptr) {
      task->writer->cancel(
          conflict("step {}: a newer save took its place", task->step));
    }
    --in_flight_;
  }
}

RunSaver::Task RunSaver::make_task(SaveRequest&& request, const Message& decision) {
  auto task =
      std::make_shared<SaveTask>(SaveTask{.serial = serial_,
                                          .attempt = decision.attempt,
                                          .step = request.step,
                                          .started = env_.now(),
                                          .why = std::move(request.why),
                                          .base = decision.text,
                                          .plan = nullptr,
                                          .shard = {},
                                          .guard = nullptr,
                                          .writer = nullptr,
                                          .objects = std::make_shared<FutureObjects>(),
                                          .manifest = {},
                                          .failed = std::nullopt,
                                          .copies = {},
                                          .handle = SaveHandle(env_),
                                          .index = std::nullopt});
  if (!request.make_objects) task->objects->keep(std::move(request.objects));
  Result<void> filled = if_memory_lasts(
      [&] { return fill_task(*task, std::move(request), decision.text); });
  if (!filled.ok()) task->failed = std::move(filled).error();
  return task;
}

Result<Manifest> RunSaver::next_manifest() {
  HOLDFAST_TRY(run_.remake_if_gone(*owner_, options_.events));
  HOLDFAST_TRY(owner_->check());
  int64_t under_way = 0;
  {
    MutexLock lock(mutex_);
    under_way = unfinished_;
  }
  Manifest manifest{.run = run_.id(), .epoch = owner_->epoch()};
  // Saves under way are older, also if they are committed only later.
  manifest.sequence = HOLDFAST_TRY(run_.sequence_after(under_way));
  manifest.created = env_.wall_now();
  manifest.software = options_.software;
  return manifest;
}

Result<void> RunSaver::prepare(const LocalState& state) {
  return if_memory_lasts([&] { return plan_state(state, Touch::kAhead); });
}

Result<void> RunSaver::plan_state(const LocalState& state, Touch touch) {
  if (planned_.has_value() && planned_->state == state) return {};
  planned_.reset();
  HOLDFAST_TRY(plan_for(state));
  HOLDFAST_TRY(state.check());
  Planned planned{.state = state, .shard = plan_->shard(state)};
  // Done here rather than in the first save that compares replicas, which would take
  // longer than the others.
  if (agree_.size() > 1 && options_.background) {
    planned.replicas = std::make_shared<const Replicas>(state);
  }
  make_ring(planned.shard.shard().pieces, touch);
  tell_missing_seals(state);
  planned_ = std::move(planned);  // only now, because a planned state must have a ring
  return {};
}

void RunSaver::tell_missing_seals(const LocalState& state) {
  if (options_.seal_at == SealAt::kStaged) return;
  for (const Device* device : devices_of(state.pieces)) {
    const std::optional<Error>& error = device->seal_error();
    if (!error || !told_devices_.insert(device->number()).second) continue;
    tell(DeviceSealsMissing{.device = device->number(), .reason = error->message()});
  }
}

Result<void> RunSaver::fill_task(SaveTask& task, SaveRequest&& request,
                                 const std::string& base) {
  HOLDFAST_CHECK(request.state != nullptr, "a save without a state");
  HOLDFAST_TRY(check_texts(request, options_.software));
  // Only an idle processor prepares the ring's memory, because the copying begins at
  // once and must not be slowed down.
  HOLDFAST_TRY(plan_state(*request.state, Touch::kAheadIdly));
  task.plan = plan_;
  task.shard = HOLDFAST_TRY(plan_shard(*request.state, base, request.stream));
  // Comes before copy_at_once(), which may change the list of pieces. The rooms are
  // fast for a list that they have seen before.
  task.shot = HOLDFAST_TRY(rooms_.take(task.shard.pieces(), request.stream));
  task.copies = task.shard.copy_at_once();
  if (options_.guard != Guard::kOff) {
    task.guard = std::make_unique<CaptureGuard>(
        options_.guard, task.shard.shard().pieces, task.shard.shard().offsets,
        static_cast<uint64_t>(serial_));
    task.guard->probe(rooms_, request.stream);
  }
  if (request.compare && options_.background) {
    HOLDFAST_TRY(compare_replicas(task, request.stream));
  }
  task.host_pieces =
      std::ranges::any_of(task.shard.shard().pieces, [](const LocalPiece& piece) {
        return piece.device == nullptr && !piece.at_once && piece.bytes() > 0;
      });
  task.writer =
      std::make_unique<ShardWriter>(*ring_, task.shard.shard(), options_.seal_at);
  task.manifest.software = options_.software;
  task.manifest.metrics = request.metrics;
  task.manifest.parallel = request.parallel;
  task.manifest.parent = request.parent;
  task.manifest.temporary =
      request.automatic && options_.keep && options_.keep->only_temporary;
  return {};
}

Result<void> RunSaver::compare_replicas(SaveTask& task, CudaStream stream) {
  if (planned_->replicas == nullptr || planned_->replicas->boxes().empty()) return {};
  HOLDFAST_TRY(follow_stream(planned_->replicas->devices(), stream));
  task.replicas = std::make_shared<ReplicaDigests>(planned_->replicas,
                                                   static_cast<uint64_t>(serial_));
  task.replicas->take_at_once();
  comparing_.push_back(task.replicas);
  return {};
}

Result<ShardPlan> RunSaver::plan_shard(const LocalState& state, const std::string& base,
                                       CudaStream stream) {
  if (!options_.incremental) return planned_->shard;
  // The digests are read after the work in the stream. Otherwise an update that has not
  // run yet would be missed, and changed pieces would look unchanged.
  HOLDFAST_TRY(follow_stream(devices_of(state.pieces), stream));
  return plan_->shard(state, history_.find(base));
}

// Returns the names of steps that saves in flight build upon, or that are being copied
// to a tier.
std::set<std::string> RunSaver::bases_in_use() {
  std::set<std::string> names;
  MutexLock lock(mutex_);
  for (const Task& task : to_commit_) names.insert(task->base);
  names.insert(history_.chosen());
  names.insert(copier_.reading());
  return names;
}

Result<void> RunSaver::plan_for(const LocalState& state) {
  if (state.rank != agree_.rank()) {
    return invalid("state: is that of rank {}; expected that of rank {}", state.rank,
                   agree_.rank());
  }
  const size_t ranks = state.collection->layout().holders().size();
  if (ranks != static_cast<size_t>(agree_.size())) {
    return invalid("state: has a layout for {} ranks; expected {}", ranks,
                   agree_.size());
  }
  if (plan_ != nullptr && plan_->collection() == state.collection) return {};
  plan_ = std::make_shared<const WritePlan>(HOLDFAST_TRY(
      WritePlan::create(state.collection, state.rank, options_.compress > 0)));
  return {};
}

int64_t RunSaver::ring_size() {
  // Without background threads a whole save is captured before any of it is written.
  if (!options_.background) return std::max(ring_for_, options_.ring_bytes);
  if (options_.ring_bytes != 0) return options_.ring_bytes;
  return std::min(ring_for_, ring_share(env_, ranks_here_));
}

// Makes a ring that fits the plan. Before it replaces a ring, it waits until the saves
// that use it are over.
void RunSaver::make_ring(std::span<const LocalPiece> pieces, Touch touch) {
  const bool fixed = options_.ring_bytes != 0 && options_.background;
  if (ring_ != nullptr && (fixed || ring_for_ >= plan_->shard_bytes())) return;
  wait_idle(kNoDeadline);
  ring_for_ = plan_->shard_bytes();
  const std::vector<const Device*> devices = devices_of(pieces);
  // A small ring is enough for tensors that are copied inside their device, because
  // training does not wait for the ring. Pinning a large ring takes long.
  const bool probed = options_.guard == Guard::kSample;
  const bool roomy = !devices.empty() && rooms_.prepare(pieces, probed);
  const int64_t want = roomy ? std::min(ring_size(), kDeviceRing) : ring_size();
  ring_ = nullptr;
  ring_ = std::make_unique<StagingRing>(RingOptions{
      .bytes = want,
      .block = options_.block_bytes,
      .touch = options_.background ? touch : Touch::kWhenUsed,
      .pinner = devices.empty() ? nullptr : const_cast<Device*>(devices[0])});
}

void RunSaver::enqueue(const Task& task) {
  {
    MutexLock lock(mutex_);
    ++in_flight_;
    ++unfinished_;
    history_.taken();  // from now on bases_in_use() finds the step in the task
    if (options_.background) {
      if (task->guard != nullptr) unsettled_.push_back(task);
      if (options_.guard == Guard::kOff) unguarded_ = task->handle;
      to_capture_.push_back(task);
      to_commit_.push_back(task);
    }
  }
  // Wakes only the capturing thread, which then wakes the committing one. The lock is
  // released before, because the woken thread would block on it at once.
  if (options_.background) return captures_.notify_one();
  capture(*task);
  // No code ran between save() and the capture, so the tensors cannot have changed.
  if (task->guard != nullptr) task->guard->decide({});
  commit(*task);
}

}  // namespace holdfast
