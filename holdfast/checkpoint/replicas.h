// Whether ranks that should hold the same bytes still do: a part of them at each save, all of
// them within kTurns saves.
//
// Replicas are written once, by whichever rank has time, so a checkpoint of replicas that have
// parted (local SGD, a rank that missed an update) would be a mixture of ranks. At each save
// every rank takes a digest of another eighth of what it has in common with others, from the
// tensors themselves, in the background and before the next update; the digests go to rank 0
// with the votes (commit.h), which lets no save pass whose digests differ. Boxes that the same
// ranks hold have one digest together: which tensor it is that differs is looked for then,
// when all ranks wait (LayoutAgreement::differing). What is small is compared as a whole at
// each save.
//
// An update does not wait for a digest: what was not taken in time is compared eight saves
// later. Tensors that are copied inside save() may change right after it: they are read there,
// if they are few, and else left out.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/shard/shard_writer.h"

namespace holdfast {

// What a rank holds in common with others: the same for all saves of a state.
class Replicas {
 public:
  static constexpr int64_t kPart = int64_t{256} << 10;  // bytes that are read at once
  static constexpr int64_t kTurns = 8;
  static constexpr int64_t kSmall = int64_t{4} << 20;  // bytes of a group
  static constexpr int64_t kAtOnce = int64_t{2}
                                     << 20;  // bytes that save() reads, at most

  explicit Replicas(const LocalState& state);

  struct Box {
    LocalPiece piece;        // what is at_once is read inside save()
    size_t group = 0;        // of the ranks that hold it
    int64_t first_part = 0;  // its parts are numbered within the group
    int64_t turns = kTurns;  // in which it is read once; 1 in a small group

    int64_t bytes_a_turn() const { return piece.bytes() / turns; }
  };
  std::span<const Box> boxes() const { return boxes_; }
  // What the groups are called on all ranks, as far as ranks read the same boxes of them; a
  // group that this rank reads nothing of has no name.
  std::span<const std::string> groups() const { return groups_; }
  // Bytes of one turn, about.
  int64_t bytes_a_turn() const;
  // The devices that hold boxes, each once.
  const std::vector<const Device*>& devices() const { return devices_; }

 private:
  void choose_turns(std::span<const int64_t> bytes_of_groups);
  void name_groups(size_t count);

  std::vector<Box> boxes_;
  std::vector<std::string> groups_;
  std::vector<const Device*> devices_;
};

// The digests of one save. take() comes from a background thread, the others from any.
class ReplicaDigests {
 public:
  ReplicaDigests(std::shared_ptr<const Replicas> replicas, uint64_t turn);

  // Reads the tensors that are to be read inside save(). It comes first.
  void take_at_once();
  // Reads the others until all is read, or stop() is called. `window`, of kPart bytes at
  // least, is for what is on devices: pinned memory is faster.
  void take(ByteSpan window);
  // The tensors may change when it has returned: none is read any more, or, on a device,
  // not after what is put into the stream from now on. Waits for the part that is being
  // read. `spoilt`: some have changed already, and the digests are of no use.
  void stop(CudaStream stream, bool spoilt = false);

  // Bytes that are read, about.
  int64_t bytes() const { return replicas_->bytes_a_turn(); }

  // For find_difference(); empty if not all was taken, and then nothing more is.
  std::string text();

 private:
  // Both are false if it is to stop.
  bool add(const Replicas::Box& box, ByteSpan window);
  bool add_part(const Replicas::Box& box, int64_t part, ByteSpan window);
  std::optional<Digest128> digest_on_host(const LocalPiece& piece, int64_t first,
                                          ByteSpan window);
  std::optional<Digest128> digest_on_device(const LocalPiece& piece, int64_t first,
                                            ByteSpan window);

  const std::shared_ptr<const Replicas> replicas_;
  const int64_t turn_;
  // By group, of its parts in any order: ranks may read them in different ones.
  std::vector<std::array<uint64_t, 2>> sums_;

  Mutex mutex_;
  bool stopped_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool all_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::optional<DeviceMark> read_
      HOLDFAST_GUARDED_BY(mutex_);  // the last part of a device
};

// Two ranks whose digests of the same boxes differ, of what all ranks said, by rank.
std::optional<std::pair<int, int>> find_difference(std::span<const std::string> texts);

}  // namespace holdfast
