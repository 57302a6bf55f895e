#include "holdfast/campaign/analysis.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>

#include "holdfast/corruption/sites.h"

namespace holdfast {
namespace {

using Records = std::vector<TrialRecord>;

// A campaign whose trials may have been run in parts.
struct ReadCampaign {
  CampaignFile file{};  // that of the first part
  std::vector<Records> parts{};
};

// A trial, whether it is harmed, and which bits it has flipped of numbers that have an
// exponent.
struct Member {
  const TrialRecord* record = nullptr;
  bool harmed = false;
  bool top = false;   // the highest bit of an exponent
  bool sign = false;
};

using Group = std::vector<Member>;

bool is_nev(const TrialRecord& record) { return record.outcome == Outcome::kNev; }
bool has_timed_out(const TrialRecord& record) {
  return record.outcome == Outcome::kTimedOut;
}

// The name that all flips of a trial have in common, or "several".
template <typename Name>
std::string common_name(const TrialRecord& record, Name name) {
  if (record.flips.empty()) return "none";
  const std::string first = name(record.flips[0]);
  const bool all = std::ranges::all_of(
      record.flips, [&](const RecordedFlip& flip) { return name(flip) == first; });
  return all ? first : "several";
}

Member member_of(const TrialRecord& record, bool harmed) {
  Member found{.record = &record, .harmed = harmed};
  for (const auto& [flip, role, guessed, layer] : record.flips) {
    const ElementBits mask = flip.mask();
    const auto flips = [&](int bit) { return has_bit(mask, bit); };
    const auto tops = chosen_bits(flip.dtype, {.field = BitChoice::Field::kTopExponent});
    if (tops.empty()) continue;
    found.top |= std::ranges::any_of(tops, flips);
    found.sign |= std::ranges::any_of(
        chosen_bits(flip.dtype, {.field = BitChoice::Field::kSign}), flips);
  }
  return found;
}

bool flips_one_bit(const TrialRecord& record) {
  return record.flips.size() == 1 && set_bits(record.flips[0].flip.mask()).size() == 1;
}

// "F32 bit 30"; the number has two digits, so that names sort by it.
std::string bit_name(const TrialRecord& record) {
  const PlannedFlip& flip = record.flips[0].flip;
  return fmt::format("{} bit {:2}", name_of(flip.dtype), set_bits(flip.mask())[0]);
}

bool is_role_guessed(const TrialRecord& record) {
  return std::ranges::any_of(record.flips, &RecordedFlip::guessed);
}

int64_t count_if(const Group& group, bool (*test)(const TrialRecord&)) {
  return std::ranges::count_if(group,
                               [&](const Member& one) { return test(*one.record); });
}

CountedRate count_low(const Group& group, const CampaignFile& file) {
  const auto golden = file.golden.after_loading("accuracy");
  int64_t low = 0, evaluated = 0;
  for (const auto& [record, harmed, top, sign] : group) {
    if (!golden || !record->first_accuracy) continue;
    evaluated += 1;
    // An accuracy that is not a number is low, too. A little is left to rounding.
    low += !(100 * (*golden - *record->first_accuracy) <
             file.thresholds.degraded_accuracy - 1e-4);
  }
  return counted_rate(low, evaluated);
}

TrialGroup count_group(const std::string& name, const Group& group,
                       const CampaignFile& file) {
  TrialGroup found{.name = name, .trials = std::ssize(group)};
  int64_t harm = 0;
  for (const auto& [record, harmed, top, sign] : group) {
    const auto outcome = static_cast<size_t>(record->outcome);
    harm += harmed;
    found.harm_top_exponent += harmed && top;
    found.harm_sign_only += harmed && sign && !top;
    found.outcomes[outcome] += 1;
    found.top_exponent[outcome] += top;
    found.sign_only[outcome] += sign && !top;
    found.seconds += record->seconds;
  }
  found.nev = counted_rate(count_if(group, is_nev), found.trials);
  found.harm = counted_rate(harm, found.trials);
  found.low_after_loading = count_low(group, file);
  found.guessed = count_if(group, is_role_guessed);
  return found;
}

template <typename Name>
std::vector<TrialGroup> groups_by(const Group& all, const CampaignFile& file, Name name) {
  std::map<std::string, Group> groups;
  for (const Member& one : all) groups[name(one)].push_back(one);
  std::vector<TrialGroup> found;
  for (const auto& [key, members] : groups) {
    found.push_back(count_group(key, members, file));
  }
  return found;
}

std::vector<TrialGroup> groups_by_bit(const Group& all, const CampaignFile& file) {
  const auto has_flips = [](const TrialRecord& record) { return !record.flips.empty(); };
  if (count_if(all, has_flips) == 0) return {};
  if (count_if(all, flips_one_bit) == std::ssize(all)) {
    return groups_by(all, file, [](const Member& one) { return bit_name(*one.record); });
  }
  return groups_by(all, file, [](const Member& one) {
    return one.top ? "with a top exponent bit" : "without one";
  });
}

// Each trial once, in their order.
Result<Records> records_of(Env& env, const Path& folder) {
  const Path path = folder / kTrialsFile;
  if (!env.info(path).ok()) return Records{};
  Records records = HOLDFAST_TRY(read_records(env, path));
  std::ranges::stable_sort(records, {}, &TrialRecord::trial);
  const auto same = [](const TrialRecord& one, const TrialRecord& other) {
    return one.trial == other.trial;
  };
  records.erase(std::unique(records.begin(), records.end(), same), records.end());
  return records;
}

Result<Group> members_of(const ReadCampaign& campaign, const HarmRule& rule) {
  Group found;
  for (const Records& part : campaign.parts) {
    for (const TrialRecord& record : part) {
      const bool harmed = HOLDFAST_TRY(is_harmed(record, campaign.file.golden, rule));
      found.push_back(member_of(record, harmed));
    }
  }
  return found;
}

// What a flip makes of a number, without where the number is.
using Change = std::pair<ElementBits, ElementBits>;

std::vector<Change> changes_of(const TrialRecord& record) {
  std::vector<Change> found;
  for (const RecordedFlip& one : record.flips) {
    found.emplace_back(one.flip.before, one.flip.after);
  }
  std::ranges::sort(found);
  return found;
}

bool same_plan(const TrialRecord& a, const TrialRecord& b, bool converted) {
  if (converted) return changes_of(a) == changes_of(b) && a.bytes == b.bytes;
  const auto same = [](const RecordedFlip& x, const RecordedFlip& y) {
    return x.flip.tensor == y.flip.tensor && x.flip.element == y.flip.element &&
           x.flip.before == y.flip.before && x.flip.after == y.flip.after;
  };
  return std::ranges::equal(a.flips, b.flips, same) && a.bytes == b.bytes;
}

using Pair = std::pair<const TrialRecord*, const TrialRecord*>;

// Adds the pairs of one part.
Result<void> match(const Records& a, const Records& b, bool converted,
                   std::vector<Pair>& pairs) {
  auto other = b.begin();
  for (const TrialRecord& one : a) {
    while (other != b.end() && other->trial < one.trial) ++other;
    if (other == b.end()) break;
    if (other->trial != one.trial) continue;
    if (!same_plan(one, *other, converted)) {
      return conflict("trial {}: the plans differ; expected campaigns with equal plans",
                      one.trial);
    }
    pairs.emplace_back(&one, &*other);
  }
  return {};
}

// Whether there is a finite state at the end of both.
bool has_ends(const Pair& pair) {
  return std::min(pair.first->outcome, pair.second->outcome) > Outcome::kNev;
}

// Whether both left the same finite numbers. Distances count if both have them.
bool has_equal_bits(const Pair& pair) {
  const auto& [a, b] = pair;
  for (const auto& number : {a->final_loss, a->final_accuracy}) {
    if (!number || !std::isfinite(*number)) return false;
  }
  const auto is_far = [](const auto& one) { return !std::isfinite(one.second); };
  if (a->distance && std::ranges::any_of(*a->distance, is_far)) return false;
  return a->outcome == b->outcome && a->final_loss == b->final_loss &&
         a->final_accuracy == b->final_accuracy &&
         (!a->distance || !b->distance || a->distance == b->distance);
}

void count_pair(const Pair& pair, bool a, bool b, PairedAnalysis& found) {
  (a && b ? found.harm.both
   : a    ? found.harm.only_a
   : b    ? found.harm.only_b
          : found.harm.neither) += 1;
  found.equal += pair.first->outcome == pair.second->outcome;
  found.timed_out_once += has_timed_out(*pair.first) != has_timed_out(*pair.second);
  found.nev_once += is_nev(*pair.first) != is_nev(*pair.second);
  found.without_end += !has_ends(pair);
  found.equal_bits += has_ends(pair) && has_equal_bits(pair);
}

double log_ratio(double a, double b) { return a == b ? 0 : std::log10(a / b); }

std::vector<DistancePairs> compare_distances(const std::vector<Pair>& pairs) {
  std::map<std::string, std::vector<double>> ratios;
  for (const Pair& pair : pairs) {
    const auto& [a, b] = pair;
    if (!a->distance || !b->distance || !has_ends(pair)) continue;
    for (const auto& [tensor, of_a] : *a->distance) {
      const auto of_b = b->distance->find(tensor);
      if (of_b == b->distance->end()) continue;
      if (!std::isfinite(of_a) || !std::isfinite(of_b->second)) continue;
      ratios[tensor].push_back(log_ratio(of_a, of_b->second));
    }
  }
  std::vector<DistancePairs> found;
  std::vector<double> p_values;
  for (const auto& [tensor, values] : ratios) {
    const auto beyond = [](double ratio) { return ratio >= kDistanceMargin; };
    const int64_t above = std::ranges::count_if(values, beyond);
    const int64_t below = std::ranges::count_if(values, beyond, std::negate<>());
    p_values.push_back(binomial_tail(std::ssize(values), std::max(above, below)));
    found.push_back({.tensor = tensor,
                     .pairs = std::ssize(values),
                     .above = above,
                     .below = below,
                     .log_ratio = median_interval(values),
                     .within_p = p_values.back()});
  }
  const std::vector<double> adjusted = holm(p_values);
  for (size_t i = 0; i < found.size(); ++i) found[i].within_holm_p = adjusted[i];
  return found;
}

std::string setting_of(const CampaignFile& file, const char* name) {
  const auto& all = file.settings;
  const auto found = std::ranges::find(all, name, [](auto& one) { return one.first; });
  return found == all.end() ? "" : found->second;
}

// Fails unless the same end of a trial has the same outcome in both campaigns, which have
// the same base unless it was converted.
Result<void> check_comparable(const CampaignFile& a, const CampaignFile& b,
                              const Path& of_a, const Path& of_b,
                              bool converted = false) {
  if (a.base_digest != b.base_digest && !converted) {
    return conflict("{} and {}: have different bases; expected the same",
                    of_a.native(), of_b.native());
  }
  const auto differ = [&](const char* what, const std::string& one,
                          const std::string& other) {
    return conflict("{} and {}: have the {} \"{}\" and \"{}\"; expected the same",
                    of_a.native(), of_b.native(), what, one, other);
  };
  if (a.thresholds != b.thresholds) {
    return differ("thresholds", to_string(a.thresholds), to_string(b.thresholds));
  }
  const std::string one = setting_of(a, "checksums"), other = setting_of(b, "checksums");
  if (one != other) return differ("checksums", one, other);
  return {};
}

Result<ReadCampaign> read_parts(Env& env, std::span<const Path> folders) {
  ReadCampaign found;
  for (const Path& folder : folders) {
    const CampaignFile file = HOLDFAST_TRY(read_campaign(env, folder));
    if (found.parts.empty()) found.file = file;
    HOLDFAST_TRY(check_comparable(found.file, file, folders[0], folder));
    if (const auto why = first_difference(found.file.golden, file.golden)) {
      return conflict("{} and {}: have different golden runs, {}; expected parts of one",
                      folders[0].native(), folder.native(), *why);
    }
    found.parts.push_back(HOLDFAST_TRY(records_of(env, folder)));
  }
  return found;
}

// Fails unless the campaigns can be parts of one population.
Result<void> check_strata(const std::vector<CampaignFile>& files,
                          std::span<const Path> folders) {
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].sites == 0) {
      return invalid("{}: has no number of sites; expected a campaign that draws them",
                     folders[i].native());
    }
    HOLDFAST_TRY(check_comparable(files[0], files[i], folders[0], folders[i]));
    for (size_t j = 0; j < i; ++j) {
      if (files[j].settings != files[i].settings) continue;
      return conflict("{} and {}: are the same stratum; expected each once",
                      folders[j].native(), folders[i].native());
    }
  }
  return {};
}

}  // namespace

