#include "holdfast/state/collection.h"

#include "holdfast/base/int128.h"
#include "holdfast/state/box_index.h"

namespace holdfast {

Result<Collection> Collection::create(std::vector<Tensor> tensors, Layout layout) {
  if (layout.tensor_count() != tensors.size()) {
    return invalid("collection: layout of {} tensors; expected {}",
                   layout.tensor_count(), tensors.size());
  }
  Collection made(std::move(tensors), std::move(layout));
  HOLDFAST_TRY(made.check_size());
  for (TensorId t = 0; t < made.tensors_.size(); ++t) {
    std::vector<std::string> names = made.tensors_[t].aliases;
    names.push_back(made.tensors_[t].name);
    for (const std::string& name : names) {
      if (name.empty()) return invalid("collection: tensor {} has no name", t);
      if (!made.by_name_.emplace(name, t).second) {
        return invalid("collection: two tensors have the name {}", name);
      }
    }
  }
  return made;
}

Result<void> Collection::check_size() const {
  Int128 total = 0;
  for (TensorId t = 0; t < tensors_.size(); ++t) {
    total += tensors_[t].bytes();
    for (const Slice& slice : layout_.slices(t)) {
      const int64_t bytes = slice.box.elements() * bytes_of(tensors_[t].dtype);
      total += Int128{bytes} * (slice.last - slice.first);
    }
    if (total >= Int128{1} << 61) {
      return invalid("collection: 2^61 bytes or more with all replicas, at tensor {}",
                     tensors_[t].name);
    }
  }
  return {};
}

std::optional<TensorId> Collection::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

std::optional<Box> Collection::uncovered(TensorId id) const {
  return first_gap(Box::whole(tensors_[id].shape), layout_.boxes(id));
}

Result<void> Collection::check_covered() const {
  for (TensorId t = 0; t < tensors_.size(); ++t) {
    if (const auto gap = uncovered(t)) {
      return not_found("{}: box {} has no holder", tensors_[t].name, to_string(*gap));
    }
  }
  return {};
}

int64_t Collection::bytes() const {
  int64_t total = 0;
  for (const Tensor& tensor : tensors_) total += tensor.bytes();
  return total;
}

std::vector<int64_t> Collection::bytes_held() const {
  std::vector<int64_t> held(layout_.holders().size());
  for (TensorId t = 0; t < tensors_.size(); ++t) {
    const int64_t element = bytes_of(tensors_[t].dtype);
    for (const Slice& slice : layout_.slices(t)) {
      const int64_t bytes = slice.box.elements() * element;
      for (PieceId p = slice.first; p < slice.last; ++p)
        held[layout_.holder(p)] += bytes;
    }
  }
  return held;
}

}  // namespace holdfast
