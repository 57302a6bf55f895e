// The commit of a save by all ranks. Each rank commits its saves one after the other on
// a background thread.
//
//   1. Rank 0 checks the free space, begins the attempt and tells all ranks that it
//      has, or why it cannot. When the save builds upon an older step, each rank checks
//      the space for its own files.
//   2. Every rank writes and syncs its shard, index and objects, syncs the attempt's
//      folder, and votes. The vote names its files with sizes and digests, or says why
//      they could not be written; it also carries the digests of replicas (replica_check.h).
//   3. When every rank has voted yes, rank 0 writes the manifest and commits
//      (attempt.h). A vote that is missing at the deadline, a vote that says no, and
//      replicas that differ end the attempt.
//   4. Rank 0 tells all ranks the outcome. Retention comes after that.
//
// A rank that hears nothing in 4 looks at the run directory. If it finds the attempt
// there as a committed step, the save is durable; otherwise the rank reports that the
// outcome is unknown.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <set>

#include "holdfast/checkpoint/channel.h"
#include "holdfast/checkpoint/replica_check.h"
#include "holdfast/checkpoint/saver.h"
#include "holdfast/checkpoint/write_plan.h"
#include "holdfast/memory/guard.h"
#include "holdfast/shard/shard_writer.h"
#include "holdfast/store/attempt.h"
#include "holdfast/store/retention.h"
#include "holdfast/store/run.h"

namespace holdfast {

// The objects of a save, which the training thread may still be collecting.
using FutureObjects = Future<Result<SaveObjects>>;

// One save of one rank.
struct SaveTask {
  int64_t serial = 0;
  uint64_t attempt = 0;
  int64_t step = 0;
  Instant started{};  // when save() was called
  std::string why{};  // the reason for the save, for the events
  // The step that this save builds upon, chosen by rank 0. Empty for a full save.
  std::string base{};
  std::shared_ptr<const WritePlan> plan;
  ShardPlan shard;
  std::unique_ptr<CaptureGuard> guard;         // null if the guard is off
  std::shared_ptr<ReplicaDigests> replicas{};  // null if no replicas are compared
  std::unique_ptr<ShardWriter> writer;
  std::shared_ptr<FutureObjects> objects;
  Manifest manifest;  // the fields that are known before the save is written
  // Set if the save failed before anything was written. This rank then votes no.
  std::optional<Error> failed;
  // A newer save took its place. Rank 0 tells the other ranks in phase 1.
  bool dropped = false;
  // On rank 0: a newer save took its place, and in_flight no longer counts it.
  bool superseded = false;
  // Rank 0 sent the error to this rank. Rank 0 raises it, so this rank does not.
  bool told = false;
  // An older shard could not be linked: on this rank, or, seen by rank 0, on any rank.
  bool unlinked = false;
  bool host_pieces = false;  // save() left pieces in host memory that it did not copy
  bool staged = false;       // all bytes have been copied into the ring
  // Tensors changed before they were captured, or replicas differ, on any rank.
  bool torn = false;
  // Tensors of this rank that were found to be torn only after settle().
  std::vector<std::string> torn_names{};
  Bytes copies;  // holds the host pieces that save() copied at once
  // The copies of pieces on devices.
  std::unique_ptr<DeviceShot> shot{};
  SaveHandle handle;
  // This rank's index, set once the shard is written. A later save may build upon it.
  std::optional<ShardIndex> index;

  // True if all tensors are copied inside their devices, so that training does not wait
  // for the ring.
  bool is_copied_on_devices() const {
    return !host_pieces && (shot == nullptr || shot->by_ring().empty());
  }
};

// The error of a save that was dropped because these tensors changed before they were
// captured.
Error torn_save(int64_t step, const std::vector<std::string>& names);

class Committer {
 public:
  // All arguments must outlive the committer. `owner` is null on ranks other than 0.
  // `strike` is for tests.
  Committer(Run& run, Owner* owner, Transport* transport, const SaverOptions& options,
            Strike strike);

  // Called on rank 0 only. replicas_differ() is true once replicas were seen to differ;
  // then all saves are dropped. trust_replicas() ends that for saves whose serial is
  // `from` or greater.
  bool replicas_differ() const { return trusted_from_ == kNone; }
  void trust_replicas(int64_t from) { trusted_from_ = from; }

  // Talks to a new set of processes from now on. Called while no save is committed.
  void rejoin() {
    begin_.reset();
    vote_.reset();
    if (!replicas_differ()) trusted_from_ = 0;  // serials begin at 1 again
  }

  // Returns the names of steps that retention must not remove, because saves under way
  // build upon them or they are being copied to a tier.
  using Busy = std::function<std::set<std::string>()>;

  // Writes and commits a save. When the disk is full, applies retention before it.
  Result<Durable> commit(SaveTask& task, const Busy& busy);

  // Applies retention on rank 0. Does nothing on other ranks.
  void retain(const Busy& busy) { retain(false, busy); }

 private:
  Result<Durable> lead(SaveTask& task, const Busy& busy);
  Result<Durable> follow(SaveTask& task);
  Result<Attempt> begin(const SaveTask& task, const Busy& busy);
  Result<void> find_space(const SaveTask& task, const Busy& busy);
  int64_t stored_bytes(int64_t bytes) const;
  void note_stored(const SaveTask& task);
  void retain(bool ahead, const Busy& busy);
  Result<Path> conclude(SaveTask& task, Attempt& attempt,
                        const Result<std::vector<ManifestFile>>& own);
  Result<std::vector<ManifestFile>> join_and_write(SaveTask& task);
  Result<std::vector<ManifestFile>> write_files(SaveTask& task, Attempt& attempt);
  Result<WrittenShard> write_shard(SaveTask& task, const Attempt& attempt,
                                   std::vector<ManifestFile>& files);
  Result<void> link_shards(SaveTask& task, const Attempt& attempt,
                           std::vector<ManifestFile>& files);
  Result<void> check_guard(SaveTask& task);
  void tell_written(const SaveTask& task, const WrittenShard& written, Instant start);
  Result<void> read_back(const Attempt& attempt, const ShardFile& file);
  Result<Durable> learn(SaveTask& task);

  Result<void> check_replicas(SaveTask& task, std::span<const Message> votes);

  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  Run& run_;
  Owner* owner_;
  const SaverOptions& options_;
  const Strike strike_;
  std::atomic<int64_t> trusted_from_{0};
  Channel begin_;
  Channel vote_;
  std::optional<Retention> retention_;
  bool was_full_ = false;  // the last attempt failed because the disk was full
  double stored_share_ = 0;  // how much of the last full save compression left
};

}  // namespace holdfast
