// How a saver comes to its run.
#include <algorithm>

#include "holdfast/checkpoint/free_memory.h"
#include "holdfast/checkpoint/run_saver_internal.h"

namespace holdfast {
namespace {

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
  const int here =
      HOLDFAST_TRY(ranks_here(env, transport, options.identity, options.agree_within)
                       .within("open"));
  Channel agree(env, transport, kAgreeTag);
  if (!agree.coordinator()) {
    const Message told = HOLDFAST_TRY(agree.hear(0, options.agree_within));
    if (told.error.has_value()) return *told.error;
    Run opened = HOLDFAST_TRY(Run::open(env, run));
    return std::unique_ptr<Saver>(std::make_unique<RunSaver>(
        env, std::move(opened), std::nullopt, transport, std::move(options), here));
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
                                 transport, std::move(options), here));
}

}  // namespace holdfast
