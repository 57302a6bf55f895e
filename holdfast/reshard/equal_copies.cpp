// Compares the copies that ranks have of the same box.
#include <algorithm>

#include "holdfast/base/json_text.h"
#include "holdfast/reshard/reshard_internal.h"

namespace holdfast {
namespace {

constexpr int64_t kWindow = int64_t{1} << 20;

// The same contents, in which only copy number `copy` of each box is there.
Result<Contents> only_copy(const Contents& contents, PieceId copy) {
  const Layout& layout = contents.collection.layout();
  const auto tensors = contents.collection.tensors();
  const auto holders = layout.holders();
  std::vector<Tensor> own(tensors.begin(), tensors.end());
  LayoutBuilder builder(own, {holders.begin(), holders.end()});
  for (TensorId t = 0; t < own.size(); ++t) {
    for (const Slice& slice : layout.slices(t)) {
      const PieceId piece = slice.first + copy;
      if (piece >= slice.last) continue;
      builder.add(t, slice.box, layout.holder(piece),
                  layout.map(piece, bytes_of(own[t].dtype)));
    }
  }
  Contents reduced = contents;
  Layout made = HOLDFAST_TRY(std::move(builder).build());
  reduced.collection =
      HOLDFAST_TRY(Collection::create(std::move(own), std::move(made)));
  return reduced;
}

Result<void> compare_box(const Contents& a, const Contents& b, TensorId tensor,
                         const Box& box, Counter& counter) {
  const Tensor& of = a.collection.tensor(tensor);
  const int64_t bytes = box.elements() * bytes_of(of.dtype);
  Bytes left(static_cast<size_t>(std::min(kWindow, bytes))), right = left;
  for (int64_t at = 0; at < bytes; at += kWindow) {
    const auto count = static_cast<size_t>(std::min(kWindow, bytes - at));
    HOLDFAST_TRY(counter.add(static_cast<int64_t>(2 * count)));
    HOLDFAST_TRY(read_stream(a, tensor, box, at, ByteSpan(left).first(count)));
    HOLDFAST_TRY(read_stream(b, tensor, box, at, ByteSpan(right).first(count)));
    if (std::equal(left.begin(), left.begin() + static_cast<ptrdiff_t>(count),
                   right.begin())) {
      continue;
    }
    return invalid(
        "{}: two ranks have other values of its box {}; expected equal copies",
        shown(of.name), to_string(box));
  }
  return {};
}

}  // namespace

Result<void> check_replicas(const Contents& contents, Counter& counter) {
  const Layout& layout = contents.collection.layout();
  PieceId most = 1;
  for (TensorId t = 0; t < layout.tensor_count(); ++t) {
    for (const Slice& slice : layout.slices(t)) {
      most = std::max(most, slice.last - slice.first);
    }
  }
  const Contents first = HOLDFAST_TRY(only_copy(contents, 0));
  for (PieceId copy = 1; copy < most; ++copy) {
    const Contents other = HOLDFAST_TRY(only_copy(contents, copy));
    for (TensorId t = 0; t < layout.tensor_count(); ++t) {
      for (const Slice& slice : layout.slices(t)) {
        if (slice.first + copy >= slice.last) continue;
        HOLDFAST_TRY(compare_box(first, other, t, slice.box, counter));
      }
    }
  }
  return {};
}

}  // namespace holdfast
