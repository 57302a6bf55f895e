#include "holdfast/store/owner.h"

#include <fmt/chrono.h>

#include <algorithm>

#include "holdfast/shard/step_name.h"
#include "holdfast/store/claim_internal.h"
#include "holdfast/store/events.h"

namespace holdfast {
namespace {

std::string format_time(WallTime time) {
  const auto seconds =
      std::chrono::floor<std::chrono::seconds>(time.time_since_epoch());
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC",
                     fmt::gmtime(static_cast<std::time_t>(seconds.count())));
}

std::string name_of(const Identity& who) {
  // unreadable_owner() makes a record without a host.
  if (who.host.empty()) return "an unknown process";
  return who.job.empty()
             ? fmt::format("process {} on {}", who.pid, who.host)
             : fmt::format("process {} on {} (job {})", who.pid, who.host, who.job);
}

bool same_machine(const Identity& a, const Identity& b) {
  return a.host == b.host && a.boot == b.boot && a.pid_space == b.pid_space;
}

Error in_use(const Path& run, const OwnerRecord& owner, const Identity& self) {
  if (same_machine(owner.who, self) && owner.who.pid == self.pid) {
    return conflict(
        "{}: in use by this very process ({}) since {}; expected ck.close() of the "
        "Checkpointer or Saver that has it, as before a cell of a notebook is run again, "
        "or another folder",
        run.native(), self.pid, format_time(owner.since));
  }
  const std::string advice =
      same_machine(owner.who, self)
          ? "stop it first, or choose another folder"
          : fmt::format(
                "stop it first, or wait until its lease ends at {}, or choose "
                "another folder",
                format_time(owner.lease_until));
  return conflict("{}: in use by {} since {}; {}", run.native(), name_of(owner.who),
                  format_time(owner.since), advice);
}

// The error for a run whose owner files are damaged and were written less than a lease
// ago.
Error may_be_in_use(const Path& run, const OwnerRecord& owner, const Error& damage) {
  return conflict(
      "{}: cannot tell whether another job writes there: {}; try again after {}, when "
      "a "
      "live job would have written the file anew, or remove {} and owner-*.json if you "
      "know that no job writes there",
      run.native(), damage.message(), format_time(owner.lease_until), kOwnerFile);
}

// Reads owner.json, the copy of the greatest claim. Returns nullopt if there is none.
Result<std::optional<OwnerRecord>> read_copy(Env& env, const Path& run) {
  const Path path = run / kOwnerFile;
  const Result<Bytes> bytes = env.read_file(path, kOwnerLimit);
  if (bytes.ok()) {
    return std::optional(HOLDFAST_TRY(decode_owner(*bytes, path.native())));
  }
  if (bytes.error().code() == ErrorCode::kNotFound) return std::optional<OwnerRecord>();
  return bytes.error();
}

Result<OwnerRecord> read_claim(Env& env, const Path& run, int64_t epoch) {
  const Path path = run / claim_name(epoch);
  const Bytes bytes = HOLDFAST_TRY(env.read_file(path, kOwnerLimit));
  OwnerRecord record = HOLDFAST_TRY(decode_owner(bytes, path.native()));
  if (record.epoch == epoch) return record;
  return corrupt("{}: is for epoch {}; expected {}", path.native(), record.epoch,
                 epoch);
}

// Repeats when a claim vanishes while it is read. This ends, because a claim is removed
// only after a greater one was written.
Result<std::optional<OwnerRecord>> read_greatest_claim(Env& env, const Path& run) {
  while (true) {
    const std::vector<int64_t> epochs = HOLDFAST_TRY(list_claims(env, run));
    if (epochs.empty()) return std::optional<OwnerRecord>();
    Result<OwnerRecord> claim = read_claim(env, run, epochs.back());
    if (claim.ok()) return std::optional(*std::move(claim));
    if (claim.error().code() != ErrorCode::kNotFound) return claim.error();
    if (HOLDFAST_TRY(list_claims(env, run)) == epochs) return claim.error();
  }
}

// Makes a record for an owner whose claim and copy are both damaged. That owner counts
// as alive until a lease has passed since one of the two files was last written.
Result<OwnerRecord> unreadable_owner(Env& env, const Path& run, Duration lease) {
  const std::vector<int64_t> epochs = HOLDFAST_TRY(list_claims(env, run));
  OwnerRecord owner{.epoch = epochs.empty() ? 0 : epochs.back(), .fence = {}};
  for (const std::string& name : {claim_name(owner.epoch), std::string(kOwnerFile)}) {
    const Result<FileInfo> file = env.info(run / name);
    if (file.ok()) owner.since = std::max(owner.since, file->modified);
  }
  owner.renewed = owner.since;
  owner.lease_until = owner.since + lease;
  return owner;
}

// The owner before this process. `damage` is set if its files could not be read; then
// `owner` is a stand-in made by unreadable_owner().
struct PreviousOwner {
  std::optional<OwnerRecord> owner{};
  std::optional<Error> damage{};
};

Result<PreviousOwner> read_previous_owner(Env& env, const Path& run, Duration lease) {
  Result<std::optional<OwnerRecord>> owner = read_owner(env, run);
  if (owner.ok()) return PreviousOwner{.owner = *std::move(owner)};
  if (owner.error().code() != ErrorCode::kCorrupt) return owner.error();
  return PreviousOwner{.owner = HOLDFAST_TRY(unreadable_owner(env, run, lease)),
                       .damage = owner.error()};
}

void tell_taken_over(Env& env, EventSink& events, const PreviousOwner& before,
                     const std::string& why, int64_t epoch) {
  if (before.damage) {
    emit(events, env,
         RunFileDamaged{.reason = before.damage->message(),
                        .remedy = "the owner of this file counts as dead, because the "
                                  "file has not been written anew for a lease"});
  }
  emit(events, env,
       RunTakenOver{.epoch = epoch,
                    .from = name_of(before.owner->who),
                    .reason = why,
                    .last_seen_ns = before.owner->renewed.time_since_epoch().count()});
}

// The fence that a new claim starts with, until its owner has listed the steps of the
// run: the fence of the previous owner, without any limit for the previous owner's own
// epoch.
std::optional<Fence> inherit_fence(const std::optional<OwnerRecord>& before) {
  if (!before || !before->fence) return std::nullopt;
  Fence fence = *before->fence;
  fence[before->epoch] = INT64_MAX;
  return fence;
}

// Writes the claim under its final name. Replaces nothing: fails with kConflict if
// another process has made a claim on the same epoch.
Result<void> put_claim(Env& env, const Path& run, const OwnerRecord& record) {
  const Path claim = run / claim_name(record.epoch);
  Path beside = claim;
  beside += fmt::format(".{}.tmp", hex64(env.random64()));
  const Bytes bytes = encode_owner(record);
  Result<void> put = env.write_file(beside, bytes);
  if (!put.ok() && put.error().code() == ErrorCode::kNoSpace) {
    // The disk is full, and `gc`, which would make room, needs a claim: it takes the
    // place of the copy of the last one, which is written anew when there is room.
    (void)env.remove_file(beside);
    put = env.rename(run / kOwnerFile, beside);
    if (put.ok()) put = RunNames(env, run).overwrite(beside.filename().native(), bytes);
  }
  if (put.ok()) put = env.rename_new(beside, claim);
  if (put.ok()) return {};
  (void)env.remove_file(beside);
  // The rename may have happened although it reported a failure.
  const Result<OwnerRecord> there = read_claim(env, run, record.epoch);
  if (there.ok() && there->token == record.token) return {};
  if (put.error().code() != ErrorCode::kConflict) return put;
  return conflict(
      "{}: another process took the run at the same moment; try again to see which",
      run.native());
}

}  // namespace

