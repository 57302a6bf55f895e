#include "holdfast/cli/log_report.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "holdfast/base/number_text.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/text.h"
#include "holdfast/env/event_log.h"
#include "holdfast/inspect/export.h"
#include "holdfast/schedule/log_plan.h"
#include "holdfast/shard/step_name.h"

namespace holdfast {
namespace {

template <typename T>
std::optional<T> field(const EventRecord& record, std::string_view name) {
  const EventValue* value = record.find(name);
  const T* found = value == nullptr ? nullptr : std::get_if<T>(value);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

// What the newest event messages_kept of a rank says.
struct Kept {
  double own = 0;                       // seconds of a step without waiting for other ranks
  std::map<std::pair<int, int>, int64_t> sent{};  // bytes a step, by (from, to)
};

// The borders in a text such as "0>1 2048 1>0 2048".
Result<void> read_borders(std::string_view text, Kept& kept) {
  while (!text.empty()) {
    const auto from = take_number<int64_t>(text);
    const bool arrow = from && text.starts_with('>');
    if (arrow) text.remove_prefix(1);
    const auto to = arrow ? take_number<int64_t>(text) : std::nullopt;
    if (to && text.starts_with(' ')) text.remove_prefix(1);
    const auto bytes = to ? take_number<int64_t>(text) : std::nullopt;
    if (!bytes || *bytes < 0 || *from < 0 || *to < 0 || *from > 1 << 20 || *to > 1 << 20) {
      return invalid("event messages_kept: borders end with \"{}\"; expected \"0>1 2048\"", text);
    }
    kept.sent[{static_cast<int>(*from), static_cast<int>(*to)}] = *bytes;
    if (text.starts_with(' ')) text.remove_prefix(1);
  }
  return {};
}

Result<std::optional<Kept>> kept_in(const EventLog& log) {
  std::optional<Kept> newest;
  for (const EventRecord& record : log.events) {
    if (record.name != "messages_kept") continue;
    Kept kept{.own = field<double>(record, "own_seconds").value_or(0)};
    HOLDFAST_TRY(read_borders(field<std::string>(record, "borders").value_or(""), kept));
    newest = std::move(kept);
  }
  return newest;
}

// The average number of steps between two durable saves; 0 if there were not two.
int64_t steps_between_saves(const EventLog& log) {
  std::vector<int64_t> steps;
  for (const EventRecord& record : log.events) {
    if (record.name != "save_durable") continue;
    const auto step = field<int64_t>(record, "step");
    if (step && (steps.empty() || *step > steps.back())) steps.push_back(*step);
  }
  if (steps.size() < 2) return 0;
  return (steps.back() - steps.front()) / (std::ssize(steps) - 1);
}

Result<LogChain> read_chain(const Context& context, const std::string& run,
                            const LogArguments& arguments) {
  LogChain chain;
  std::vector<Kept> ranks;
  int64_t steps = 0;
  while (true) {
    const Path path = Path(run) / event_log_name(static_cast<int>(ranks.size()));
    if (!context.env.info(path).ok()) break;
    const EventLog log = HOLDFAST_TRY(read_events(context.env, path));
    if (ranks.empty()) steps = steps_between_saves(log);
    std::optional<Kept> kept = HOLDFAST_TRY(kept_in(log));
    if (!kept) {
      return invalid("{}: has no event messages_kept; expected a run of `holdfast launch` with "
                     "pipeline stages and at least 20 steps",
                     path.native());
    }
    ranks.push_back(*std::move(kept));
  }
  if (ranks.empty()) {
    return invalid("{}: has no event log; expected the directory of a run of `holdfast launch`", run);
  }
  for (size_t k = 0; k < ranks.size(); ++k) {
    const int rank = static_cast<int>(k);
    chain.replay.push_back(ranks[k].own);
    chain.rate.push_back(1);
    if (k + 1 == ranks.size()) break;
    chain.right.push_back(ranks[k].sent[{rank, rank + 1}]);
    chain.left.push_back(ranks[k + 1].sent[{rank + 1, rank}]);
  }
  chain.bandwidth = static_cast<double>(
      HOLDFAST_TRY(parse_byte_count(arguments.bandwidth).within("--log-bandwidth")));
  chain.steps = arguments.steps.value_or(steps);
  if (chain.steps < 1) {
    return invalid("{}: its events have no two saves; expected --log-steps", run);
  }
  return chain;
}

std::string border_name(size_t k) { return fmt::format("{} - {}", k, k + 1); }

// A plan, and what it is compared with.
struct LogReport {
  LogChain chain;
  int64_t budget;
  LogPlan plan, all, none, greedy;
};

std::string text_of(const LogReport& report) {
  const auto& [chain, budget, plan, all, none, greedy] = report;
  Table table;
  table.add({"border", "a step", "until a save", "log it"});
  for (size_t k = 0; k < plan.logged.size(); ++k) {
    const int64_t bytes = chain.right[k] + chain.left[k];
    table.add({border_name(k), human_bytes(bytes), human_bytes(bytes * chain.steps),
               plan.logged[k] ? "yes" : "no"});
  }
  return fmt::format(
      "{}\n{} of {} for {} steps between two saves. A loss costs {} for each step since the "
      "newest save\n(all borders: {}, none: {}; SWIFT's rule: {}).\n",
      table.text(), human_bytes(plan.bytes), human_bytes(budget), human_count(chain.steps),
      human_seconds(plan.seconds), human_seconds(all.seconds), human_seconds(none.seconds),
      human_seconds(greedy.seconds));
}

void put_report(FieldWriter& field, const LogReport& report) {
  const auto& [chain, budget, plan, all, none, greedy] = report;
  size_t k = 0;
  field.list("borders", plan.logged, [&](FieldWriter& each, bool logged) {
    each("border", border_name(k));
    each("right", chain.right[k]);
    each("left", chain.left[k++]);
    each("logged", logged);
  });
  field("steps", chain.steps);
  field("budget", budget);
  field("bytes", plan.bytes);
  field("seconds", plan.seconds);
  field("seconds_all", all.seconds);
  field("seconds_none", none.seconds);
  field("seconds_greedy", greedy.seconds);
}

}  // namespace

Result<void> report_log(const Context& context, const std::string& run,
                        const LogArguments& arguments) {
  if (run.empty()) return invalid("--log-budget: no run; expected a run directory");
  LogLimits limits{
      .total = HOLDFAST_TRY(parse_byte_count(arguments.budget).within("--log-budget"))};
  if (!arguments.host_limit.empty()) {
    limits.host = HOLDFAST_TRY(parse_byte_count(arguments.host_limit).within("--log-limit"));
  }
  const LogChain chain = HOLDFAST_TRY(read_chain(context, run, arguments));
  const size_t borders = chain.right.size();
  const LogReport report{
      .chain = chain,
      .budget = limits.total,
      .plan = HOLDFAST_TRY(plan_log(chain, limits)),
      .all = HOLDFAST_TRY(cost_of_log(chain, std::vector<bool>(borders, true))),
      .none = HOLDFAST_TRY(cost_of_log(chain, std::vector<bool>(borders, false))),
      .greedy = HOLDFAST_TRY(plan_log_greedily(chain, limits))};
  if (context.json) {
    print_json(context.out, [&](FieldWriter& field) { put_report(field, report); });
  } else {
    context.out << text_of(report);
  }
  return {};
}

}  // namespace holdfast
