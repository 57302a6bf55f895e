// Saver::open(): checks the options, opens the run directory and acquires its
// ownership. Saver::rejoin(): the part of survivors in the same conversation.
#include <algorithm>

#include "holdfast/checkpoint/fetch.h"
#include "holdfast/checkpoint/ring_share.h"
#include "holdfast/checkpoint/run_saver_internal.h"
#include "holdfast/checkpoint/wire_tags.h"
#include "holdfast/shard/parity.h"
#include "holdfast/store/events.h"
#include "holdfast/store/location.h"

namespace holdfast {
namespace {

// Refuses options with which a saver would hang or abort later.
Result<void> check_options(const SaverOptions& options) {
  constexpr int64_t kMost = int64_t{1} << 50;
  if (options.in_flight < 1) {
    return invalid("in_flight: {}; expected 1 or more", options.in_flight);
  }
  if (options.lease <= Duration::zero())
    return invalid("lease: is not positive; expected more than 0 seconds");
  for (const TierCopy& copy : options.tiers) {
    if (copy.tier == nullptr || copy.every < 1) {
      return invalid(
          "tiers: a tier is null or its every is {}; expected a tier and 1 or more",
          copy.every);
    }
  }
  if (options.full_every < 1) {
    return invalid("full_every: {}; expected 1 or more", options.full_every);
  }
  if (options.compress < 0 || options.compress > 22) {
    return invalid("compress: {}; expected 0 to 22", options.compress);
  }
  if (options.parity != 0) HOLDFAST_TRY(parity_shape(options.parity, 0));
  if (options.ring_bytes < 0 || options.ring_bytes > kMost) {
    return invalid("ring: {} bytes; expected 0 to {}", options.ring_bytes, kMost);
  }
  if (options.block_bytes < kDirectAlignment || options.block_bytes > kMost ||
      options.block_bytes % kDirectAlignment != 0) {
    return invalid("block: {} bytes; expected a multiple of {}", options.block_bytes,
                   kDirectAlignment);
  }
  return {};
}

struct Opened {
  Run run;
  std::optional<Owner> owner{};  // set on rank 0 only
};

// Refuses to begin a new run if the tiers hold steps, because the new steps would mix
// there with those of another run, or with older ones of this run.
Result<void> check_no_run(const Path& path, const SaverOptions& options,
                          const Offers& offers) {
  const auto why = why_not_anew(path, offers, options.allow_unreachable_tiers);
  if (why.has_value()) return *why;
  if (offers.steps.empty()) return {};
  const Offer& newest = offers.steps.front();
  return conflict(
      "{}: has no step, and {} has step {} of the run {}; expected that "
      "step to be fetched first, or another tier",
      path.native(), newest.tier->name(), newest.step.manifest.step,
      newest.step.manifest.run);
}

Result<Offers> ask_tiers_of(Env& env, const Path& path, const SaverOptions& options) {
  const Result<Run> run = Run::open(env, path);
  return ask_tiers(tiers_of(options.tiers), run.ok() ? run->id() : "");
}

// Returns an epoch at least as great as all that tiers may hold. With a smaller one,
// steps of an abandoned branch in a tier would count as newer than the steps that are
// saved from now on. If a tier cannot be read, the epoch is the number of seconds since
// 1970. It is greater than any epoch that counts owners, and greater than one made in
// the same way during an earlier outage.
int64_t greatest_epoch(Env& env, const Offers& offers) {
  if (offers.knows_epochs) return offers.epoch;
  const auto now = std::chrono::floor<std::chrono::seconds>(env.wall_now());
  return std::max<int64_t>(offers.epoch, now.time_since_epoch().count());
}

// Rank 0's part of open(): makes or opens the run, becomes its owner, and removes what
// crashes left.
Result<Opened> own_run(Env& env, const Path& path, const SaverOptions& options) {
  HOLDFAST_TRY(check_place(path));
  const Offers offers = HOLDFAST_TRY(ask_tiers_of(env, path, options));
  if (!greatest_step(env, path).has_value())
    HOLDFAST_TRY(check_no_run(path, options, offers));
  Run run = HOLDFAST_TRY(Run::create_or_open(env, path));
  if (run.damage() && options.events != nullptr) {
    emit(*options.events, env,
         RunFileDamaged{
             .reason = run.damage()->message(),
             .remedy = "it was written anew with the id that its steps name"});
  }
  const Identity self =
      options.identity.has_value()
          ? *options.identity
          : HOLDFAST_TRY(this_process(env, options.job.name, options.job.restart));
  const int64_t above = std::max(greatest_epoch(env, offers), options.known_epoch);
  Owner owner = HOLDFAST_TRY(run.acquire(
      self, {.lease = options.lease, .above = above, .events = options.events}));
  // A failed sweep is ignored: what crashes left takes space but does no harm.
  static_cast<void>(run.sweep(owner, {}));
  return Opened{.run = std::move(run), .owner = std::move(owner)};
}

// The other ranks wait until rank 0 has made the directory.
Result<void> hear_opened(Channel& channel, const SaverOptions& options) {
  // Rank 0 may ask a tier that does not answer for longer than ranks wait for a
  // decision.
  const Duration within =
      options.tiers.empty() ? options.timeout : options.write_timeout;
  const Message told = HOLDFAST_TRY(channel.hear(0, within));
  if (told.error.has_value()) return *told.error;
  return {};
}

// A rank that this message does not reach does not answer in agree(), so that all ranks
// fail to open the run.
void tell_opened(Channel& channel, const std::optional<Error>& error,
                 const SaverOptions& options) {
  static_cast<void>(
      channel.tell_all({.serial = 0, .kind = "open", .error = error}, options.timeout));
}

// Opens the run.
Result<Opened> open_run(Env& env, const Path& path, Channel& channel,
                        const SaverOptions& options) {
  if (!channel.coordinator()) {
    HOLDFAST_TRY(hear_opened(channel, options));
    return Opened{.run = HOLDFAST_TRY(Run::open(env, path).within(
                      fmt::format("rank {}", channel.rank())))};
  }
  Result<Opened> owned = own_run(env, path, options);
  tell_opened(channel, owned.ok() ? std::nullopt : std::optional(owned.error()),
              options);
  return owned;
}

}  // namespace

Result<std::unique_ptr<Saver>> Saver::open(Env& env, const Path& run,
                                           Transport* transport, SaverOptions options) {
  return RunSaver::open(env, run, transport, std::move(options), {});
}

Result<std::unique_ptr<Saver>> RunSaver::open(Env& env, const Path& run,
                                              Transport* transport,
                                              SaverOptions options, Strike strike) {
  HOLDFAST_TRY(check_options(options));
  const int here = HOLDFAST_TRY(
      ranks_here(env, transport, options.identity, options.timeout).within("open"));
  Channel channel(env, transport, kOpenTag);
  Result<Opened> opened = open_run(env, run, channel, options);
  const Result<void> own = opened.ok() ? Result<void>() : opened.error();
  const Result<void> agreed = channel.agree(own, options.timeout);
  if (agreed.ok()) {
    return std::unique_ptr<Saver>(std::make_unique<RunSaver>(
        env, std::move(opened->run), std::move(opened->owner), transport,
        std::move(options), here, std::move(strike)));
  }
  if (opened.ok() && opened->owner.has_value()) {
    static_cast<void>(std::move(*opened->owner).release());
  }
  return agreed.error();
}

Result<void> RunSaver::rejoin() {
  if (transport_ == nullptr) return {};
  if (closed_) {
    return invalid("{}: the saver is closed; expected the call before close()",
                   run_.path().native());
  }
  static_cast<void>(HOLDFAST_TRY(
      holdfast::ranks_here(env_, transport_, options_.identity, options_.timeout)
          .within("rejoin")));
  Channel channel(env_, transport_, kOpenTag);
  Result<void> own;
  if (channel.coordinator()) {
    own = run_.remake_if_gone(*owner_, options_.events);
    if (own.ok()) own = owner_->check();
    tell_opened(channel, own.ok() ? std::nullopt : std::optional(own.error()),
                options_);
  } else {
    own = hear_opened(channel, options_);
  }
  HOLDFAST_TRY(channel.agree(own, options_.timeout).within("rejoin"));
  serial_ = 0;
  agree_.reset();
  close_.reset();
  committer_.rejoin();
  return {};
}

}  // namespace holdfast
