#include "holdfast/cli/campaign_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "holdfast/cli/json_print.h"
#include "holdfast/cli/text.h"

namespace holdfast {
namespace {

constexpr const char* kByRole = "by role";

// "3.1 %".
std::string percent(double rate) { return fmt::format("{:.1f} %", 100 * rate); }

// "1.8 to 5.4".
std::string range_text(const Interval& interval) {
  return fmt::format("{:.1f} to {:.1f}", 100 * interval.low, 100 * interval.high);
}

std::string of_text(const CountedRate& rate) {
  return fmt::format("{} of {}", human_count(rate.count), human_count(rate.total));
}

std::vector<std::string> rate_row(std::string name, const CountedRate& rate) {
  return {std::move(name), of_text(rate), percent(rate.rate()),
          range_text(rate.interval)};
}

int64_t count_of(const OutcomeCounts& counts, Outcome outcome) {
  return counts[static_cast<size_t>(outcome)];
}

void add_groups(Table& table, const char* title,
                const std::vector<TrialGroup>& groups) {
  if (groups.empty()) return;
  table.add({title, "N-EV", "harm", "%", "95 %"});
  for (const TrialGroup& group : groups) {
    // Only the groups of roles are marked: roles may be guessed, bits and layers not.
    const bool guessed = group.guessed > 0 && std::string_view(title) == kByRole;
    table.add({printable(group.name) + (guessed ? " (guessed)" : ""), of_text(group.nev), of_text(group.harm),
               fmt::format("{:.1f}", 100 * group.harm.rate()),
               range_text(group.harm.interval)});
  }
  table.add({});
}

// "; bit 30: 12 of 12, others 0 of 373": the group with most N-EV against the rest.
std::string worst_bit_text(const CampaignAnalysis& analysis) {
  const auto worst = std::ranges::max_element(
      analysis.by_bit, {}, [](const TrialGroup& group) { return group.nev.count; });
  if (worst == analysis.by_bit.end() || worst->nev.count == 0) return "";
  const CountedRate& all = analysis.all.nev;
  return fmt::format(";  {}: {}, others {} of {}", worst->name, of_text(worst->nev),
                     human_count(all.count - worst->nev.count),
                     human_count(all.total - worst->nev.total));
}

std::string nev_text(const CampaignAnalysis& analysis) {
  const CountedRate& nev = analysis.all.nev;
  std::string text = fmt::format("N-EV  {}   {} ({})", of_text(nev),
                                 percent(nev.rate()), range_text(nev.interval));
  if (analysis.file.predicted) {
    text += ", predicted " + percent(*analysis.file.predicted);
  }
  return text + worst_bit_text(analysis) + "\n";
}

OrderedJson interval_json(const Interval& interval) {
  return {json_number(interval.low), json_number(interval.high)};
}

OrderedJson rate_json(const CountedRate& rate) {
  return {{"count", rate.count},
          {"total", rate.total},
          {"rate", rate.rate()},
          {"interval", interval_json(rate.interval)}};
}

OrderedJson low_json(const CountedRate& low) {
  return low.total > 0 ? rate_json(low) : OrderedJson(nullptr);
}

// {"N-EV": 12, "benign": 373}, without those that no trial has.
OrderedJson counts_json(const OutcomeCounts& counts) {
  OrderedJson found = OrderedJson::object();
  for (const Outcome outcome : kAllOutcomes) {
    const int64_t count = count_of(counts, outcome);
    if (count > 0) found[std::string(name_of(outcome))] = count;
  }
  return found;
}

OrderedJson groups_json(const std::vector<TrialGroup>& groups) {
  OrderedJson list = OrderedJson::array();
  for (const TrialGroup& group : groups) {
    list.push_back({{"name", group.name},
                    {"nev", rate_json(group.nev)},
                    {"harm", rate_json(group.harm)},
                    {"guessed", group.guessed},
                    {"trials", group.trials},
                    {"outcomes", counts_json(group.outcomes)},
                    {"top_exponent", counts_json(group.top_exponent)},
                    {"sign_only", counts_json(group.sign_only)},
                    {"harm_top_exponent", group.harm_top_exponent},
                    {"harm_sign_only", group.harm_sign_only},
                    {"low_after_loading", low_json(group.low_after_loading)},
                    {"seconds", group.seconds}});
  }
  return list;
}

OrderedJson outcomes_json(const TrialGroup& group) {
  OrderedJson outcomes = OrderedJson::object();
  for (const Outcome outcome : kAllOutcomes) {
    outcomes[std::string(name_of(outcome))] =
        rate_json(counted_rate(count_of(group.outcomes, outcome), group.trials));
  }
  return outcomes;
}

OrderedJson metric_json(const std::optional<double>& value) {
  return value ? json_number(*value) : OrderedJson(nullptr);
}

OrderedJson golden_json(const TrainingLog& golden) {
  return {{"first_accuracy", metric_json(golden.after_loading("accuracy"))},
          {"final_accuracy", metric_json(golden.last("accuracy"))},
          {"final_loss", metric_json(golden.last("loss"))}};
}

OrderedJson estimate_json(const RateEstimate& estimate) {
  return {{"rate", estimate.rate}, {"interval", interval_json(estimate.interval)}};
}

OrderedJson distances_json(const std::vector<DistancePairs>& distances) {
  OrderedJson list = OrderedJson::array();
  for (const DistancePairs& one : distances) {
    list.push_back({{"tensor", one.tensor},
                    {"pairs", one.pairs},
                    {"median_log10_ratio", json_number(one.log_ratio.value)},
                    {"interval", interval_json(one.log_ratio.interval)},
                    {"margin", kDistanceMargin},
                    {"above", one.above},
                    {"below", one.below},
                    {"within_p", one.within_p},
                    {"within_holm_p", one.within_holm_p}});
  }
  return list;
}

// "12 N-EV, 3 degraded, 370 benign"; "none" if there are no trials.
std::string counts_text(const OutcomeCounts& counts) {
  std::vector<std::string> parts;
  for (const Outcome outcome : kAllOutcomes) {
    const int64_t count = count_of(counts, outcome);
    if (count == 0) continue;
    parts.push_back(fmt::format("{} {}", human_count(count), name_of(outcome)));
  }
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, ", "));
}

