#include "holdfast/plan/assignment.h"

#include "holdfast/base/result.h"

namespace holdfast {
namespace {

constexpr Int128 kInfinity = Int128{1} << 126;

// Adds rows one by one. Each row grows an alternating tree of edges without slack until
// the tree reaches a free column. For all rows and columns the prices keep weight[r][c]
// <= row_price[r] + column_price[c], with equality for the assigned pairs. Row and
// column 0 are sentinels.
class Hungarian {
 public:
  explicit Hungarian(const std::vector<std::vector<Int128>>& weight)
      : weight_(weight),
        columns_(weight.front().size()),
        row_price_(weight.size() + 1),
        column_price_(columns_ + 1),
        row_of_(columns_ + 1) {}

  std::vector<size_t> run() {
    for (size_t row = 1; row <= weight_.size(); ++row) add(row);
    return row_of_;
  }

 private:
  Int128 slack(size_t row, size_t column) const {
    return row_price_[row] + column_price_[column] - weight_[row - 1][column - 1];
  }

  void add(size_t row) {
    std::vector<Int128> least(columns_ + 1, kInfinity);
    std::vector<size_t> came_from(columns_ + 1);
    std::vector<char> in_tree(columns_ + 1);
    row_of_[0] = row;
    size_t column = 0;
    do {
      in_tree[column] = 1;
      const size_t current = row_of_[column];
      size_t next = 0;
      Int128 delta = kInfinity;
      for (size_t c = 1; c <= columns_; ++c) {
        if (in_tree[c]) continue;
        const Int128 gap = slack(current, c);
        if (gap < least[c]) least[c] = gap, came_from[c] = column;
        if (least[c] < delta) delta = least[c], next = c;
      }
      for (size_t c = 0; c <= columns_; ++c) {
        if (in_tree[c]) {
          row_price_[row_of_[c]] -= delta;
          column_price_[c] += delta;
        } else {
          least[c] -= delta;
        }
      }
      column = next;
    } while (row_of_[column] != 0);
    for (; column != 0; column = came_from[column]) {
      row_of_[column] = row_of_[came_from[column]];
    }
  }

  const std::vector<std::vector<Int128>>& weight_;
  size_t columns_;
  std::vector<Int128> row_price_, column_price_;
  std::vector<size_t> row_of_;  // by column; 0 if the column is free
};

}  // namespace

Assignment assign(const std::vector<std::vector<Int128>>& weight) {
  Assignment result;
  if (weight.empty()) return result;
  HOLDFAST_CHECK(weight.size() <= weight.front().size(), "{} rows for {} columns",
                 weight.size(), weight.front().size());
  const std::vector<size_t> row_of = Hungarian(weight).run();
  result.column_of_row.resize(weight.size());
  for (size_t c = 1; c < row_of.size(); ++c) {
    if (row_of[c] == 0) continue;
    result.column_of_row[row_of[c] - 1] = static_cast<uint32_t>(c - 1);
    result.weight += weight[row_of[c] - 1][c - 1];
  }
  return result;
}

}  // namespace holdfast
