// Tensors plus a layout: the state of a job and where it lives.
//
// This is what the elastic-training literature calls a parallelizable tensor collection
// (PTC, from Tenplex, earlier Scalai). Its three functions map onto ours:
//
//   slicing       a tensor's boxes              Layout::slices (tensor parallelism, ZeRO)
//   partitioning  boxes to positions of the     the layout builders (parallel.h), which
//                 parallel configuration        know pipeline stages and data parallelism
//   allocation    positions to devices          each piece's holder; place() chooses it
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
  // Fails on an empty or repeated name (ties count), on a layout that speaks of another
  // number of tensors, and on 2^61 bytes or more with all copies: sums over collections
  // need no further checks.
  static Result<Collection> create(std::vector<Tensor> tensors, Layout layout);

  std::span<const Tensor> tensors() const { return tensors_; }
  const Tensor& tensor(TensorId id) const { return tensors_[id]; }
  const Layout& layout() const { return layout_; }

  // By name or tie.
  std::optional<TensorId> find(std::string_view name) const;
  // The first box of the tensor that nobody holds.
  std::optional<Box> uncovered(TensorId id) const;
  // Fails with kNotFound, naming tensor and box, if anything has no holder.
  Result<void> check_covered() const;

  int64_t bytes() const;  // of the state, each element counted once
  // Bytes that each holder has, in order of holder.
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