std::string claim_name(int64_t epoch) { return fmt::format("owner-{:08}.json", epoch); }

std::optional<int64_t> parse_claim_name(std::string_view name) {
  constexpr std::string_view kStart = "owner-", kEnd = ".json";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd)) return std::nullopt;
  int64_t epoch = 0;
  for (const char c :
       name.substr(kStart.size(), name.size() - kStart.size() - kEnd.size())) {
    if (c < '0' || c > '9' || epoch > kMostCommits) return std::nullopt;
    epoch = epoch * 10 + (c - '0');
  }
  if (epoch > kMostCommits || claim_name(epoch) != name) return std::nullopt;
  return epoch;
}

Result<std::vector<int64_t>> list_claims(Env& env, const Path& run) {
  std::vector<int64_t> epochs;
  const std::vector<std::string> names = HOLDFAST_TRY(env.list(run));
  for (const std::string& name : names) {
    if (const auto epoch = parse_claim_name(name)) epochs.push_back(*epoch);
  }
  std::sort(epochs.begin(), epochs.end());
  return epochs;
}

Result<std::optional<OwnerRecord>> read_owner(Env& env, const Path& run) {
  Result<std::optional<OwnerRecord>> claim = read_greatest_claim(env, run);
  const Result<std::optional<OwnerRecord>> copy = read_copy(env, run);
  const bool copied = copy.ok() && copy->has_value();
  if (claim.ok()) {
    const bool copy_is_newer =
        copied && (!claim->has_value() || (*claim)->epoch < (*copy)->epoch);
    if (!claim->has_value() && !copy.ok()) return copy;
    return copy_is_newer ? copy : claim;
  }
  if (claim.error().code() != ErrorCode::kCorrupt || !copied) return claim;
  const std::vector<int64_t> epochs = HOLDFAST_TRY(list_claims(env, run));
  return !epochs.empty() && epochs.back() > (*copy)->epoch ? claim : copy;
}

