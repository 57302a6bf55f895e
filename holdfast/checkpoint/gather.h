// One collection out of what every rank says it holds: how a job whose tensors are cut by
// its framework becomes a layout, without anybody describing the cut as a whole.
//
// Boxes of a tensor must tile it exactly: a part that no rank has, or boxes that overlap
// without being equal, are refused. Equal boxes on several ranks are replicas, and must hold
// the same bytes when they are first seen: a cut that nobody knows of (hand-written tensor
// parallelism) looks like a replica that differs.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "holdfast/base/env.h"
#include "holdfast/base/transport.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/checkpoint/local_state.h"

namespace holdfast {

// A box of a tensor as the rank that holds it describes it.
struct HeldPiece {
  Tensor tensor;
  Box box;
  ByteSpan memory;
  Map map;
  const Device* device = nullptr;  // as in LocalPiece
  bool at_once = false;            // the same
};

// Remembers what was gathered, for states that stay as they are. Of one thread.
class StateGatherer {
 public:
  // `transport` is null for one rank; it and env must outlive the gatherer.
  StateGatherer(Env& env, Transport* transport, Duration at_most);

  // Called by all ranks together, each with its own pieces; a tensor may have pieces on any
  // number of them. If no rank's description has changed, the collection is the same object
  // as before. kInvalid, on all ranks, naming tensor and ranks, for what does not tile;
  // with `compare` also for replicas that differ.
  Result<LocalState> gather(std::span<const HeldPiece> pieces, bool compare);

 private:
  Result<void> describe(std::span<const HeldPiece> pieces);
  Result<std::vector<Bytes>> all(ByteView own);
  static Result<std::shared_ptr<const Collection>> merge(
      const std::vector<Bytes>& texts);
  Result<void> compare_replicas(const LocalState& state);
  void find_tensors();
  LocalState place(std::span<const HeldPiece> pieces);

  int rank() const { return transport_ == nullptr ? 0 : transport_->rank(); }

  Env& env_;
  Transport* transport_;
  const Duration at_most_;
  std::vector<std::pair<Tensor, Box>> described_;  // in text_
  std::vector<TensorId> ids_;  // of those, in the collection; empty: to be found
  Bytes text_;
  std::string digest_;       // of the text
  std::vector<Bytes> seen_;  // digests of all ranks' descriptions
  std::shared_ptr<const Collection> collection_;
};

}  // namespace holdfast
