#include "holdfast/checkpoint/saver.h"

#include <algorithm>
#include <deque>
#include <set>
#include <thread>

#include "holdfast/base/json_text.h"
#include "holdfast/checkpoint/commit.h"
#include "holdfast/checkpoint/events.h"
#include "holdfast/checkpoint/free_memory.h"
#include "holdfast/state/object_json.h"

namespace holdfast {
namespace {

constexpr int kPatience = 3;  // failures in a row that may pass

bool may_pass(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kNoSpace:
    case ErrorCode::kIo:
    case ErrorCode::kTimeout:
    case ErrorCode::kUnavailable: return true;
    default: return false;
  }
}

// What goes into the manifest as it is.
Result<void> check_texts(const SaveRequest& request,
                         const std::map<std::string, std::string>& software) {
  std::vector<std::string_view> texts{request.parallel, request.parent};
  for (const auto& [name, value] : request.metrics) texts.push_back(name);
  for (const auto& [name, version] : software) {
    texts.push_back(name);
    texts.push_back(version);
  }
  for (const std::string_view text : texts) {
    if (!is_utf8(text)) return invalid("step {}: text that is not UTF-8", request.step);
  }
  return {};
}

Result<Bytes> encode_objects(const Object& object, std::string_view what) {
  if (object.none()) return Bytes();
  const std::string json = HOLDFAST_TRY(encode_object(object).within(what));
  return copy_of(bytes_of(json));
}

class RunSaver : public Saver {
 public:
  RunSaver(Env& env, Run run, std::optional<Owner> owner, Transport* transport,
           SaverOptions options)
      : env_(env),
        run_(std::move(run)),
        owner_(std::move(owner)),
        options_(std::move(options)),
        agree_(env, transport, kAgreeTag),
        committer_(run_, owner_.has_value() ? &*owner_ : nullptr, transport, options_),
        mirror_(env, run_.path(),
                owner_.has_value() ? options_.mirrors : std::vector<MirrorTo>(),
                options_.events, options_.background) {
    if (!options_.background) return;
    capturer_ = std::jthread([this] { capture_tasks(); });
    committer_thread_ = std::jthread([this] { commit_tasks(); });
    if (owner_.has_value()) keeper_ = std::jthread([this] { keep_lease(); });
  }

  ~RunSaver() override { static_cast<void>(finish(kNoDeadline)); }

  const Path& run() const override { return run_.path(); }
  Result<SaveHandle> save(const SaveRequest& request) override;
  Result<void> close(Instant deadline) override;

 private:
  using Task = std::shared_ptr<SaveTask>;  // of the two threads, one after the other

  Result<Message> agree(int64_t step);
  Message decide(int64_t step);
  bool make_room() HOLDFAST_REQUIRES(mutex_);
  void supersede_waiting() HOLDFAST_REQUIRES(mutex_);
  std::optional<Error> to_raise() HOLDFAST_REQUIRES(mutex_);

  Task make_task(const SaveRequest& request, const Message& decision);
  Result<void> prepare(SaveTask& task, const SaveRequest& request,
                       const std::string& base);
  Result<ShardPlan> plan_shard(const LocalState& state, const std::string& base);
  std::string choose_base() HOLDFAST_REQUIRES(mutex_);
  void remember(const SaveTask& task, const Durable& durable);
  std::set<std::string> bases_in_use();
  Result<void> plan_for(const LocalState& state);
  int64_t ring_size();
  void make_ring();
  void enqueue(const Task& task);

  void capture_tasks();
  void capture(SaveTask& task);
  void commit_tasks();
  Task next_to_commit();
  void commit(SaveTask& task);
  void leave(SaveTask& task, const Result<Durable>& outcome);
  void note(const SaveTask& task, const Result<Durable>& outcome);
  void keep_lease();
  void renew_lease();

  Result<void> finish(Instant deadline);
  bool wait_idle(Instant deadline);

  double since(Instant start) const {
    return std::chrono::duration<double>(env_.now() - start).count();
  }
  template <typename Event>
  void tell(const Event& event) {
    if (options_.events != nullptr) emit(*options_.events, env_, event);
  }

  Env& env_;
  Run run_;
  std::optional<Owner> owner_;  // rank 0's
  const SaverOptions options_;
  Channel agree_;
  Committer committer_;
  Mirror mirror_;

