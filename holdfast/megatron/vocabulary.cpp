#include "holdfast/megatron/vocabulary.h"

#include <algorithm>

#include "holdfast/megatron/objects.h"

namespace holdfast::megatron {
namespace {

constexpr int64_t kDefaultMultiple = 128;
constexpr int64_t kMostRows = int64_t{1} << 40;

int64_t rounded_up(int64_t number, int64_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

}  // namespace

Result<PaddedRows> pad_rows(const Object& objects, int64_t rows, int64_t tp,
                            int64_t asked) {
  const Object none;
  const Object* found = find_key(objects, "args");
  const Object& args = found == nullptr ? none : *found;
  const int64_t by =
      integer_at(args, "make_vocab_size_divisible_by").value_or(kDefaultMultiple);
  if (by <= 0 || by > kMostRows / tp || rows > kMostRows) {
    return invalid("has {} rows, padded to a multiple of {} x {}; expected less", rows, by,
                   tp);
  }
  // The number of words is from `fewest` to `most`.
  int64_t fewest = asked, most = asked;
  const auto told = integer_at(args, "vocab_size");
  if (asked == 0) {
    const auto ranks = integer_at(args, "tensor_model_parallel_size");
    const bool bounded = ranks && *ranks > 0 && *ranks <= rows / by;
    fewest = bounded ? rows - by * *ranks + 1 : 1;
    most = rows;
    if (told && *told >= fewest && *told <= rows) {
      fewest = *told;
      most = std::min(*told + 1, rows);
    }
  } else if (asked < 0 || asked > rows) {
    return invalid("has {} rows; expected at least the {} words of --vocabulary", rows,
                   asked);
  } else if (told && *told <= rows && asked < *told) {
    // The rows of the other words would be lost.
    return invalid("has {} words by args.vocab_size; expected at least these, not the {} "
                   "of --vocabulary",
                   *told, asked);
  }
  const PaddedRows padded{
      .words = most, .before = rows, .after = rounded_up(most, by * tp)};
  const bool certain = rounded_up(fewest, by * tp) == padded.after;
  const bool known = asked != 0 || most - fewest <= 1;
  if (certain && (known || padded.after <= rows)) return padded;
  return invalid(
      "has {} rows with padding, and args do not tell how many are words, but tp={} pads "
      "them in another way; expected --vocabulary WORDS",
      rows, tp);
}

}  // namespace holdfast::megatron