std::optional<std::string> why_dead(const OwnerRecord& owner, const Identity& self,
                                    WallTime now, const Liveness& alive) {
  const Identity& who = owner.who;
  // Event logs keep these words, and learn.cpp looks for them.
  if (owner.released) return "it let go";
  if (who.host == self.host && who.boot != self.boot) {
    return "its machine was started anew";
  }
  if (same_machine(who, self)) {
    const Result<std::optional<int64_t>> started = alive(who.pid);
    if (started.ok() && !started->has_value()) return "its process is gone";
    if (started.ok() && **started != who.started) {
      return "its process number belongs to another";
    }
    if (started.ok()) return std::nullopt;
  }
  if (!who.job.empty() && who.job == self.job && who.restart < self.restart) {
    return "it was an earlier start of the same job";
  }
  if (owner.lease_until < now) return "its lease ran out";
  return std::nullopt;
}

struct Owner::State {
  Env& env;
  const Path run;
  const Duration lease;
  const std::shared_ptr<RunNames> names;
  mutable Mutex mutex{};
  OwnerRecord record HOLDFAST_GUARDED_BY(mutex);

  State(Env& e, Path folder, const OwnerOptions& options, OwnerRecord first)
      : env(e),
        run(std::move(folder)),
        lease(options.lease),
        names(options.names ? options.names : std::make_shared<RunNames>(env, run)),
        record(std::move(first)) {}

  Result<void> check() const HOLDFAST_REQUIRES(mutex);
  Result<void> complete_claim(const OwnerOptions& options) HOLDFAST_REQUIRES(mutex);
  // Carries out steps 3 and 4 of the protocol in the header. On failure removes the
  // claim of this process again.
  Result<void> complete_or_remove_claim(const OwnerOptions& options);
  Result<void> write() HOLDFAST_REQUIRES(mutex);
  Result<void> release();
  void remove_older() HOLDFAST_REQUIRES(mutex);
};

Result<void> Owner::State::check() const {
  if (record.released)
    return conflict("{}: this process has released the run", run.native());
  const std::vector<int64_t> epochs = HOLDFAST_TRY(list_claims(env, run));
  if (!epochs.empty() && epochs.back() > record.epoch) {
    const Result<OwnerRecord> other = read_claim(env, run, epochs.back());
    return conflict("{}: taken over by {} in epoch {}", run.native(),
                    other.ok() ? name_of(other->who) : "another process",
                    epochs.back());
  }
  const Result<OwnerRecord> own = read_claim(env, run, record.epoch);
  if (own.ok() && own->token == record.token) return {};
  if (!own.ok() && is_missing(own.error())) {
    return not_found("{}: {} is gone; expected the claim of this process", run.native(),
                     claim_name(record.epoch));
  }
  if (!own.ok()) {
    // A damaged claim on this epoch still belongs to this process, because nobody else
    // makes a claim on this epoch. The next renewal writes the file anew.
    const bool damaged = own.error().code() == ErrorCode::kCorrupt;
    return damaged ? Result<void>() : own.error();
  }
  return conflict("{}: {} is no longer the claim of this process", run.native(),
                  claim_name(record.epoch));
}