  // Of the training thread.
  std::shared_ptr<const WritePlan> plan_;
  std::unique_ptr<StagingRing> ring_;
  int64_t ring_for_ = 0;  // bytes of the shard that it was made for
  int64_t serial_ = 0;
  bool closed_ = false;

  Mutex mutex_;
  Condition changed_;
  std::deque<Task> to_capture_ HOLDFAST_GUARDED_BY(mutex_);
  std::deque<Task> to_commit_ HOLDFAST_GUARDED_BY(mutex_);
  int in_flight_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  int unfinished_ HOLDFAST_GUARDED_BY(mutex_) = 0;  // those, and the superseded
  std::optional<Error> failure_ HOLDFAST_GUARDED_BY(mutex_);  // of the last save
  int failures_ HOLDFAST_GUARDED_BY(mutex_) = 0;              // in a row
  // Committed steps that the next save may build upon, oldest first; saves since a full
  // one (rank 0 counts).
  std::deque<std::shared_ptr<const ReusableStep>> reusable_ HOLDFAST_GUARDED_BY(mutex_);
  int since_full_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::string chosen_base_ HOLDFAST_GUARDED_BY(mutex_);  // until its save is a task
  bool links_work_ HOLDFAST_GUARDED_BY(mutex_) = true;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::map<int64_t, Instant> started_ HOLDFAST_GUARDED_BY(mutex_);  // by serial