// A line such as "harm by accuracy:5"; nothing for the usual rule.
std::string rule_text(const HarmRule& rule) {
  return rule.accuracy_points ? fmt::format("harm by {}\n", to_string(rule)) : "";
}

// "sdc", "ddp.0 and 13 more".
std::string parts_text(std::span<const Path> parts) {
  const std::string first = printable(parts[0].native());
  return parts.size() == 1 ? first
                           : fmt::format("{} and {} more", first, parts.size() - 1);
}

}  // namespace

std::string golden_text(const GoldenReport& golden) {
  const std::string runs = golden.runs == 1
                               ? "1 run, bit-equal to the first"
                               : fmt::format("{} runs, bit-equal", golden.runs);
  const int64_t left = golden.trials - golden.recorded;
  const std::string known =
      golden.recorded == 0
          ? ""
          : fmt::format(" ({} are there already)", human_count(golden.recorded));
  return fmt::format(
      "golden: {}, {} each, {} steps; {} trials{}, about {}; deadline {}\n", runs,
      human_seconds(golden.seconds), human_count(golden.steps),
      human_count(golden.trials), known,
      human_seconds(golden.seconds * static_cast<double>(left)),
      human_seconds(golden.deadline));
}

std::string campaign_text(const std::string& folder, const CampaignResult& done,
                          const CampaignAnalysis& analysis) {
  std::string text = fmt::format("{} trials recorded", human_count(analysis.all.trials));
  if (analysis.all.trials > 0) text += ": " + counts_text(analysis.all.outcomes);
  if (done.repeated > 0) {
    text += fmt::format(
        "; {} were repeated in processes of their own, because the golden run had "
        "changed in the shared one",
        human_count(done.repeated));
  }
  if (done.unwritten > 0) {
    text += fmt::format("; {} drawn sites were passed over, because they were never written",
                        human_count(done.unwritten));
  }
  text += done.stopped
              ? "; stopped: the same command continues it\n"
              : fmt::format("; see holdfast campaign analyse {}\n", printable(folder));
  return text;
}

