#include "holdfast/cli/campaign_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

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

using Range = std::pair<double, double>;

Range range_of(const Interval& interval) { return {interval.low, interval.high}; }

void put_rate(FieldWriter& field, const CountedRate& rate) {
  field("count", rate.count);
  field("total", rate.total);
  field("rate", rate.rate());
  field("interval", range_of(rate.interval));
}

void put_rate(FieldWriter& field, std::string_view key, const CountedRate& rate) {
  field.object(key, [&](FieldWriter& each) { put_rate(each, rate); });
}

void put_low(FieldWriter& field, const CountedRate& low) {
  if (low.total == 0) return field("low_after_loading", nullptr);
  put_rate(field, "low_after_loading", low);
}

// {"N-EV": 12, "benign": 373}, without those that no trial has.
void put_counts(FieldWriter& field, std::string_view key, const OutcomeCounts& counts) {
  field.object(key, [&](FieldWriter& each) {
    for (const Outcome outcome : kAllOutcomes) {
      const int64_t count = count_of(counts, outcome);
      if (count > 0) each(name_of(outcome), count);
    }
  });
}

void put_groups(FieldWriter& field, std::string_view key,
                const std::vector<TrialGroup>& groups) {
  field.list(key, groups, [](FieldWriter& each, const TrialGroup& group) {
    each("name", group.name);
    put_rate(each, "nev", group.nev);
    put_rate(each, "harm", group.harm);
    each("guessed", group.guessed);
    each("trials", group.trials);
    put_counts(each, "outcomes", group.outcomes);
    put_counts(each, "top_exponent", group.top_exponent);
    put_counts(each, "sign_only", group.sign_only);
    each("harm_top_exponent", group.harm_top_exponent);
    each("harm_sign_only", group.harm_sign_only);
    put_low(each, group.low_after_loading);
    each("seconds", group.seconds);
  });
}

void put_outcomes(FieldWriter& field, const TrialGroup& group) {
  field.object("outcomes", [&](FieldWriter& each) {
    for (const Outcome outcome : kAllOutcomes) {
      put_rate(each, name_of(outcome),
               counted_rate(count_of(group.outcomes, outcome), group.trials));
    }
  });
}

void put_estimate(FieldWriter& field, std::string_view key,
                  const RateEstimate& estimate) {
  field.object(key, [&](FieldWriter& each) {
    each("rate", estimate.rate);
    each("interval", range_of(estimate.interval));
  });
}

void put_distance(FieldWriter& field, const DistancePairs& one) {
  field("tensor", one.tensor);
  field("pairs", one.pairs);
  field("median_log10_ratio", one.log_ratio.value);
  field("interval", range_of(one.log_ratio.interval));
  field("margin", kDistanceMargin);
  field("above", one.above);
  field("below", one.below);
  field("within_p", one.within_p);
  field("within_holm_p", one.within_holm_p);
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

void put_members(FieldWriter& field, const std::string& folder,
                 const CampaignResult& done, const CampaignAnalysis& analysis) {
  field("folder", folder);
  field.object("golden", [&](FieldWriter& golden) {
    golden("runs", done.golden.runs);
    golden("seconds", done.golden.seconds);
    golden("steps", done.golden.steps);
  });
  field("deadline", done.golden.deadline);
  field("trials", done.golden.trials);
  field("recorded", analysis.all.trials);
  field("done", done.done);
  field("repeated", done.repeated);
  field("unwritten", done.unwritten);
  field("stopped", done.stopped);
  put_outcomes(field, analysis.all);
}

void put_members(FieldWriter& field, const std::vector<Path>& parts,
                 const CampaignAnalysis& analysis) {
  const CampaignFile& file = analysis.file;
  const TrialGroup& all = analysis.all;
  std::vector<std::string> names;
  for (const Path& part : parts) names.push_back(part.native());
  field("folder", names[0]);
  field("base", file.base);
  field("parts", names);
  field("thresholds", file.thresholds);
  field.object("golden", [&](FieldWriter& golden) {
    golden("first_accuracy", file.golden.after_loading("accuracy"));
    golden("final_accuracy", file.golden.last("accuracy"));
    golden("final_loss", file.golden.last("loss"));
  });
  field("trials", all.trials);
  field("seconds", all.seconds);
  put_outcomes(field, all);
  field("rule", to_string(analysis.rule));
  put_rate(field, "harm", all.harm);
  field("harm_top_exponent", all.harm_top_exponent);
  field("harm_sign_only", all.harm_sign_only);
  put_counts(field, "top_exponent", all.top_exponent);
  put_counts(field, "sign_only", all.sign_only);
  put_low(field, all.low_after_loading);
  field("predicted_nev", file.predicted);
  put_groups(field, "by_bit", analysis.by_bit);
  put_groups(field, "by_role", analysis.by_role);
  put_groups(field, "by_layer", analysis.by_layer);
}

void put_members(FieldWriter& field, const PairedFolders& folders,
                 const PairedAnalysis& pairs) {
  field("a", folders.a[0].native());
  field("b", folders.b[0].native());
  field("pairs", pairs.harm.total());
  field("same_outcome", pairs.equal);
  field("same_bits", pairs.equal_bits);
  field("same_golden", pairs.same_golden);
  field("rule", to_string(pairs.rule));
  field("nev_in_one_only", pairs.nev_once);
  field("without_end", pairs.without_end);
  field.object("harm", [&](FieldWriter& harm) {
    harm("both", pairs.harm.both);
    harm("only_a", pairs.harm.only_a);
    harm("only_b", pairs.harm.only_b);
    harm("neither", pairs.harm.neither);
  });
  field("difference", pairs.difference);
  field("interval", range_of(pairs.interval));
  field("p", pairs.p);
  field("deadlines", Range(pairs.deadline_a, pairs.deadline_b));
  field("timed_out_in_one_only", pairs.timed_out_once);
  field.list("distances", pairs.distances, put_distance);
}

void put_members(FieldWriter& field, const StrataAnalysis& strata) {
  field("rule", to_string(strata.rule));
  field("trials", strata.trials);
  put_estimate(field, "nev", strata.nev);
  put_estimate(field, "harm", strata.harm);
}

}  // namespace holdfast
