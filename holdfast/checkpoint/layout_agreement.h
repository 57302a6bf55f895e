// One collection out of what every rank says it holds: how a job whose tensors are cut by
// its framework becomes a layout, without anybody describing the cut as a whole.
//
// Boxes of a tensor must tile it exactly: a part that no rank has, or boxes that overlap
// without being equal, are refused. Equal boxes on several ranks are replicas, and must hold
// the same bytes when they are compared: a cut that nobody knows of (hand-written tensor
// parallelism) looks like a replica that differs. That is when a description is new and the
// caller asks for it. Comparing reads every byte while training waits, so a job asks when it
// attaches; at each save a part is compared in the background (replicas.h).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "holdfast/base/xxh3.h"
#include "holdfast/env/env.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

// A tensor of which ranks hold equal boxes with bytes that differ.
struct Differing {
  std::string tensor{};
  int rank = 0;  // the first that holds such a box
  int other = 0;
  bool whole = true;  // every rank that has some of the tensor has all of it
  // This rank is the first that holds its box of the tensor: all such ranks together have
  // the tensor once.
  bool first = false;
};

// Remembers what was gathered, for states that stay as they are. Of one thread.
class LayoutAgreement {
 public:
  // `transport` is null for one rank; it and env must outlive the gatherer.
  LayoutAgreement(Env& env, Transport* transport, Duration at_most);

  // Called by all ranks together, each with its own pieces; a tensor may have pieces on any
  // number of them. If no rank's description has changed, the collection is the same object
  // as before. kInvalid, on all ranks, naming tensor and ranks, for what does not tile;
  // with `compare` also for replicas that differ, in descriptions that no call has seen.
  // What is on CUDA devices is compared as it is after what was put into the stream so far.
  Result<LocalState> gather(const LocalPieces& pieces, bool compare,
                            CudaStream stream = nullptr);

  // The same, and what rank 0 has to say goes to all with it, which spares them a message.
  // Others wait so much longer for it; `word` is then rank 0's.
  Result<LocalState> gather(const LocalPieces& pieces, bool compare, Bytes& word,
                            Duration longer, CudaStream stream = nullptr);

  // The tensors whose replicas differ, the same on all ranks, by a look at every byte. Called
  // by all ranks together, with what gather() gave.
  Result<std::vector<Differing>> differing(const LocalState& state,
                                           CudaStream stream = nullptr);

  // Instead of gather(), on a rank that has failed before it: all fail, with its error.
  Error fail(const Error& why);

 private:
  Error fail(const Error& why, Bytes& word, Duration longer);
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
  LocalPieces described_;                  // in text_
  std::shared_ptr<const Collection> own_;  // the same, before it became text
  Bytes text_;                             // of one rank that is alone: not empty
  std::string digest_;                     // of the text
  int64_t descriptions_ = 0;
  std::vector<Bytes> seen_;  // digests of all ranks' descriptions
  std::shared_ptr<const Collection> collection_;
  std::optional<LocalState> placed_;  // what is described, in the collection
};

}  // namespace holdfast