double CountedRate::rate() const {
  return total == 0 ? 0 : static_cast<double>(count) / static_cast<double>(total);
}

CountedRate counted_rate(int64_t count, int64_t total) {
  return {count, total, wilson_interval(count, total)};
}

Result<CampaignAnalysis> analyse_campaign(Env& env, std::span<const Path> parts,
                                          const HarmRule& rule) {
  const ReadCampaign campaign = HOLDFAST_TRY(read_parts(env, parts));
  const Group all = HOLDFAST_TRY(members_of(campaign, rule).within(parts[0].native()));
  CampaignAnalysis analysis{.file = campaign.file, .rule = rule};
  const CampaignFile& file = analysis.file;
  analysis.all = count_group("all", all, file);
  analysis.by_bit = groups_by_bit(all, file);
  analysis.by_role = groups_by(all, file, [](const Member& one) {
    return common_name(*one.record, [](const RecordedFlip& flip) {
      return std::string(name_of(flip.role));
    });
  });
  analysis.by_layer = groups_by(all, file, [](const Member& one) {
    return common_name(*one.record, [](const RecordedFlip& flip) { return flip.layer; });
  });
  return analysis;
}

Result<PairedAnalysis> analyse_pairs(Env& env, const PairedFolders& folders) {
  if (folders.a.size() != folders.b.size() || folders.a.empty()) {
    return invalid("parts: {} and {}; expected as many of both campaigns",
                   folders.a.size(), folders.b.size());
  }
  const ReadCampaign a = HOLDFAST_TRY(read_parts(env, folders.a));
  const ReadCampaign b = HOLDFAST_TRY(read_parts(env, folders.b));
  const Path &of_a = folders.a[0], &of_b = folders.b[0];
  HOLDFAST_TRY(check_comparable(a.file, b.file, of_a, of_b, folders.converted));
  std::vector<Pair> pairs;
  for (size_t i = 0; i < a.parts.size(); ++i) {
    HOLDFAST_TRY(match(a.parts[i], b.parts[i], folders.converted, pairs)
                     .within(fmt::format("{} and {}", folders.a[i].native(),
                                         folders.b[i].native())));
  }
  if (pairs.empty()) {
    return not_found("{} and {}: have no trial in common; expected some",
                     of_a.native(), of_b.native());
  }
  PairedAnalysis found{.rule = folders.rule,
                       .deadline_a = a.file.deadline,
                       .deadline_b = b.file.deadline};
  for (const Pair& pair : pairs) {
    const bool of_a_harmed = HOLDFAST_TRY(
        is_harmed(*pair.first, a.file.golden, folders.rule).within(of_a.native()));
    const bool of_b_harmed = HOLDFAST_TRY(
        is_harmed(*pair.second, b.file.golden, folders.rule).within(of_b.native()));
    count_pair(pair, of_a_harmed, of_b_harmed, found);
  }
  found.difference = static_cast<double>(found.harm.only_a - found.harm.only_b) /
                     static_cast<double>(found.harm.total());
  found.interval = paired_difference(found.harm);
  found.p = mcnemar_p(found.harm);
  found.same_golden = !first_difference(a.file.golden, b.file.golden);
  found.distances = compare_distances(pairs);
  return found;
}

Result<StrataAnalysis> analyse_strata(Env& env, std::span<const Path> folders,
                                      const HarmRule& rule) {
  StrataAnalysis found{.rule = rule};
  std::vector<CampaignFile> files;
  for (const Path& folder : folders) {
    files.push_back(HOLDFAST_TRY(read_campaign(env, folder)));
  }
  HOLDFAST_TRY(check_strata(files, folders));
  std::vector<Stratum> harm, nev;
  for (size_t i = 0; i < files.size(); ++i) {
    const Records records = HOLDFAST_TRY(records_of(env, folders[i]));
    const auto weight = static_cast<double>(files[i].sites);
    const int64_t total = std::ssize(records);
    int64_t harmed = 0;
    for (const TrialRecord& record : records) {
      harmed += HOLDFAST_TRY(
          is_harmed(record, files[i].golden, rule).within(folders[i].native()));
    }
    harm.push_back({weight, harmed, total});
    nev.push_back({weight, std::ranges::count_if(records, is_nev), total});
    found.trials += total;
  }
  found.harm = stratified_rate(harm);
  found.nev = stratified_rate(nev);
  return found;
}

}  // namespace holdfast
