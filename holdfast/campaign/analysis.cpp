#include "holdfast/campaign/analysis.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "holdfast/corruption/sites.h"

namespace holdfast {
namespace {

using Records = std::vector<TrialRecord>;

CountedRate counted(int64_t count, int64_t total) {
  return {count, total, wilson_interval(count, total)};
}

template <typename Test>
CountedRate count_of(const std::vector<const TrialRecord*>& records, Test test) {
  const auto count =
      std::ranges::count_if(records, [&](const TrialRecord* r) { return test(*r); });
  return counted(count, std::ssize(records));
}

bool is_nev(const TrialRecord& record) { return record.outcome == Outcome::kNev; }
bool has_timed_out(const TrialRecord& record) {
  return record.outcome == Outcome::kTimedOut;
}
bool is_harmed(const TrialRecord& record) { return is_harm(record.outcome); }

// The name that all flips of a trial have in common, or "several".
template <typename Name>
std::string common_name(const TrialRecord& record, Name name) {
  if (record.flips.empty()) return "none";
  const std::string first = name(record.flips[0]);
  const bool all = std::ranges::all_of(
      record.flips, [&](const RecordedFlip& flip) { return name(flip) == first; });
  return all ? first : "several";
}

bool flips_top_exponent(const RecordedFlip& recorded) {
  const auto tops =
      chosen_bits(recorded.flip.dtype, {.field = BitChoice::Field::kTopExponent});
  return std::ranges::any_of(set_bits(recorded.flip.mask()), [&](int bit) {
    return std::ranges::count(tops, bit) > 0;
  });
}

bool flips_one_bit(const TrialRecord& record) {
  return record.flips.size() == 1 && set_bits(record.flips[0].flip.mask()).size() == 1;
}

// "F32 bit 30"; the number has two digits, so that names sort by it.
std::string bit_name(const TrialRecord& record) {
  const PlannedFlip& flip = record.flips[0].flip;
  return fmt::format("{} bit {:2}", name_of(flip.dtype), set_bits(flip.mask())[0]);
}

std::string top_bit_name(const TrialRecord& record) {
  const bool top = std::ranges::any_of(record.flips, flips_top_exponent);
  return top ? "with a top exponent bit" : "without one";
}

bool is_role_guessed(const TrialRecord* record) {
  return std::ranges::any_of(record->flips, &RecordedFlip::guessed);
}

template <typename Name>
std::vector<TrialGroup> groups_by(const Records& records, Name name) {
  std::map<std::string, std::vector<const TrialRecord*>> groups;
  for (const TrialRecord& record : records) groups[name(record)].push_back(&record);
  std::vector<TrialGroup> found;
  for (const auto& [key, members] : groups) {
    found.push_back({key, count_of(members, is_nev), count_of(members, is_harmed),
                     std::ranges::count_if(members, is_role_guessed)});
  }
  return found;
}

std::vector<TrialGroup> groups_by_bit(const Records& records) {
  const bool has_flips = std::ranges::any_of(
      records, [](const TrialRecord& record) { return !record.flips.empty(); });
  if (!has_flips) return {};
  return std::ranges::all_of(records, flips_one_bit)
             ? groups_by(records, bit_name)
             : groups_by(records, top_bit_name);
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

std::vector<const TrialRecord*> pointers(const Records& records) {
  std::vector<const TrialRecord*> found;
  for (const TrialRecord& record : records) found.push_back(&record);
  return found;
}

void add_outcomes(const Records& records, CampaignAnalysis& analysis) {
  const auto all = pointers(records);
  for (const Outcome outcome : kAllOutcomes) {
    const auto has = [&](const TrialRecord& r) { return r.outcome == outcome; };
    analysis.outcomes.push_back({outcome, count_of(all, has)});
  }
  analysis.harm = count_of(all, is_harmed);
  const auto golden = analysis.file.golden.after_loading("accuracy");
  const double points = analysis.file.thresholds.degraded_accuracy;
  if (!golden) return;
  auto evaluated = all;
  std::erase_if(evaluated, [](const TrialRecord* r) { return !r->first_accuracy; });
  analysis.low_after_loading = count_of(evaluated, [&](const TrialRecord& record) {
    // An accuracy that is not a number is low, too.
    return !(100 * (*golden - *record.first_accuracy) < points - 1e-4);
  });
}

bool same_plan(const TrialRecord& a, const TrialRecord& b) {
  const auto same = [](const RecordedFlip& x, const RecordedFlip& y) {
    return x.flip.tensor == y.flip.tensor && x.flip.element == y.flip.element &&
           x.flip.before == y.flip.before && x.flip.after == y.flip.after;
  };
  return std::ranges::equal(a.flips, b.flips, same) && a.bytes == b.bytes;
}

using Pair = std::pair<const TrialRecord*, const TrialRecord*>;

Result<std::vector<Pair>> match(const Records& a, const Records& b) {
  std::vector<Pair> pairs;
  auto other = b.begin();
  for (const TrialRecord& one : a) {
    while (other != b.end() && other->trial < one.trial) ++other;
    if (other == b.end()) break;
    if (other->trial != one.trial) continue;
    if (!same_plan(one, *other)) {
      return conflict("trial {}: the plans differ; expected campaigns with equal plans",
                      one.trial);
    }
    pairs.emplace_back(&one, &*other);
  }
  return pairs;
}

void count_pair(const Pair& pair, PairedAnalysis& found) {
  const bool a = is_harmed(*pair.first), b = is_harmed(*pair.second);
  (a && b ? found.harm.both
   : a    ? found.harm.only_a
   : b    ? found.harm.only_b
          : found.harm.neither) += 1;
  found.equal += pair.first->outcome == pair.second->outcome;
  found.timed_out_once += has_timed_out(*pair.first) != has_timed_out(*pair.second);
}

double log_ratio(double a, double b) { return a == b ? 0 : std::log10(a / b); }

std::vector<DistancePairs> compare_distances(const std::vector<Pair>& pairs) {
  std::map<std::string, std::vector<double>> ratios;
  for (const auto& [a, b] : pairs) {
    if (!a->distance || !b->distance || is_nev(*a) || is_nev(*b)) continue;
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
    p_values.push_back(median_within_p(values, kDistanceMargin));
    found.push_back({.tensor = tensor,
                     .pairs = std::ssize(values),
                     .log_ratio = median_interval(values),
                     .within_p = p_values.back()});
  }
  const std::vector<double> adjusted = holm(p_values);
  for (size_t i = 0; i < found.size(); ++i) found[i].within_holm_p = adjusted[i];
  return found;
}

std::string setting_of(const CampaignFile& file, const char* name) {
  for (const auto& [key, value] : file.settings) {
    if (key == name) return value;
  }
  return "";
}

// Fails unless the same end of a trial has the same outcome in both campaigns.
Result<void> check_comparable(const CampaignFile& a, const CampaignFile& b,
                              const Path& of_a, const Path& of_b) {
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

// Fails unless the campaigns can be parts of one population.
Result<void> check_strata(const std::vector<CampaignFile>& files,
                          std::span<const Path> folders) {
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].sites == 0) {
      return invalid("{}: has no number of sites; expected a campaign that draws them",
                     folders[i].native());
    }
    if (files[i].base_digest != files[0].base_digest) {
      return conflict("{} and {}: have different bases; expected parts of one",
                      folders[0].native(), folders[i].native());
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

Result<CampaignAnalysis> analyse_campaign(Env& env, const Path& folder) {
  CampaignAnalysis analysis{.file = HOLDFAST_TRY(read_campaign(env, folder))};
  const Records records = HOLDFAST_TRY(records_of(env, folder));
  analysis.trials = std::ssize(records);
  add_outcomes(records, analysis);
  analysis.by_bit = groups_by_bit(records);
  analysis.by_role = groups_by(records, [](const TrialRecord& record) {
    return common_name(record, [](const RecordedFlip& flip) {
      return std::string(name_of(flip.role));
    });
  });
  analysis.by_layer = groups_by(records, [](const TrialRecord& record) {
    return common_name(record, [](const RecordedFlip& flip) { return flip.layer; });
  });
  return analysis;
}

Result<PairedAnalysis> analyse_pairs(Env& env, const Path& a, const Path& b) {
  const CampaignFile file_a = HOLDFAST_TRY(read_campaign(env, a));
  const CampaignFile file_b = HOLDFAST_TRY(read_campaign(env, b));
  if (file_a.base_digest != file_b.base_digest) {
    return conflict("{} and {}: have different bases; expected the same for pairs",
                    a.native(), b.native());
  }
  HOLDFAST_TRY(check_comparable(file_a, file_b, a, b));
  const Records of_a = HOLDFAST_TRY(records_of(env, a));
  const Records of_b = HOLDFAST_TRY(records_of(env, b));
  const std::vector<Pair> pairs = HOLDFAST_TRY(match(of_a, of_b));
  if (pairs.empty()) {
    return not_found("{} and {}: have no trial in common; expected some", a.native(),
                     b.native());
  }
  PairedAnalysis found{.deadline_a = file_a.deadline, .deadline_b = file_b.deadline};
  for (const Pair& pair : pairs) count_pair(pair, found);
  found.difference = static_cast<double>(found.harm.only_a - found.harm.only_b) /
                     static_cast<double>(found.harm.total());
  found.interval = paired_difference(found.harm);
  found.p = mcnemar_p(found.harm);
  found.distances = compare_distances(pairs);
  return found;
}

Result<StrataAnalysis> analyse_strata(Env& env, std::span<const Path> folders) {
  StrataAnalysis found;
  std::vector<CampaignFile> files;
  for (const Path& folder : folders) {
    files.push_back(HOLDFAST_TRY(read_campaign(env, folder)));
  }
  HOLDFAST_TRY(check_strata(files, folders));
  std::vector<Stratum> harm, nev;
  for (size_t i = 0; i < files.size(); ++i) {
    const Records records = HOLDFAST_TRY(records_of(env, folders[i]));
    const auto all = pointers(records);
    const auto weight = static_cast<double>(files[i].sites);
    harm.push_back({weight, count_of(all, is_harmed).count, std::ssize(records)});
    nev.push_back({weight, count_of(all, is_nev).count, std::ssize(records)});
    found.trials += std::ssize(records);
  }
  found.harm = stratified_rate(harm);
  found.nev = stratified_rate(nev);
  return found;
}

}  // namespace holdfast
