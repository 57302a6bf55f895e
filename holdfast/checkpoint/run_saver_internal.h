// The saver of a run directory. One thread captures saves, one commits them, and on
// rank 0 a third one renews the owner's lease. saver.cpp has what the training thread
// does, saver_threads.cpp what the background threads do.
#pragma once

#include <deque>
#include <set>
#include <thread>

#include "holdfast/checkpoint/commit.h"
#include "holdfast/checkpoint/saver.h"
#include "holdfast/checkpoint/tier_copier.h"

namespace holdfast {

class RunSaver : public Saver {
 public:
  // Saver::open(). Tests may pass a fault that strikes what is staged.
  static Result<std::unique_ptr<Saver>> open(Env& env, const Path& run,
                                             Transport* transport, SaverOptions options,
                                             Strike strike);

  RunSaver(Env& env, Run run, std::optional<Owner> owner, Transport* transport,
           SaverOptions options, int ranks_here, Strike strike);
  ~RunSaver() override {
    settle_captured({}, nullptr);
    static_cast<void>(finish(kNoDeadline));
  }

  const Path& run() const override { return run_.path(); }
  const std::string& run_id() const override { return run_.id(); }
  Result<Manifest> next_manifest() override;
  Result<void> check_owner() const override { return owner_->check(); }
  Result<void> prepare(const LocalState& state) override;
  Message propose(int64_t step, bool last) override;
  Result<SaveHandle> save(SaveRequest request) override;
  bool has_to_raise() override;
  bool may_tear() const override;
  using Saver::settle;
  Result<Settled> settle(const std::vector<std::string>& changed, CudaStream stream,
                         Instant deadline) override;
  bool replicas_differ() const override { return committer_.replicas_differ(); }
  void trust_replicas() override { committer_.trust_replicas(serial_ + 1); }
  Result<void> close(Instant deadline) override;
  Result<void> close_alone(Instant deadline) override;
  Result<void> drop_saves(Instant deadline) override;
  Result<void> rejoin() override;

 private:
  // Shared by the training thread, the capturing thread and the committing thread.
  using Task = std::shared_ptr<SaveTask>;

  // Called by the training thread (saver.cpp).
  Result<Message> agree(int64_t step, bool last);
  Result<bool> wait_for_room(bool last);
  bool has_room() HOLDFAST_REQUIRES(mutex_);
  void supersede_waiting() HOLDFAST_REQUIRES(mutex_);
  bool is_to_raise() const HOLDFAST_REQUIRES(mutex_);
  std::optional<Error> take_failure() HOLDFAST_REQUIRES(mutex_);

  Task make_task(SaveRequest&& request, const Message& decision);
  Result<void> fill_task(SaveTask& task, SaveRequest&& request,
                         const std::string& base);
  Result<void> plan_state(const LocalState& state, Touch touch);
  // Tells of the devices that should compute seals and cannot, each once.
  void tell_missing_seals(const LocalState& state);
  Result<void> compare_replicas(SaveTask& task, CudaStream stream);
  // True if settle() must wait until the whole save is captured.
  bool is_awaited(const SaveTask& task) const;
  Result<void> wait_captured(SaveTask& task, Instant deadline);
  Settled settle_captured(const std::vector<std::string>& changed, CudaStream stream);
  Result<void> settle_task(SaveTask& task, const std::vector<std::string>& changed,
                           CudaStream stream, Settled& settled);
  Result<ShardPlan> plan_shard(const LocalState& state, const std::string& base,
                               CudaStream stream);
  std::set<std::string> bases_in_use();
  Result<void> plan_for(const LocalState& state);
  int64_t ring_size();
  void make_ring(std::span<const LocalPiece> pieces, Touch touch);
  void enqueue(const Task& task);

  // Called by the background threads (saver_threads.cpp).
  void capture_tasks();
  Task next_to_capture();
  void capture(SaveTask& task);
  Result<void> stage(SaveTask& task);
  void take_digests(SaveTask& task);
  void commit_tasks();
  Task next_to_commit();
  void commit(SaveTask& task);
  bool is_dropping();
  bool is_skipped(const SaveTask& task, const Result<Durable>& outcome);
  void complete(SaveTask& task, const Result<Durable>& outcome);
  void record_outcome(const SaveTask& task, const Result<Durable>& outcome);
  void keep_lease();
  void renew_lease();

  Result<void> agree_on_end(Instant deadline);
  Result<void> last_outcome(Instant deadline);
  Result<void> finish(Instant deadline);
  Error still_under_way() const;
  bool wait_idle(Instant deadline);

  double since(Instant start) const {
    return std::chrono::duration<double>(env_.now() - start).count();
  }
  template <typename Event>
  void tell(const Event& event) {
    if (options_.events != nullptr) emit(*options_.events, env_, event);
  }

  Env& env_;
  Transport* const transport_;  // null in a job of one rank
  Run run_;
  std::optional<Owner> owner_;  // set on rank 0 only
  const SaverOptions options_;
  const int ranks_here_;  // how many ranks share this machine's memory
  Channel agree_;
  Channel close_;
  Committer committer_;
  TierCopier copier_;
  ReuseHistory history_;

  // Used by the training thread only.
  std::shared_ptr<const WritePlan> plan_;
  // The last state that was saved or prepared, after it was checked, and where its
  // pieces go.
  struct Planned {
    LocalState state;
    ShardPlan shard;
    std::shared_ptr<const Replicas> replicas{};  // null if there is only one rank
  };
  std::optional<Planned> planned_;
  std::set<int> told_devices_;  // by tell_missing_seals()
  DeviceRooms rooms_;
  std::unique_ptr<StagingRing> ring_;
  int64_t ring_for_ = 0;  // bytes of the shard that the ring was made for
  int64_t serial_ = 0;
  std::vector<Task> unsettled_;
  std::optional<SaveHandle> unguarded_;  // the newest save, if the guard is off
  // Digests that the background may still be reading tensors for.
  std::vector<std::shared_ptr<ReplicaDigests>> comparing_;
  bool closed_ = false;
  bool ended_ = false;  // the ranks have exchanged their last outcomes in close()

  Mutex mutex_;
  // Each thread waits for a condition of its own, so that none is woken needlessly.
  Condition changed_;   // for the training thread
  Condition captures_;  // for the capturing thread
  Condition commits_;   // for the committing thread
  Condition stops_;     // for the thread that renews the lease
  std::deque<Task> to_capture_ HOLDFAST_GUARDED_BY(mutex_);
  std::deque<Task> to_commit_ HOLDFAST_GUARDED_BY(mutex_);
  Task committing_ HOLDFAST_GUARDED_BY(mutex_);  // the save that is being committed
  bool dropping_ HOLDFAST_GUARDED_BY(mutex_) = false;  // drop_saves() is under way
  int in_flight_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  // The saves in flight, and those that were superseded and are not over yet.
  int unfinished_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  // The error of the last save, or one that cannot pass and was not raised yet.
  std::optional<Error> failure_ HOLDFAST_GUARDED_BY(mutex_);
  // When the first save failed after the last one that succeeded.
  std::optional<Instant> failing_since_ HOLDFAST_GUARDED_BY(mutex_);
  // Tensors that were found to be torn after settle(). The next settle() reports them.
  std::vector<std::string> torn_late_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;

  // The threads are the last members, because they use all others.
  std::jthread capturer_;
  std::jthread committer_thread_;
  std::jthread keeper_;
};

}  // namespace holdfast
