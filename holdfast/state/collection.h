// A collection is tensors together with their layout: the state of a job, and which
// holder has which part of it.
//
// The literature on elastic training calls it a parallelizable tensor collection (PTC,
// from Tenplex, earlier Scalai). Its three functions correspond to ours:
//
//   slicing       a tensor's boxes           Layout::slices (tensor parallelism, ZeRO)
//   partitioning  boxes to positions of the  the layout builders of models, which know
//                 parallel configuration     pipeline stages and data parallelism
//   allocation    positions to devices       each piece's holder; place() chooses it
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "holdfast/state/layout.h"

namespace holdfast {

class Collection {
 public:
  // Fails on an empty or repeated name or alias, on a layout of another number of
  // tensors, and on 2^61 bytes or more with all replicas. So sums of bytes over a
  // collection need no further checks.
  static Result<Collection> create(std::vector<Tensor> tensors, Layout layout);

  std::span<const Tensor> tensors() const { return tensors_; }
  const Tensor& tensor(TensorId id) const { return tensors_[id]; }
  const Layout& layout() const { return layout_; }

  // The tensor that has this name or alias.
  std::optional<TensorId> find(std::string_view name) const;
  // A box of the tensor that no holder has; nullopt if every element has a holder.
  std::optional<Box> uncovered(TensorId id) const;
  // Fails with kNotFound, naming tensor and box, if a box has no holder.
  Result<void> check_covered() const;

  // The bytes of all tensors. Replicas are not counted.
  int64_t bytes() const;
  // How many bytes each holder has, by holder.
  std::vector<int64_t> bytes_held() const;

 private:
  Collection(std::vector<Tensor> tensors, Layout layout)
      : tensors_(std::move(tensors)), layout_(std::move(layout)) {}

  Result<void> check_size() const;

  std::vector<Tensor> tensors_;
  Layout layout_;
  std::unordered_map<std::string, TensorId> by_name_;
};

}  // namespace holdfast
