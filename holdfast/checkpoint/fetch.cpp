#include "holdfast/checkpoint/fetch.h"

#include <algorithm>

#include "holdfast/checkpoint/events.h"
#include "holdfast/store/location.h"

namespace holdfast {
namespace {

using Age = std::pair<int64_t, int64_t>;

// How often a copy is tried. An object store also repeats its own requests.
constexpr int kTries = 3;

// What the run directory has.
struct Own {
  std::string id{};  // empty if there is no run yet
  // The age of the newest step that a fast check finds whole.
  std::optional<Age> newest{};
};

Result<Own> summarize_path(Env& env, const Path& path) {
  const Result<Run> run = Run::open(env, path);
  if (!run.ok() && run.error().code() == ErrorCode::kNotFound) return Own();
  if (!run.ok()) return run.error();
  Own own{.id = run->id()};
  const Result<NewestWhole> newest = run->newest_whole(Depth::kFast);
  if (newest.ok()) {
    own.newest = age_of(newest->step.manifest);
  } else if (!is_damage(newest.error())) {
    return newest.error();
  }
  return own;
}

bool is_same_folder(Env& env, const Path& a, const Path& b) {
  if (is_object_path(a)) return false;
  if ((a / "").lexically_normal() == (b / "").lexically_normal()) return true;
  const Result<FileInfo> first = env.info(a), second = env.info(b);
  return first.ok() && second.ok() && first->inode != 0 &&
         std::pair(first->device, first->inode) ==
             std::pair(second->device, second->inode);
}

// True for errors that may be gone a second later. A full disk is not one of them.
bool may_pass_soon(const Error& error) {
  return error.code() == ErrorCode::kUnavailable ||
         error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kIo;
}

Result<void> copy_with_patience(Env& env, StorageTier& from, const TierStep& step,
                                StorageTier& to) {
  for (int tries = 1;; ++tries) {
    Result<void> copied = copy_step(from, step, to);
    if (copied.ok() || !may_pass_soon(copied.error()) || tries == kTries) return copied;
    env.sleep_for(std::chrono::seconds(tries));
  }
}

void add_unusable(const StorageTier& tier, UnusableStep& step, Offers& offers) {
  offers.epoch = std::max(offers.epoch, step.epoch.value_or(0));
  offers.knows_epochs = offers.knows_epochs && step.epoch.has_value();
  auto& list = is_damage(step.error) ? offers.damaged : offers.unreachable;
  list.push_back({tier.name() + "/" + step.id, std::move(step.error)});
}

void add_steps(StorageTier& tier, std::vector<TierStep> steps,
               const std::string& run_id, Offers& offers) {
  const size_t before = offers.foreign.size();
  for (TierStep& step : steps) {
    if (run_id.empty() || step.manifest.run == run_id) {
      offers.epoch = std::max(offers.epoch, step.manifest.epoch);
      offers.steps.push_back({std::move(step), &tier});
    } else if (offers.foreign.size() == before) {
      offers.foreign.push_back(
          {tier.name(),
           conflict("{}: holds the run {}; expected the run {}, or another place for "
                    "one of them",
                    tier.name(), step.manifest.run, run_id)});
    }
  }
}

Result<void> check_one_run(const std::vector<Offer>& offers) {
  for (const Offer& offer : offers) {
    const Offer& first = offers.front();
    if (offer.step.manifest.run == first.step.manifest.run) continue;
    return conflict("{} holds the run {}, and {} the run {}; expected tiers of one run",
                    first.tier->name(), first.step.manifest.run, offer.tier->name(),
                    offer.step.manifest.run);
  }
  return {};
}

void tell_skipped(Env& env, const std::vector<SkippedStep>& skipped,
                  EventSink* events) {
  if (events == nullptr) return;
  for (const auto& [tier, error] : skipped) {
    emit(*events, env,
         TierCopyFailed{.step = -1, .tier = tier, .reason = error.message()});
  }
}

}  // namespace

std::vector<SkippedStep> Offers::skipped() const {
  std::vector<SkippedStep> all = damaged;
  all.insert(all.end(), foreign.begin(), foreign.end());
  all.insert(all.end(), unreachable.begin(), unreachable.end());
  return all;
}

Result<Offers> ask_tiers(Tiers tiers, const std::string& run_id) {
  Offers offers;
  for (const std::shared_ptr<StorageTier>& tier : tiers) {
    Result<TierSteps> held = tier->list();
    if (!held.ok()) {
      offers.unreachable.push_back({tier->name(), held.error()});
      offers.knows_epochs = false;
      continue;
    }
    for (UnusableStep& step : held->unusable) add_unusable(*tier, step, offers);
    add_steps(*tier, std::move(held->steps), run_id, offers);
  }
  if (run_id.empty()) HOLDFAST_TRY(check_one_run(offers.steps));
  std::ranges::stable_sort(offers.steps, std::greater(), [](const Offer& offer) {
    return age_of(offer.step.manifest);
  });
  return offers;
}

std::optional<Error> why_not_anew(const Path& run, const Offers& offers,
                                  bool allow_unreachable_tiers) {
  if (!offers.foreign.empty()) return offers.foreign.front().error;
  if (!offers.unreachable.empty() && !allow_unreachable_tiers) {
    const auto& [tier, error] = offers.unreachable.front();
    return Error(
        error.code(),
        fmt::format("{}: has no whole step, and the tier {}, which may have the "
                    "run, cannot be read: {}; expected its answer, or "
                    "allow_unreachable_tiers to start without it",
                    run.native(), tier, error.message()));
  }
  if (offers.damaged.empty()) return std::nullopt;
  const auto& [step, error] = offers.damaged.front();
  return corrupt(
      "{}: has no whole step, and what its tiers have is damaged: {}: {}; "
      "expected a whole step, or another run directory and other tiers for "
      "a new run",
      run.native(), step, error.message());
}

void FetchTrouble::note(const Path& run, const Offer& offer, const Error& error,
                        std::vector<SkippedStep>& damaged) {
  const int64_t step = offer.step.manifest.step;
  if (is_damage(error)) {
    damaged.push_back({fmt::format("{}: step {}", offer.tier->name(), step), error});
    return;
  }
  if (error_.has_value()) return;
  age_ = age_of(offer.step.manifest);
  error_ = Error(error.code(),
                 fmt::format("{}: step {} is on {} and could not be copied here, which "
                             "is no damage, so no older step is taken: {}",
                             run.native(), step, offer.tier->name(), error.message()));
}

bool FetchTrouble::forbids(const Offer& offer) const {
  return error_.has_value() && age_of(offer.step.manifest) < age_;
}

Result<Path> fetch_step(Env& env, const Path& path, StorageTier& tier,
                        const TierStep& step, EventSink* events) {
  const Instant start = env.now();
  const auto here = make_folder_tier(env, path);
  HOLDFAST_TRY(copy_with_patience(env, tier, step, *here));
  // Looks for the copy by its attempt and ignores the fence (run.h), because the caller
  // asked for this very step.
  const Run run = HOLDFAST_TRY(Run::open(env, path));
  // The newest copy, because a damaged older copy of the same step may lie beside it.
  std::optional<StepName> newest;
  for (const std::string& text : HOLDFAST_TRY(env.list(path))) {
    const std::optional<StepName> name = parse_step_name(text);
    if (!name.has_value()) continue;
    const Result<Step> found = run.step(*name);
    if (!found.ok() || found->manifest.attempt != step.manifest.attempt) continue;
    newest = std::max(newest, name);
  }
  if (!newest.has_value()) {
    return not_found("{}: step {} was copied here and has been removed since",
                     path.native(), step.manifest.step);
  }
  if (events != nullptr) {
    emit(*events, env,
         StepFetched{
             .step = step.manifest.step,
             .tier = tier.name(),
             .seconds = std::chrono::duration<double>(env.now() - start).count()});
  }
  return path / newest->text();
}

Result<Fetched> fetch_newest(Env& env, const Path& run, Tiers tiers,
                             const FetchOptions& options) {
  for (const std::shared_ptr<StorageTier>& tier : tiers) {
    if (!is_same_folder(env, tier->name(), run)) continue;
    return invalid("{}: is the run directory itself; expected another place as a tier",
                   tier->name());
  }
  const Own own = HOLDFAST_TRY(summarize_path(env, run));
  Offers offers = HOLDFAST_TRY(ask_tiers(tiers, own.id));
  Fetched fetched;
  FetchTrouble trouble;
  for (const Offer& offer : offers.steps) {
    if (own.newest.has_value() && age_of(offer.step.manifest) <= *own.newest) break;
    if (trouble.forbids(offer)) break;
    Result<Path> folder = fetch_step(env, run, *offer.tier, offer.step, options.events);
    if (folder.ok()) {
      fetched.folder = *std::move(folder);
      fetched.tier = offer.tier->name();
      break;
    }
    trouble.note(run, offer, folder.error(), offers.damaged);
  }
  const bool any = own.newest.has_value() || !fetched.folder.empty();
  if (fetched.folder.empty() && trouble.error().has_value()) return *trouble.error();
  if (!any) {
    const auto why = why_not_anew(run, offers, options.allow_unreachable_tiers);
    if (why.has_value()) return *why;
  }
  fetched.skipped = offers.skipped();
  tell_skipped(env, fetched.skipped, options.events);
  return fetched;
}

}  // namespace holdfast
