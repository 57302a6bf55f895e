#include "holdfast/plan/assignment.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

namespace holdfast::assignment_test {
namespace {

Int128 best_by_trying_all(const std::vector<std::vector<Int128>>& weight) {
  std::vector<size_t> columns(weight.front().size());
  std::iota(columns.begin(), columns.end(), 0);
  Int128 best = -(Int128{1} << 100);
  do {
    Int128 sum = 0;
    for (size_t r = 0; r < weight.size(); ++r) sum += weight[r][columns[r]];
    best = std::max(best, sum);
  } while (std::next_permutation(columns.begin(), columns.end()));
  return best;
}

RC_GTEST_PROP(AssignmentTest, IsTheBestOfAllPermutations, ()) {
  const auto rows = *rc::gen::inRange<size_t>(1, 6);
  const auto columns = *rc::gen::inRange<size_t>(rows, 7);
  std::vector<std::vector<Int128>> weight(rows, std::vector<Int128>(columns));
  for (auto& row : weight) {
    for (Int128& w : row) w = Int128{*rc::gen::inRange<int64_t>(-20, 1'000)} << 64;
  }
  const Assignment found = assign(weight);
  std::vector<bool> used(columns);
  Int128 sum = 0;
  for (size_t r = 0; r < rows; ++r) {
    RC_ASSERT(!used[found.column_of_row[r]]);
    used[found.column_of_row[r]] = true;
    sum += weight[r][found.column_of_row[r]];
  }
  RC_ASSERT(sum == found.weight);
  RC_ASSERT(sum == best_by_trying_all(weight));
}

}  // namespace
}  // namespace holdfast::assignment_test