std::string analysis_text(std::span<const Path> parts,
                          const CampaignAnalysis& analysis) {
  const TrialGroup& all = analysis.all;
  std::string text = fmt::format("{}: {} trials of {}\n{}\n{}\n", parts_text(parts),
                                 human_count(all.trials),
                                 printable(analysis.file.base),
                                 to_string(analysis.file.thresholds),
                                 rule_text(analysis.rule));
  Table outcomes;
  outcomes.add({"outcome", "trials", "rate", "95 %"});
  for (const Outcome outcome : kAllOutcomes) {
    outcomes.add(rate_row(std::string(name_of(outcome)),
                          counted_rate(count_of(all.outcomes, outcome), all.trials)));
  }
  outcomes.add(rate_row("harm", all.harm));
  if (all.low_after_loading.total > 0) {
    outcomes.add(rate_row("low accuracy after loading", all.low_after_loading));
  }
  Table groups;
  add_groups(groups, "by bit", analysis.by_bit);
  add_groups(groups, kByRole, analysis.by_role);
  add_groups(groups, "by layer", analysis.by_layer);
  return text + outcomes.text() + "\n" + groups.text() + nev_text(analysis) +
         fmt::format("flips of a top exponent bit: {}\nof a sign, and no such bit: {}\n",
                     counts_text(all.top_exponent), counts_text(all.sign_only));
}

std::string pairs_text(const PairedAnalysis& pairs) {
  const PairCounts& harm = pairs.harm;
  std::string text = fmt::format(
      "{} pairs, {} with the same outcome\n{}harm: {} in both, {} only in the first, {} "
      "only in the second, {} in neither\ndifference {:.2f} points ({}), p = {:.3g} "
      "(exact McNemar)\n",
      human_count(harm.total()), human_count(pairs.equal), rule_text(pairs.rule),
      human_count(harm.both),
      human_count(harm.only_a), human_count(harm.only_b), human_count(harm.neither),
      100 * pairs.difference, range_text(pairs.interval), pairs.p);
  text += fmt::format(
      "golden runs {}; equal bits in {} of {} pairs that ended, N-EV in one only: {}\n",
      pairs.same_golden ? "equal" : "differ", human_count(pairs.equal_bits),
      human_count(harm.total() - pairs.without_end), human_count(pairs.nev_once));
  if (pairs.timed_out_once > 0 && pairs.deadline_a != pairs.deadline_b) {
    text += fmt::format(
        "{} pairs timed out in one only; their deadlines differ: {:.3g} s and {:.3g} s\n",
        human_count(pairs.timed_out_once), pairs.deadline_a, pairs.deadline_b);
  }
  if (pairs.distances.empty()) return text;
  Table table;
  table.add({"distance to golden", "pairs", "median log10 ratio", "95 %",
             fmt::format("from {0} up", kDistanceMargin),
             fmt::format("from -{0} down", kDistanceMargin),
             fmt::format("p within {}, Holm", kDistanceMargin)});
  for (const DistancePairs& one : pairs.distances) {
    table.add({printable(one.tensor), human_count(one.pairs),
               fmt::format("{:.3f}", one.log_ratio.value),
               fmt::format("{:.3f} to {:.3f}", one.log_ratio.interval.low,
                           one.log_ratio.interval.high),
               human_count(one.above), human_count(one.below),
               fmt::format("{:.3g}", one.within_holm_p)});
  }
  return text + table.text();
}

