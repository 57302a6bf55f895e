#include "holdfast/repair/step_sources.h"

#include <algorithm>

#include "holdfast/env/event_log.h"
#include "holdfast/shard/step_name.h"

namespace holdfast {

Result<std::shared_ptr<const StepSources>> StepSources::open(
    Env& env, const Path& run, const RepairSources& from) {
  auto made = std::make_shared<StepSources>();
  for (const std::string& name : from.tiers) {
    const Variables none = [](const std::string&) { return std::nullopt; };
    Result<std::shared_ptr<StorageTier>> tier =
        open_tier(env, name, from.variables ? from.variables : none);
    if (!tier.ok()) {
      made->sources_.push_back(copies_out_of_reach(name, tier.error()));
      continue;
    }
    made->sources_.push_back(copies_in_tier(**tier));
    made->tiers_.push_back(*std::move(tier));
  }
  made->sources_.push_back(copies_in_run(env, run));
  if (from.from) {
    made->other_ = HOLDFAST_TRY(open_any(env, *from.from));
    made->sources_.push_back(
        copies_in_contents(made->other_->contents, from.from->native()));
  }
  made->sources_.push_back(copies_by_parity(env));
  return std::shared_ptr<const StepSources>(std::move(made));
}

std::vector<std::string> recorded_tiers(Env& env, const Found& found) {
  std::vector<std::string> names;
  if (!found.step()) return names;
  const Result<EventLog> log =
      read_events(env, folder_of(found.path) / event_log_name(0));
  if (!log.ok()) return names;
  for (const EventRecord& event : log->events) {
    if (event.name != "step_copied") continue;
    const EventValue* tier = event.find("tier");
    const auto* name = tier == nullptr ? nullptr : std::get_if<std::string>(tier);
    if (name == nullptr || std::ranges::count(names, *name) > 0) continue;
    names.push_back(*name);
  }
  return names;
}

}  // namespace holdfast