  std::jthread capturer_;  // last: they use all of the above
  std::jthread committer_thread_;
  std::jthread keeper_;
};

Result<SaveHandle> RunSaver::save(const SaveRequest& request) {
  if (closed_) return invalid("{}: the saver is closed", run_.path().native());
  ++serial_;
  const Message decision = HOLDFAST_TRY(agree(request.step));
  if (decision.error.has_value()) return *decision.error;
  if (decision.kind == "skip") {
    SaveHandle skipped(env_);
    skipped.set_captured();
    skipped.set_done(conflict("step {}: skipped, because {} saves are under way",
                              request.step, options_.in_flight));
    tell(SaveSkipped{.step = request.step});
    return skipped;
  }
  const Task task = make_task(request, decision);
  const SaveHandle handle = task->handle;
  enqueue(task);
  return handle;
}

// Rank 0 decides for all, so that nobody waits for a save that others do not make.
Result<Message> RunSaver::agree(int64_t step) {
  if (!agree_.coordinator()) {
    // Rank 0 may be waiting for room.
    return agree_.hear(serial_, options_.agree_within + options_.write_within);
  }
  const Message decision = decide(step);
  // A rank that cannot be told does not vote, which ends the attempt in its time.
  static_cast<void>(agree_.tell_all(decision, options_.agree_within));
  return decision;
}

Message RunSaver::decide(int64_t step) {
  Message decision{.serial = serial_, .kind = "go", .attempt = env_.random64()};
  MutexLock lock(mutex_);
  if (std::optional<Error> error = to_raise()) {
    decision.error = error->within(fmt::format("before step {}", step));
  } else if (!make_room()) {
    decision.kind = "skip";
  } else {
    decision.text = choose_base();
  }
  return decision;
}

// The step that a save builds upon; empty for a full save. All ranks take the same one,
// so that retention, which rank 0 does, knows what it must spare.
std::string RunSaver::choose_base() {
  chosen_base_.clear();
  if (!options_.incremental || !links_work_ || reusable_.empty()) return "";
  if (++since_full_ >= options_.full_every) since_full_ = 0;
  if (since_full_ != 0) chosen_base_ = reusable_.back()->name();
  return chosen_base_;
}

// What the last saves failed with, once it is time to say so.
std::optional<Error> RunSaver::to_raise() {
  if (!failure_.has_value()) return std::nullopt;
  if (may_pass(*failure_) && failures_ < kPatience) return std::nullopt;
  failures_ = 0;
  return std::exchange(failure_, std::nullopt);
}

bool RunSaver::make_room() {
  if (in_flight_ < options_.in_flight) return true;
  switch (options_.backpressure) {
    case Backpressure::kSkip: return false;
    case Backpressure::kNewest: supersede_waiting(); break;
    case Backpressure::kWait: break;
  }
  while (in_flight_ >= options_.in_flight) changed_.wait(mutex_);
  return true;
}

// Saves that wait to be written make room at once; the committing thread tells the other
// ranks when it comes to them.
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

RunSaver::Task RunSaver::make_task(const SaveRequest& request,
                                   const Message& decision) {
  auto task = std::make_shared<SaveTask>(SaveTask{.serial = serial_,
                                                  .attempt = decision.attempt,
                                                  .step = request.step,
                                                  .base = decision.text,
                                                  .plan = nullptr,
                                                  .shard = {},
                                                  .writer = nullptr,
                                                  .objects = {},
                                                  .rank_objects = {},
                                                  .manifest = {},
                                                  .failed = std::nullopt,
                                                  .handle = SaveHandle(env_),
                                                  .index = std::nullopt});
  if (Result<void> prepared = prepare(*task, request, decision.text); !prepared.ok()) {
    task->failed = std::move(prepared).error();
  }
  return task;
}

Result<void> RunSaver::prepare(SaveTask& task, const SaveRequest& request,
                               const std::string& base) {
  HOLDFAST_CHECK(request.state != nullptr, "a save without a state");
  HOLDFAST_TRY(check_texts(request, options_.software));
  task.objects = HOLDFAST_TRY(encode_objects(request.objects, "objects"));
  task.rank_objects =
      HOLDFAST_TRY(encode_objects(request.rank_objects, "objects of the rank"));
  HOLDFAST_TRY(plan_for(*request.state));
  HOLDFAST_TRY(request.state->check());
  make_ring();
  task.plan = plan_;
  task.shard = HOLDFAST_TRY(plan_shard(*request.state, base));
  task.writer = std::make_unique<ShardWriter>(*ring_, task.shard.shard());
  task.manifest.software = options_.software;
  task.manifest.metrics = request.metrics;
  task.manifest.parallel = request.parallel;
  task.manifest.parent = request.parent;
  return {};
}

Result<ShardPlan> RunSaver::plan_shard(const LocalState& state,
                                       const std::string& base) {
  if (!options_.incremental) return plan_->shard(state);
  std::shared_ptr<const ReusableStep> upon;
  {
    MutexLock lock(mutex_);
    for (const auto& step : reusable_) {
      if (step->name() == base) upon = step;
    }
  }
  return plan_->shard(state, std::move(upon));
}

// Steps that saves in flight build upon.
std::set<std::string> RunSaver::bases_in_use() {
  std::set<std::string> names;
  MutexLock lock(mutex_);
  for (const Task& task : to_commit_) names.insert(task->base);
  names.insert(mirror_.reading());
  if (!chosen_base_.empty()) names.insert(chosen_base_);
  return names;
}

// The two newest: this rank may hear of a commit before or after rank 0 chooses.
void RunSaver::remember(const SaveTask& task, const Durable& durable) {
  if (!options_.incremental || !task.index.has_value()) return;
  auto step =
      std::make_shared<const ReusableStep>(durable.folder, task.attempt, *task.index);
  MutexLock lock(mutex_);
  reusable_.push_back(std::move(step));
  if (reusable_.size() > 2) reusable_.pop_front();
}

Result<void> RunSaver::plan_for(const LocalState& state) {
  if (state.rank != agree_.rank()) {
    return invalid("state of rank {}, want that of rank {}", state.rank, agree_.rank());
  }
  const size_t ranks = state.collection->layout().holders().size();
  if (ranks != static_cast<size_t>(agree_.size())) {
    return invalid("state of {} ranks, want {}", ranks, agree_.size());
  }
  if (plan_ != nullptr && plan_->collection() == state.collection) return {};
  plan_ = std::make_shared<const WritePlan>(HOLDFAST_TRY(
      WritePlan::create(state.collection, state.rank, options_.compress > 0)));
  return {};
}

int64_t RunSaver::ring_size() {
  // On one thread all of a save is captured before any of it is written.
  if (!options_.background) return std::max(ring_for_, options_.ring_bytes);
  if (options_.ring_bytes != 0) return options_.ring_bytes;
  return std::min(ring_for_, free_memory(env_) / 4);
}

// A ring that fits the plan; one that is in use is kept until its saves are done.
void RunSaver::make_ring() {
  const bool fixed = options_.ring_bytes != 0 && options_.background;
  if (ring_ != nullptr && (fixed || ring_for_ >= plan_->shard_bytes())) return;
  wait_idle(kNoDeadline);
  ring_for_ = plan_->shard_bytes();
  const int64_t want = ring_size();
  ring_ = nullptr;
  ring_ =
      std::make_unique<StagingRing>(RingOptions{.bytes = want,
                                                .block = options_.block_bytes,
                                                .touch_ahead = options_.background});
}

void RunSaver::enqueue(const Task& task) {
  {
    MutexLock lock(mutex_);
    started_[task->serial] = env_.now();
    ++in_flight_;
    ++unfinished_;
    chosen_base_.clear();  // the task knows it
    if (options_.background) {
      to_capture_.push_back(task);
      to_commit_.push_back(task);
      changed_.notify_all();
      return;
    }
  }
  capture(*task);
  commit(*task);
}

void RunSaver::capture_tasks() {
  while (true) {
    Task task;
    {
      MutexLock lock(mutex_);
      while (to_capture_.empty() && !stopping_) changed_.wait(mutex_);
      if (to_capture_.empty()) return;
      task = to_capture_.front();
      to_capture_.pop_front();
    }
    capture(*task);
  }
}

void RunSaver::capture(SaveTask& task) {
  const bool staged = task.writer != nullptr && task.writer->stage().ok();
  task.handle.set_captured();
  if (!staged) return;  // the committing half knows why
  Instant start;
  {
    MutexLock lock(mutex_);
    const auto found = started_.find(task.serial);
    if (found == started_.end()) return;  // over already
    start = found->second;
  }
  tell(SaveCaptured{
      .step = task.step, .bytes = task.plan->shard_bytes(), .seconds = since(start)});
}

void RunSaver::commit_tasks() {
  while (const Task task = next_to_commit()) commit(*task);
}

// Null when there is no more.
RunSaver::Task RunSaver::next_to_commit() {
  MutexLock lock(mutex_);
  while (to_commit_.empty() && !stopping_) changed_.wait(mutex_);
  if (to_commit_.empty()) return nullptr;
  const Task task = to_commit_.front();
  to_commit_.pop_front();
  return task;
}

// Others must hear of this owner also while a long write is under way.
void RunSaver::keep_lease() {
  while (true) {
    {
      MutexLock lock(mutex_);
      const Instant renewal = env_.now() + options_.lease / 3;
      while (!stopping_ && env_.now() < renewal) {
        env_.wait_until(changed_, mutex_, renewal);
      }
      if (stopping_) return;
    }
    renew_lease();
  }
}

// A lease that is lost shows at the next commit.
void RunSaver::renew_lease() {
  if (owner_.has_value()) static_cast<void>(owner_->renew());
}

void RunSaver::commit(SaveTask& task) {
  renew_lease();
  const Result<Durable> outcome = committer_.commit(task);
  if (outcome.ok()) remember(task, *outcome);
  if (task.dropped) {
    tell(SaveSkipped{.step = task.step});
  } else {
    note(task, outcome);
  }
  // Of a save that has failed, the other half may still be reading the tensors.
  static_cast<void>(task.handle.captured());
  leave(task, outcome);
  if (outcome.ok()) {
    committer_.retain([this] { return bases_in_use(); });
    mirror_.committed();
  }
  MutexLock lock(mutex_);
  --unfinished_;
  changed_.notify_all();
}

// Says what became of it, and that there is room for another, in one.
void RunSaver::leave(SaveTask& task, const Result<Durable>& outcome) {
  MutexLock lock(mutex_);
  started_.erase(task.serial);
  if (!task.superseded) --in_flight_;
  task.handle.set_done(outcome);
  changed_.notify_all();
}

void RunSaver::note(const SaveTask& task, const Result<Durable>& outcome) {
  Instant start;
  {
    MutexLock lock(mutex_);
    start = started_[task.serial];
    failures_ = outcome.ok() ? 0 : failures_ + 1;
    // What cannot pass stays until it was raised.
    if (!failure_.has_value() || may_pass(*failure_)) {
      failure_ = std::nullopt;
      if (!outcome.ok()) failure_ = outcome.error();
    }
    if (task.unlinked) links_work_ = false;
  }
  if (outcome.ok()) {
    tell(SaveDurable{.step = task.step,
                     .folder = outcome->folder.filename().native(),
                     .seconds = since(start)});
  } else {
    tell(SaveFailed{.step = task.step,
                    .code = std::string(name_of(outcome.error().code())),
                    .reason = outcome.error().message()});
  }
}

bool RunSaver::wait_idle(Instant deadline) {
  MutexLock lock(mutex_);
  while (unfinished_ > 0 && env_.now() < deadline) {
    env_.wait_until(changed_, mutex_, deadline);
  }
  return unfinished_ == 0;
}

Result<void> RunSaver::finish(Instant deadline) {
  if (!wait_idle(deadline) || !mirror_.wait_idle(deadline)) {
    return timed_out("{}: saves are still under way", run_.path().native());
  }
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (capturer_.joinable()) capturer_.join();
  if (committer_thread_.joinable()) committer_thread_.join();
  if (keeper_.joinable()) keeper_.join();
  if (!owner_.has_value()) return {};
  // Others then need not wait for the lease; if it fails, they do.
  static_cast<void>(std::move(*owner_).release());
  owner_.reset();
  return {};
}

Result<void> RunSaver::close(Instant deadline) {
  closed_ = true;
  HOLDFAST_TRY(finish(deadline));
  MutexLock lock(mutex_);
  if (!failure_.has_value()) return {};
  return std::exchange(failure_, std::nullopt)->within("close");
}

// What would hang or abort later.
Result<void> check_options(const SaverOptions& options) {
  constexpr int64_t kMost = int64_t{1} << 50;
  if (options.in_flight < 1) {
    return invalid("in_flight: {}, want 1 or more", options.in_flight);
  }
  if (options.lease <= Duration::zero())
    return invalid("lease: want more than nothing");
  for (const MirrorTo& mirror : options.mirrors) {
    if (mirror.tier == nullptr || mirror.every < 1) {
      return invalid("mirror: every {}, want a tier and 1 or more", mirror.every);
    }
  }
  if (options.compress < 0 || options.compress > 22) {
    return invalid("compress: {}, want 0 to 22", options.compress);
  }
  if (options.ring_bytes < 0 || options.ring_bytes > kMost) {
    return invalid("ring: {} bytes, want 0 to {}", options.ring_bytes, kMost);
  }
  if (options.block_bytes < kDirectAlignment || options.block_bytes > kMost ||
      options.block_bytes % kDirectAlignment != 0) {
    return invalid("block: {} bytes, want a multiple of {}", options.block_bytes,
                   kDirectAlignment);
  }
  return {};
}

// Rank 0's half of open(): the run, owned and swept.
Result<std::pair<Run, Owner>> own_run(Env& env, const Path& path,
                                      const SaverOptions& options) {
  Run run = HOLDFAST_TRY(Run::create_or_open(env, path));
  const Identity self = options.identity.has_value() ? *options.identity
                                                     : HOLDFAST_TRY(this_process(env));
  // Newer than all that mirrors have, else a branch that was given up would win there.
  int64_t above = 0;
  for (const MirrorTo& mirror : options.mirrors) {
    const Result<std::vector<TierStep>> steps = mirror.tier->steps();
    if (!steps.ok() || steps->empty()) continue;  // an event says so at the first copy
    above = std::max(above, steps->front().manifest.epoch);
  }
  Owner owner = HOLDFAST_TRY(run.acquire(
      self, {.lease = options.lease, .above = above, .events = options.events}));
  // What crashes left takes space but harms nothing.
  static_cast<void>(run.sweep(owner, {}));
  return std::pair(std::move(run), std::move(owner));
}

}  // namespace

Result<std::unique_ptr<Saver>> Saver::open(Env& env, const Path& run,
                                           Transport* transport, SaverOptions options) {
  HOLDFAST_TRY(check_options(options));
  Channel agree(env, transport, kAgreeTag);
  if (!agree.coordinator()) {
    const Message told = HOLDFAST_TRY(agree.hear(0, options.agree_within));
    if (told.error.has_value()) return *told.error;
    Run opened = HOLDFAST_TRY(Run::open(env, run));
    return std::unique_ptr<Saver>(std::make_unique<RunSaver>(
        env, std::move(opened), std::nullopt, transport, std::move(options)));
  }
  Result<std::pair<Run, Owner>> owned = own_run(env, run, options);
  Message outcome{.serial = 0, .kind = "open"};
  if (!owned.ok()) outcome.error = owned.error();
  const Result<void> told = agree.tell_all(outcome, options.agree_within);
  if (!owned.ok()) return std::move(owned).error();
  if (!told.ok()) {
    static_cast<void>(std::move(owned->second).release());
    return told.error();
  }
  return std::unique_ptr<Saver>(
      std::make_unique<RunSaver>(env, std::move(owned->first), std::move(owned->second),
                                 transport, std::move(options)));
}

}  // namespace holdfast
