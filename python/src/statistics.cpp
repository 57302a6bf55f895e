// Bindings of statistics/, and of what campaign/ counts as what: names, types, docs, and
// the checks that the library leaves to its callers.
#include "holdfast/statistics/statistics.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "errors.h"
#include "holdfast/campaign/analysis.h"

namespace holdfast::python {
namespace {

using Values = std::vector<double>;

// Exact tests add up a chance for each of so many trials.
constexpr int64_t kMostTrials = 10'000'000;

std::pair<double, double> ends(const Interval& interval) {
  return {interval.low, interval.high};
}

double checked_part(double part, const char* what) {
  if (part > 0 && part < 1) return part;
  throw Raised(invalid("{}: is {}; expected a number between 0 and 1", what, part));
}

int64_t checked_count(int64_t count, int64_t total = kMostTrials) {
  if (0 <= count && count <= total) return count;
  throw Raised(invalid("counts: {}; expected a number from 0 to {}", count, total));
}

RateCounts checked_rates(int64_t count_a, int64_t total_a, int64_t count_b,
                         int64_t total_b) {
  return {checked_count(count_a, checked_count(total_a)), total_a,
          checked_count(count_b, checked_count(total_b)), total_b};
}

PairCounts checked_pairs(int64_t both, int64_t only_a, int64_t only_b,
                         int64_t neither) {
  return {checked_count(both), checked_count(only_a), checked_count(only_b),
          checked_count(neither)};
}

Values checked_values(Values values) {
  if (values.empty()) throw Raised(invalid("values: are none; expected at least one"));
  if (std::ranges::any_of(values, [](double value) { return std::isnan(value); })) {
    throw Raised(invalid("values: one is NaN; expected numbers"));
  }
  return values;
}

auto quantile(Values values, double part, double confidence) {
  const QuantileInterval found = quantile_interval(
      checked_values(std::move(values)), checked_part(part, "part"),
      checked_part(confidence, "confidence"));
  return std::tuple(found.value, found.interval.low, found.interval.high, found.covers);
}

auto trial_outcomes() {
  std::vector<std::pair<std::string_view, bool>> found;
  for (const Outcome one : kAllOutcomes) found.emplace_back(name_of(one), is_harm(one));
  return found;
}

void bind_rates(nb::module_& m) {
  m.def(
      "wilson_interval",
      [](int64_t count, int64_t total, double confidence) {
        return ends(wilson_interval(checked_count(count, checked_count(total)), total,
                                    checked_part(confidence, "confidence")));
      },
      nb::arg("count"), nb::arg("total"), nb::arg("confidence") = kUsualConfidence,
      "Wilson's interval of a rate that was seen `count` times in `total`.");
  m.def(
      "rate_difference",
      [](int64_t count_a, int64_t total_a, int64_t count_b, int64_t total_b) {
        return ends(rate_difference(checked_rates(count_a, total_a, count_b, total_b)));
      },
      nb::arg("count_a"), nb::arg("total_a"), nb::arg("count_b"), nb::arg("total_b"),
      "Newcombe's 95 % interval of the rate in A minus that in B, of independent trials.");
  m.def(
      "fisher_p",
      [](int64_t count_a, int64_t total_a, int64_t count_b, int64_t total_b) {
        return fisher_p(checked_rates(count_a, total_a, count_b, total_b));
      },
      nb::arg("count_a"), nb::arg("total_a"), nb::arg("count_b"), nb::arg("total_b"),
      "The two-sided p of Fisher's exact test that A and B have the same rate.");
  m.def(
      "paired_difference",
      [](int64_t both, int64_t only_a, int64_t only_b, int64_t neither) {
        return ends(paired_difference(checked_pairs(both, only_a, only_b, neither)));
      },
      nb::arg("both"), nb::arg("only_a"), nb::arg("only_b"), nb::arg("neither"),
      "Newcombe's 95 % interval of the rate in A minus that in B, over the same trials.");
  m.def(
      "mcnemar_p",
      [](int64_t a, int64_t b) { return mcnemar_p(checked_pairs(0, a, b, 0)); },
      nb::arg("only_a"), nb::arg("only_b"),
      "The two-sided p of McNemar's exact test that A and B have the same rate.");
}

}  // namespace

void bind_statistics(nb::module_& m) {
  bind_rates(m);
  m.def("quantile_interval", &quantile, nb::arg("values"), nb::arg("part") = 0.5,
        nb::arg("confidence") = kUsualConfidence,
        "The value that `part` of all such values do not exceed, the ends of its\n"
        "interval by order statistics, and the chance that such an interval contains\n"
        "the truth. With too few values the ends are the least and the greatest, and the\n"
        "chance is below the confidence.");
  m.def(
      "mean_interval",
      [](Values values) {
        const MeanInterval found = mean_interval(checked_values(std::move(values)));
        return std::pair(found.mean, found.half);
      },
      nb::arg("values"),
      "The mean and half of Student's 95 % interval; infinite if there is one value.");
  m.def(
      "holm",
      [](const Values& p_values) {
        for (const double p : p_values) {
          if (p >= 0 && p <= 1) continue;
          throw Raised(invalid("p_values: one is {}; expected chances from 0 to 1", p));
        }
        return holm(p_values);
      },
      nb::arg("p_values"),
      "The p-values, corrected by Holm for their number, in the same order.");
  m.def(
      "binomial_tail",
      [](int64_t total, int64_t most, double rate) {
        return binomial_tail(checked_count(total), most, checked_part(rate, "rate"));
      },
      nb::arg("total"), nb::arg("most"), nb::arg("rate") = 0.5,
      "The chance of at most so many hits in `total` trials.");
  m.attr("distance_margin") = kDistanceMargin;
  m.def("trial_outcomes", &trial_outcomes,
        "The outcomes of a campaign's trials, the worst first, and whether each is harm.");
}

}  // namespace holdfast::python
