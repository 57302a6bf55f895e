// Bindings of statistics/, and of what campaign/ counts as what: names, types, docs,
// and the checks that the library leaves to its callers.
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

using Ends = std::pair<double, double>;
using Values = std::vector<double>;

// Exact tests add up a chance for each of so many trials.
constexpr int64_t kMostTrials = 10'000'000;

double checked_part(double part, const char* what) {
  if (part > 0 && part < 1) return part;
  throw Raised(invalid("{}: is {}; expected a number between 0 and 1", what, part));
}

void check_counts(std::initializer_list<int64_t> parts, int64_t total) {
  const auto outside = [](int64_t n) { return n < 0 || n > kMostTrials; };
  if (outside(total) || std::ranges::any_of(parts, outside)) {
    throw Raised(invalid("counts: one is below 0 or above {}; expected numbers of trials",
                         kMostTrials));
  }
  for (const int64_t part : parts) {
    if (part <= total) continue;
    throw Raised(invalid("counts: {} of {}; expected no more hits than trials", part, total));
  }
}

RateCounts checked_rates(int64_t count_a, int64_t total_a, int64_t count_b,
                         int64_t total_b) {
  check_counts({count_a}, total_a);
  check_counts({count_b}, total_b);
  return {count_a, total_a, count_b, total_b};
}

PairCounts checked_pairs(int64_t both, int64_t only_a, int64_t only_b,
                         int64_t neither) {
  check_counts({both, only_a, only_b, neither}, kMostTrials);
  return {both, only_a, only_b, neither};
}

Values checked_values(Values values) {
  if (values.empty()) throw Raised(invalid("values: are none; expected at least one"));
  if (std::ranges::any_of(values, [](double value) { return std::isnan(value); })) {
    throw Raised(invalid("values: one is NaN; expected numbers"));
  }
  return values;
}

Ends ends(const Interval& interval) { return {interval.low, interval.high}; }

void bind_rates(nb::module_& m) {
  m.def(
      "wilson_interval",
      [](int64_t count, int64_t total, double confidence) {
        check_counts({count}, total);
        return ends(wilson_interval(count, total, checked_part(confidence, "confidence")));
      },
      nb::arg("count"), nb::arg("total"), nb::arg("confidence") = kUsualConfidence,
      "Wilson's interval of a rate that was seen `count` times in `total`.");
  m.def(
      "rate_difference",
      [](int64_t count_a, int64_t total_a, int64_t count_b, int64_t total_b,
         double confidence) {
        return ends(rate_difference(checked_rates(count_a, total_a, count_b, total_b),
                                    checked_part(confidence, "confidence")));
      },
      nb::arg("count_a"), nb::arg("total_a"), nb::arg("count_b"), nb::arg("total_b"),
      nb::arg("confidence") = kUsualConfidence,
      "Newcombe's interval of the rate in A minus that in B, of independent trials.");
  m.def(
      "fisher_p",
      [](int64_t count_a, int64_t total_a, int64_t count_b, int64_t total_b) {
        return fisher_p(checked_rates(count_a, total_a, count_b, total_b));
      },
      nb::arg("count_a"), nb::arg("total_a"), nb::arg("count_b"), nb::arg("total_b"),
      "The two-sided p of Fisher's exact test that A and B have the same rate.");
  m.def(
      "paired_difference",
      [](int64_t both, int64_t only_a, int64_t only_b, int64_t neither,
         double confidence) {
        return ends(paired_difference(checked_pairs(both, only_a, only_b, neither),
                                      checked_part(confidence, "confidence")));
      },
      nb::arg("both"), nb::arg("only_a"), nb::arg("only_b"), nb::arg("neither"),
      nb::arg("confidence") = kUsualConfidence,
      "Newcombe's interval of the rate in A minus that in B, over the same trials.");
  m.def(
      "mcnemar_p",
      [](int64_t only_a, int64_t only_b) {
        return mcnemar_p(checked_pairs(0, only_a, only_b, 0));
      },
      nb::arg("only_a"), nb::arg("only_b"),
      "The two-sided p of McNemar's exact test that A and B have the same rate.");
}

void bind_values(nb::module_& m) {
  m.def(
      "quantile_interval",
      [](Values values, double part, double confidence) {
        const QuantileInterval found = quantile_interval(
            checked_values(std::move(values)), checked_part(part, "part"),
            checked_part(confidence, "confidence"));
        return std::tuple(found.value, found.interval.low, found.interval.high,
                          found.covers);
      },
      nb::arg("values"), nb::arg("part") = 0.5,
      nb::arg("confidence") = kUsualConfidence,
      "The value that `part` of all such values do not exceed, the ends of its interval\n"
      "by order statistics, and the chance that such an interval contains the truth.\n"
      "With too few values the ends are the least and the greatest, and the chance is\n"
      "below the confidence.");
  m.def(
      "mean_interval",
      [](Values values, double confidence) {
        const MeanInterval found = mean_interval(
            checked_values(std::move(values)), checked_part(confidence, "confidence"));
        return Ends(found.mean, found.half);
      },
      nb::arg("values"), nb::arg("confidence") = kUsualConfidence,
      "The mean and half of Student's interval; infinite if there is one value.");
  m.def(
      "holm",
      [](Values p_values) {
        if (!p_values.empty()) p_values = checked_values(std::move(p_values));
        return holm(p_values);
      },
      nb::arg("p_values"),
      "The p-values, corrected by Holm for their number, in the same order.");
}

}  // namespace

void bind_statistics(nb::module_& m) {
  bind_rates(m);
  bind_values(m);
  m.def(
      "binomial_tail",
      [](int64_t total, int64_t most, double rate) {
        check_counts({}, total);
        return binomial_tail(total, most, checked_part(rate, "rate"));
      },
      nb::arg("total"), nb::arg("most"), nb::arg("rate") = 0.5,
      "The chance of at most so many hits in `total` trials.");
  m.attr("distance_margin") = kDistanceMargin;
  m.def(
      "trial_outcomes",
      [] {
        std::vector<std::pair<std::string_view, bool>> found;
        for (const Outcome one : kAllOutcomes) found.emplace_back(name_of(one), is_harm(one));
        return found;
      },
      "The outcomes of a campaign's trials, the worst first, and whether each is harm.");
}

}  // namespace holdfast::python
