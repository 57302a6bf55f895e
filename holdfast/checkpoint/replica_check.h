// Checks that replicas still hold the same bytes: a part of the bytes at each save, all
// of them within kTurns saves.
//
// Each replicated box is written by only one of its ranks, so a checkpoint of replicas
// that have become different (local SGD, a rank that missed an update) would be a
// mixture of ranks. At each save every rank makes digests of another eighth of the
// bytes that it shares with others. It reads the tensors themselves, in the background
// and before the next update. The digests go to rank 0 with the votes (commit.h), and
// rank 0 drops a save whose digests differ. All boxes that the same ranks hold form a
// group and have one digest together. Which tensor differs is found out afterwards,
// while all ranks wait (LayoutAgreement::differing). A small group is compared
// completely at each save.
//
// An update does not wait for a digest: a part that was not read in time is compared
// eight saves later. Tensors that save() copies at once may change right after it, so
// save() reads them itself if they are few; otherwise they are not compared.
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
#include "holdfast/device/device.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/shard/shard_writer.h"

namespace holdfast {

// The boxes that a rank shares with other ranks. The same object serves all saves of a
// state.
class Replicas {
 public:
  static constexpr int64_t kPart = int64_t{256} << 10;  // bytes that one read takes
  static constexpr int64_t kTurns = 8;  // saves until all bytes have been compared
  // A group of up to so many bytes is compared completely at each save.
  static constexpr int64_t kSmall = int64_t{4} << 20;
  // The most bytes that save() itself reads, while training waits.
  static constexpr int64_t kAtOnce = int64_t{2} << 20;

  explicit Replicas(const LocalState& state);

  struct Box {
    LocalPiece piece;        // save() itself reads a piece that is marked at_once
    size_t group = 0;        // the number of the group of ranks that hold it
    int64_t first_part = 0;  // the number of its first part within the group
    int64_t turns = kTurns;  // saves until all of it is read; 1 in a small group

    int64_t bytes_a_turn() const { return piece.bytes() / turns; }
  };
  std::span<const Box> boxes() const { return boxes_; }
  // The names of the groups, by number. Two ranks give a group the same name only if
  // they read the same boxes of it, so only comparable digests are compared. A group of
  // which this rank reads nothing has an empty name.
  std::span<const std::string> groups() const { return groups_; }
  // About how many bytes one save reads.
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

// The digests of one save. take() is called by a background thread, the other functions
// by any thread.
class ReplicaDigests {
 public:
  ReplicaDigests(std::shared_ptr<const Replicas> replicas, uint64_t turn);

  // Reads the tensors that are marked at_once. Called by save(), before take().
  void take_at_once();
  // Reads the other tensors until all are read or stop() is called. `window` is a
  // buffer of at least kPart bytes. Pinned memory makes reading from devices faster.
  void take(ByteSpan window);
  // Ends the reading. Waits for the part that is being read. After it has returned the
  // tensors may change; tensors on devices may be changed only by work that is queued
  // in `stream` from now on. `spoilt` says that some tensors have changed already, so
  // that the digests are useless.
  void stop(CudaStream stream, bool spoilt = false);

  // About how many bytes take_at_once() and take() read.
  int64_t bytes() const { return replicas_->bytes_a_turn(); }

  // The digests as text for find_difference(). Empty if not everything was read. Ends
  // the reading.
  std::string text();

 private:
  // Add the digest of a box, or of a part of it, to the sums. Both return false if the
  // reading was stopped or failed.
  bool add(const Replicas::Box& box, ByteSpan window);
  bool add_part(const Replicas::Box& box, int64_t part, ByteSpan window);
  std::optional<Digest128> digest_on_host(const LocalPiece& piece, int64_t first,
                                          ByteSpan window);
  std::optional<Digest128> digest_on_device(const LocalPiece& piece, int64_t first,
                                            ByteSpan window);

  const std::shared_ptr<const Replicas> replicas_;
  const int64_t turn_;
  // For each group the sum of the digests of its parts. A sum does not depend on the
  // order, which may differ between ranks.
  std::vector<std::array<uint64_t, 2>> sums_;

  Mutex mutex_;
  bool stopped_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool all_ HOLDFAST_GUARDED_BY(mutex_) = false;
  // Marks the end of the last read from a device.
  std::optional<DeviceMark> read_ HOLDFAST_GUARDED_BY(mutex_);
};

// Finds two ranks whose digests of the same boxes differ. `texts` holds text() of each
// rank, by rank.
std::optional<std::pair<int, int>> find_difference(std::span<const std::string> texts);

}  // namespace holdfast
