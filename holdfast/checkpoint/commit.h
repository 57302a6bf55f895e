// The commit of a save by all ranks, one after the other on a background thread.
//
//   1. Rank 0 checks the space, begins the attempt and tells all (or that it cannot). Where
//      the save builds upon an older step, each rank checks the space for what it writes.
//   2. Every rank writes and syncs its shard, index and objects, syncs the attempt's
//      folder, and votes: its files with sizes and digests, or why not; and with that the
//      digests of what others hold too (replicas.h).
//   3. With a vote from every rank, rank 0 writes the manifest and commits (attempt.h);
//      a vote that is missing at the deadline, or says no, ends the attempt, and so do
//      replicas that differ.
//   4. Rank 0 tells all what became of it. Retention comes after that.
//
// A rank that hears nothing in 4 looks at the run directory: the attempt is there as a
// committed step, or the outcome is unknown and it says so.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <set>

#include "holdfast/checkpoint/channel.h"
#include "holdfast/checkpoint/replicas.h"
#include "holdfast/checkpoint/save_handle.h"
#include "holdfast/checkpoint/saver.h"
#include "holdfast/checkpoint/write_plan.h"
#include "holdfast/memory/guard.h"
#include "holdfast/store/attempt.h"
#include "holdfast/store/retention.h"
#include "holdfast/store/run.h"

namespace holdfast {

inline constexpr Tag kBeginTag = 0x4800;     // 1: begin
inline constexpr Tag kVoteTag = 0x4802;      // 2 and 4: vote, outcome
inline constexpr Tag kAgreeTag = 0x4804;     // save()
inline constexpr Tag kRestoreTag = 0x4806;   // restore.h; 0x4808 to 0x480d are job/'s
inline constexpr Tag kOpenTag = 0x480e;      // open()
inline constexpr Tag kCloseTag = 0x4810;     // close()
inline constexpr Tag kReadableTag = 0x4812;  // restore.h

// What is no tensor, once the training thread has gathered it.
using FutureObjects = Future<Result<SaveObjects>>;

// One save of one rank.
struct SaveTask {
  int64_t serial = 0;
  uint64_t attempt = 0;
  int64_t step = 0;
  Instant started{};   // when save() was called
  std::string base{};  // the step that it builds upon, on whatever rank; or empty
  std::shared_ptr<const WritePlan> plan;
  ShardPlan shard;
  std::unique_ptr<CaptureGuard> guard;         // null if there is none
  std::shared_ptr<ReplicaDigests> replicas{};  // null if none are compared
  std::unique_ptr<ShardWriter> writer;
  std::shared_ptr<FutureObjects> objects;
  Manifest manifest;            // what is known before; rank 0 only
  std::optional<Error> failed;  // before anything was written: this rank votes no
  bool dropped = false;         // a newer save took its place: rank 0 says so in 1
  bool superseded = false;      // the same, as soon as it is known; rank 0's
  bool told = false;         // what it failed with is rank 0's word: rank 0 raises it
  bool unlinked = false;     // an older shard could not be linked, on whatever rank
  bool host_pieces = false;  // some are in the host's memory and not copied yet
  bool staged = false;       // all of it is in the ring, or was
  // Tensors changed before they were captured, or replicas differ, the same.
  bool torn = false;
  std::vector<std::string> torn_names{};  // seen late, of this rank
  Bytes copies;                        // of the host's pieces that are copied at once
  std::unique_ptr<DeviceShot> shot{};  // of those on devices; null if there are none
  SaveHandle handle;
  // Of this rank, once it is written: what a later save may build upon.
  std::optional<ShardIndex> index;

  // All is copied inside its devices: nobody waits for the ring.
  bool is_in_rooms() const {
    return !host_pieces && (shot == nullptr || shot->by_ring().empty());
  }
};

// Why a save was dropped in which these tensors changed too early.
Error torn_save(int64_t step, const std::vector<std::string>& names);

class Committer {
 public:
  // All must outlive it. `owner` is null on ranks other than 0.
  Committer(Run& run, Owner* owner, Transport* transport, const SaverOptions& options);

  // Of rank 0: replicas were seen to differ. From then on all saves are dropped whose
  // serial is below the one that is trusted.
  bool replicas_differ() const { return trusted_from_ == kNone; }
  void trust_replicas(int64_t from) { trusted_from_ = from; }

  // Names of steps that retention must spare, because saves under way build upon them.
  using Busy = std::function<std::set<std::string>()>;

  // Carries a save out. Where the disk is full, retention makes room first.
  Result<Durable> commit(SaveTask& task, const Busy& busy);

  // Applies retention, on rank 0; others have nothing to do.
  void retain(const Busy& busy) { retain(false, busy); }

 private:
  Result<Durable> lead(SaveTask& task, const Busy& busy);
  Result<Durable> follow(SaveTask& task);
  Result<Attempt> begin(const SaveTask& task, const Busy& busy);
  Result<void> find_space(const SaveTask& task, const Busy& busy);
  void retain(bool ahead, const Busy& busy);
  Result<Path> conclude(SaveTask& task, Attempt& attempt,
                        const Result<std::vector<ManifestFile>>& own);
  Result<std::vector<ManifestFile>> join_and_write(SaveTask& task);
  Result<std::vector<ManifestFile>> write_files(SaveTask& task, Attempt& attempt);
  Result<void> link_shards(SaveTask& task, const Attempt& attempt);
  Result<void> check_guard(SaveTask& task);
  void tell_written(const SaveTask& task, const WrittenShard& written, Instant start);
  Result<void> read_back(const Attempt& attempt, const ShardFile& file);
  Result<Durable> learn(SaveTask& task);

  Result<void> check_replicas(SaveTask& task, std::span<const Message> votes);

  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  Run& run_;
  Owner* owner_;
  const SaverOptions& options_;
  std::atomic<int64_t> trusted_from_{0};
  Channel begin_;
  Channel vote_;
  std::optional<Retention> retention_;
  bool was_full_ = false;  // the disk, for the last attempt
};

}  // namespace holdfast