Result<void> Owner::State::write() {
  const Bytes bytes = encode_owner(record);
  const std::string claim = claim_name(record.epoch);
  const Result<void> replaced = names->replace(claim, bytes);
  if (!replaced.ok() && replaced.error().code() == ErrorCode::kNoSpace) {
    // A job whose disk is full must not lose the run: it goes on, and others would take
    // it for dead. If the claim is torn, its copy counts, which is written first.
    (void)names->overwrite(kOwnerFile, bytes);
    return names->overwrite(claim, bytes);
  }
  if (!replaced.ok()) return replaced;
  // A failure is ignored: owner.json is a copy for people, and only the claim counts.
  (void)names->replace(kOwnerFile, bytes);
  return {};
}

void Owner::State::remove_older() {
  const Result<std::vector<int64_t>> epochs = list_claims(env, run);
  if (!epochs.ok()) return;
  for (const int64_t epoch : *epochs) {
    if (epoch < record.epoch) (void)env.remove_file(run / claim_name(epoch));
  }
}

Result<void> Owner::State::complete_claim(const OwnerOptions& options) {
  HOLDFAST_TRY(names->sync());
  HOLDFAST_TRY(check());
  if (options.fence) {
    std::optional<Fence> fence = HOLDFAST_TRY(options.fence());
    if (fence) record.fence = std::move(fence);
  }
  HOLDFAST_TRY(write());
  remove_older();
  return {};
}

Result<void> Owner::State::complete_or_remove_claim(const OwnerOptions& options) {
  MutexLock lock(mutex);
  Result<void> completed = complete_claim(options);
  if (!completed.ok()) (void)env.remove_file(run / claim_name(record.epoch));
  return completed;
}

Result<Owner> Owner::acquire(Env& env, const Path& run, const Identity& self,
                             const OwnerOptions& options) {
  const Liveness alive = options.alive ? options.alive : [&env](int64_t pid) {
    return start_of_process(env, pid);
  };
  const WallTime now = env.wall_now();
  const PreviousOwner found =
      HOLDFAST_TRY(read_previous_owner(env, run, options.lease));
  const std::optional<OwnerRecord>& before = found.owner;
  const auto dead = before ? why_dead(*before, self, now, alive) : std::nullopt;
  if (before && !dead) {
    return found.damage ? may_be_in_use(run, *before, *found.damage)
                        : in_use(run, *before, self);
  }
  const int64_t last = std::max(before ? before->epoch : 0, options.above);
  if (last >= kMostCommits) {
    return corrupt("{}: epoch {}; expected less than {}", run.native(), last,
                   kMostCommits);
  }
  const OwnerRecord record{
      .who = self,
      .epoch = last + 1,
      .token = env.random64(),
      .since = now,
      .renewed = now,
      .lease_until = now + options.lease,
      .fence = inherit_fence(before)};
  HOLDFAST_TRY(put_claim(env, run, record));
  auto state = std::make_shared<State>(env, run, options, record);
  HOLDFAST_TRY(state->complete_or_remove_claim(options));
  if (dead && options.events != nullptr) {
    tell_taken_over(env, *options.events, found, *dead, record.epoch);
  }
  return Owner(std::move(state));
}

int64_t Owner::epoch() const { return record().epoch; }

OwnerRecord Owner::record() const {
  MutexLock lock(state_->mutex);
  return state_->record;
}

Result<void> Owner::check() const {
  MutexLock lock(state_->mutex);
  return state_->check();
}

Result<void> Owner::renew() {
  MutexLock lock(state_->mutex);
  HOLDFAST_TRY(state_->check());
  state_->record.renewed = state_->env.wall_now();
  state_->record.lease_until = state_->record.renewed + state_->lease;
  return state_->write();
}

Result<void> Owner::claim_again() {
  MutexLock lock(state_->mutex);
  HOLDFAST_TRY(put_claim(state_->env, state_->run, state_->record));
  HOLDFAST_TRY(state_->check());
  return state_->write();
}

Result<void> Owner::State::release() {
  MutexLock lock(mutex);
  HOLDFAST_TRY(check());
  record.released = true;
  return write();
}

Result<void> Owner::release() && { return state_->release(); }

Result<void> Owner::release_at(const Path& run) && {
  State moved(state_->env, run, {.lease = state_->lease}, record());
  return moved.release();
}

}  // namespace holdfast