std::string strata_text(const StrataAnalysis& strata) {
  return fmt::format(
      "together: {} trials, weighted by sites\n{}N-EV {} ({})\nharm {} ({})\n",
      human_count(strata.trials), rule_text(strata.rule), percent(strata.nev.rate),
      range_text(strata.nev.interval), percent(strata.harm.rate),
      range_text(strata.harm.interval));
}

std::string campaign_json(const std::string& folder, const CampaignResult& done,
                          const CampaignAnalysis& analysis) {
  const GoldenReport& golden = done.golden;
  return print_json({{"folder", folder},
                     {"golden",
                      {{"runs", golden.runs},
                       {"seconds", golden.seconds},
                       {"steps", golden.steps}}},
                     {"deadline", golden.deadline},
                     {"trials", golden.trials},
                     {"recorded", analysis.all.trials},
                     {"done", done.done},
                     {"repeated", done.repeated},
                     {"unwritten", done.unwritten},
                     {"stopped", done.stopped},
                     {"outcomes", outcomes_json(analysis.all)}});
}

std::string analysis_json(std::span<const Path> parts,
                          const CampaignAnalysis& analysis) {
  const Thresholds& limits = analysis.file.thresholds;
  const TrialGroup& all = analysis.all;
  OrderedJson report{{"folder", parts[0].native()}, {"base", analysis.file.base}};
  for (const Path& part : parts) report["parts"].push_back(part.native());
  report.update({{"thresholds",
                  {{"extreme_loss", limits.extreme_loss},
                   {"degraded_accuracy", limits.degraded_accuracy},
                   {"degraded_loss", limits.degraded_loss},
                   {"spiked_loss", limits.spiked_loss}}},
                 {"golden", golden_json(analysis.file.golden)},
                 {"trials", all.trials},
                 {"seconds", all.seconds},
                 {"outcomes", outcomes_json(all)},
                 {"rule", to_string(analysis.rule)},
                 {"harm", rate_json(all.harm)},
                 {"harm_top_exponent", all.harm_top_exponent},
                 {"harm_sign_only", all.harm_sign_only},
                 {"top_exponent", counts_json(all.top_exponent)},
                 {"sign_only", counts_json(all.sign_only)},
                 {"low_after_loading", low_json(all.low_after_loading)}});
  report["predicted_nev"] =
      analysis.file.predicted ? OrderedJson(*analysis.file.predicted) : nullptr;
  report["by_bit"] = groups_json(analysis.by_bit);
  report["by_role"] = groups_json(analysis.by_role);
  report["by_layer"] = groups_json(analysis.by_layer);
  return print_json(std::move(report));
}

std::string pairs_json(const PairedFolders& folders, const PairedAnalysis& pairs) {
  return print_json({{"a", folders.a[0].native()},
                     {"b", folders.b[0].native()},
                     {"pairs", pairs.harm.total()},
                     {"same_outcome", pairs.equal},
                     {"same_bits", pairs.equal_bits},
                     {"same_golden", pairs.same_golden},
                     {"rule", to_string(pairs.rule)},
                     {"nev_in_one_only", pairs.nev_once},
                     {"without_end", pairs.without_end},
                     {"harm",
                      {{"both", pairs.harm.both},
                       {"only_a", pairs.harm.only_a},
                       {"only_b", pairs.harm.only_b},
                       {"neither", pairs.harm.neither}}},
                     {"difference", pairs.difference},
                     {"interval", interval_json(pairs.interval)},
                     {"p", pairs.p},
                     {"deadlines", {pairs.deadline_a, pairs.deadline_b}},
                     {"timed_out_in_one_only", pairs.timed_out_once},
                     {"distances", distances_json(pairs.distances)}});
}

std::string strata_json(const StrataAnalysis& strata) {
  return print_json({{"rule", to_string(strata.rule)},
                     {"trials", strata.trials},
                     {"nev", estimate_json(strata.nev)},
                     {"harm", estimate_json(strata.harm)}});
}

}  // namespace holdfast
