#include "holdfast/checkpoint/fetch.h"

#include <algorithm>

#include "holdfast/checkpoint/events.h"

namespace holdfast {
namespace {

using Age = std::pair<int64_t, int64_t>;

// Of the newest step that is whole as far as a fast look tells; nullopt if there is none.
Result<std::optional<Age>> newest_age(Env& env, const Path& path) {
  const Result<Run> run = Run::open(env, path);
  if (!run.ok() && run.error().code() == ErrorCode::kNotFound)
    return std::optional<Age>();
  if (!run.ok()) return run.error();
  const Result<NewestWhole> newest = run->newest_whole(Depth::kFast);
  if (newest.ok()) return std::optional(age_of(newest->step.manifest));
  const ErrorCode code = newest.error().code();
  if (code == ErrorCode::kNotFound || code == ErrorCode::kCorrupt) {
    return std::optional<Age>();
  }
  return newest.error();
}

bool is_same_folder(Env& env, const Path& a, const Path& b) {
  if ((a / "").lexically_normal() == (b / "").lexically_normal()) return true;
  const Result<FileInfo> first = env.info(a), second = env.info(b);
  return first.ok() && second.ok() && first->inode != 0 &&
         std::pair(first->device, first->inode) ==
             std::pair(second->device, second->inode);
}

struct Offer {
  TierStep step;
  StorageTier* tier = nullptr;
};

// Newer ones than `own`, newest first; of the same age, the first tier's first.
std::vector<Offer> offers_of(Tiers tiers, const std::optional<Age>& own,
                             std::vector<SkippedStep>& skipped) {
  std::vector<Offer> offers;
  for (const std::shared_ptr<StorageTier>& tier : tiers) {
    Result<std::vector<TierStep>> steps = tier->steps();
    if (!steps.ok()) {
      skipped.push_back({tier->name(), steps.error()});
      continue;
    }
    for (TierStep& step : *steps) {
      if (own.has_value() && age_of(step.manifest) <= *own) continue;
      offers.push_back({std::move(step), tier.get()});
    }
  }
  std::ranges::stable_sort(offers, std::greater(), [](const Offer& offer) {
    return age_of(offer.step.manifest);
  });
  return offers;
}

void tell_skipped(Env& env, const std::vector<SkippedStep>& skipped,
                  EventSink* events) {
  if (events == nullptr) return;
  for (const auto& [tier, error] : skipped) {
    emit(*events, env,
         MirrorFailed{.step = -1, .tier = tier, .reason = error.message()});
  }
}

}  // namespace

Result<Path> fetch_step(Env& env, const Path& path, StorageTier& tier,
                        const TierStep& step, EventSink* events) {
  const Instant start = env.now();
  const auto here = make_folder_tier(env, path);
  HOLDFAST_TRY(copy_step(tier, step, *here));
  // By its attempt, and without regard to fences: it is here because it was asked for.
  const Run run = HOLDFAST_TRY(Run::open(env, path));
  std::optional<StepName> newest;  // beside a damaged one of the same step
  for (const std::string& text : HOLDFAST_TRY(env.list(path))) {
    const std::optional<StepName> name = parse_step_name(text);
    if (!name.has_value()) continue;
    const Result<Step> found = run.step(*name);
    if (!found.ok() || found->manifest.attempt != step.manifest.attempt) continue;
    newest = std::max(newest, name);
  }
  if (!newest.has_value()) {
    return not_found("{}: step {} was copied here and is gone", path.native(),
                     step.manifest.step);
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
                             EventSink* events) {
  for (const std::shared_ptr<StorageTier>& tier : tiers) {
    if (!is_same_folder(env, tier->name(), run)) continue;
    return invalid("{}: is the run directory itself, want another place as a tier",
                   tier->name());
  }
  const std::optional<Age> own = HOLDFAST_TRY(newest_age(env, run));
  Fetched fetched;
  for (const Offer& offer : offers_of(tiers, own, fetched.skipped)) {
    Result<Path> folder = fetch_step(env, run, *offer.tier, offer.step, events);
    if (folder.ok()) {
      fetched.folder = *std::move(folder);
      fetched.tier = offer.tier->name();
      break;
    }
    fetched.skipped.push_back({offer.tier->name(), folder.error()});
  }
  const bool any = own.has_value() || !fetched.folder.empty();
  if (!any && !fetched.skipped.empty()) {
    return fetched.skipped.front().error.within(
        fmt::format("{}: has no step", run.native()));
  }
  tell_skipped(env, fetched.skipped, events);
  return fetched;
}

}  // namespace holdfast
