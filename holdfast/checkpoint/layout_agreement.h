// Makes one collection of the pieces that every rank says it holds. So a job whose
// tensors are cut by its framework gets a layout although no rank knows the cut of all
// ranks.
//
// Boxes of a tensor must tile it exactly: a box that no rank has, or boxes that overlap
// without being equal, are refused. Equal boxes on several ranks are replicas. agree()
// can compare their bytes, because a cut that the ranks do not declare (hand-written
// tensor parallelism) looks like replicas that differ. Replicas are compared when a
// rank's description is new and the caller asks for it. The comparison reads every byte
// while training waits, so a job asks for it once, when it attaches; later each save
// compares a part in the background (replica_check.h).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "holdfast/base/xxh3.h"
#include "holdfast/checkpoint/saver.h"
#include "holdfast/env/env.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

// Remembers the last collection, so that an unchanged state costs little at the next
// save. Used by one thread.
class LayoutAgreement {
 public:
  // `transport` is null for a job of one rank. `transport` and `env` must outlive this
  // object. Ranks wait `at_most` for each other.
  LayoutAgreement(Env& env, Transport* transport, Duration at_most);

  // Called by all ranks together, each with its own pieces, or with the error why it has
  // none: then agree() fails on all ranks with this error. A tensor may have pieces on
  // any number of ranks. If no rank's description has changed, the collection is the
  // same object as before. Fails with kInvalid on all ranks, naming tensor and ranks,
  // if boxes do not tile a tensor; with `compare` also if replicas differ, which is
  // checked only when a description has changed since the last call. Tensors on CUDA
  // devices are compared as they are after the work that was queued in `stream` so far.
  Result<LocalState> agree(const Result<LocalPieces>& pieces, bool compare,
                           CudaStream stream = nullptr);

  // The same, and sends rank 0's `word` to all ranks along with it, which saves a
  // message. On return `word` holds rank 0's bytes on every rank. The other ranks wait
  // for rank 0 by `longer` more than `at_most`.
  Result<LocalState> agree(const Result<LocalPieces>& pieces, bool compare,
                           Bytes& word, Duration longer, CudaStream stream = nullptr);

  // Reads every byte of the replicas and returns the tensors whose replicas differ, the
  // same list on all ranks. Called by all ranks together, with the state that agree()
  // returned.
  Result<std::vector<Differing>> differing(const LocalState& state,
                                           CudaStream stream = nullptr);

  // Makes the next agree() exchange all descriptions, also those that have not changed,
  // because a rank was replaced and knows none of them.
  void forget_ranks() { seen_.clear(); }

 private:
  Result<void> describe(const LocalPieces& pieces);
  Result<std::vector<Bytes>> all(ByteView own, Duration longer = {});
  Result<std::vector<Bytes>> exchange_digests(std::string_view own, Bytes& word,
                                              Duration longer);
  Result<std::shared_ptr<const Collection>> merge(const std::vector<Bytes>& texts);
  Result<void> compare_replicas(const LocalState& state, CudaStream stream);
  bool is_first(const Layout& layout, TensorId tensor) const;
  LocalState state_of(const LocalPieces& pieces) const;

  int rank() const { return transport_ == nullptr ? 0 : transport_->rank(); }

  Env& env_;
  Transport* transport_;
  const Duration at_most_;
  LocalPieces described_;                  // the pieces that text_ describes
  std::shared_ptr<const Collection> own_;  // the collection that text_ describes
  Bytes text_;          // this rank's description; without a transport one unused byte
  std::string digest_;  // the digest of text_
  int64_t descriptions_ = 0;
  std::vector<Bytes> seen_;  // digests of all ranks' descriptions at the last call
  std::shared_ptr<const Collection> collection_;
  std::optional<LocalState> placed_;  // the last result: described_ with collection_
};

}  // namespace holdfast
