#include "holdfast/reshard/planned_reads.h"

#include <algorithm>
#include <numeric>

namespace holdfast {
namespace {

std::pair<TensorId, HolderId> goal_of(const Move& move) {
  return {move.tensor, move.to_holder};
}

}  // namespace

PlannedReads::PlannedReads(const ReshardPlan& plan)
    : plan_(plan),
      first_file_(
          static_cast<HolderId>(plan.contents->collection.layout().holders().size())),
      target_of_(plan.contents->collection.tensors().size()),
      moved_(plan.filled->layout().holders().size()) {
  for (TensorId t = 0; t < plan.filled->tensors().size(); ++t) {
    const auto of = plan.contents->collection.find(plan.filled->tensor(t).name);
    target_of_[of.value()] = t;
  }
}

int64_t PlannedReads::moved() const {
  return std::accumulate(moved_.begin(), moved_.end(), int64_t{0});
}

Result<void> PlannedReads::check_moved(int64_t file, int64_t files) const {
  int64_t moved = 0, planned = 0;
  for (auto holder = static_cast<size_t>(file); holder < moved_.size();
       holder += static_cast<size_t>(files)) {
    moved += moved_[holder];
    planned += plan_.moves->loads[first_file_ + holder].received;
  }
  if (moved == planned) return {};
  return corrupt("{} bytes were moved to file {}; expected {} by the plan", moved, file,
                 planned);
}

std::span<const Move> PlannedReads::moves_to(HolderId file, TensorId tensor) const {
  const std::pair goal(target_of_[tensor], first_file_ + file);
  const auto found = std::ranges::equal_range(plan_.moves->moves, goal, {}, goal_of);
  return {found.begin(), found.end()};
}

Result<void> PlannedReads::fill(HolderId file, TensorId tensor, const Box& box,
                                ByteSpan dense) const {
  PieceReader reader(*plan_.contents);
  const Tensor& of = plan_.contents->collection.tensor(tensor);
  const Map to = Map::dense(box, bytes_of(of.dtype));
  int64_t left = box.elements();
  for (const Move& move : moves_to(file, tensor)) {
    if (left == 0) break;
    const auto part = intersect(plan_.moves->boxes[move.box], box);
    if (!part) continue;
    HOLDFAST_TRY(reader.read(tensor, move.from, *part, to.narrowed(box, *part), dense)
                     .within(of.name));
    left -= part->elements();
  }
  if (left == 0) return {};
  return not_found("{}: no move of the plan brings {} elements of the box {}",
                   of.name, left, to_string(box));
}

Result<void> PlannedReads::read(HolderId file, TensorId tensor, const Box& box,
                                int64_t first, ByteSpan into) const {
  const int64_t element = bytes_of(plan_.contents->collection.tensor(tensor).dtype);
  HOLDFAST_TRY(read_stream_by(
      box, element, first, into, [&](const Box& part, ByteSpan dense) {
        return fill(file, tensor, part, dense);
      }));
  moved_[file] += std::ssize(into);
  return {};
}

Result<Contents> PlannedReads::whole_contents() const {
  const ReadForFile by_moves = [this](HolderId file, TensorId tensor, const Box& box,
                                      int64_t first, ByteSpan into) {
    return read(file, tensor, box, first, into);
  };
  std::vector<AssembledTensor> tensors;
  for (const Tensor& tensor : plan_.filled->tensors()) {
    const TensorId t = plan_.contents->collection.find(tensor.name).value();
    tensors.push_back(
        {.tensor = tensor,
         .parts = {part_of_box(by_moves, 0, t, tensor.dtype, Box::whole(tensor.shape))},
         .ahead = read_ahead_of(*plan_.contents, t)});
  }
  Contents made = HOLDFAST_TRY(assemble("target", std::move(tensors), Object()));
  Contents whole = *plan_.contents;
  whole.collection = std::move(made.collection);
  whole.sources = std::move(made.sources);
  whole.digests = nullptr;  // they are those of the records of the source's files
  return whole;
}

}  // namespace holdfast
