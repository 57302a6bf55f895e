// For tests: makes jobs whose state is known byte for byte, with any layout, on any
// Env.
#pragma once

#include <functional>
#include <thread>

#include "holdfast/base/testing.h"
#include "holdfast/checkpoint/restore.h"
#include "holdfast/checkpoint/saver.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/state/layout_testing.h"
#include "holdfast/transport/local_transport.h"

namespace holdfast::tests {

inline const Path kRun = "/runs/gpt";

inline std::vector<Holder> rank_holders(int ranks) {
  std::vector<Holder> holders;
  for (int r = 0; r < ranks; ++r)
    holders.push_back({.name = fmt::format("rank-{}", r)});
  return holders;
}

// The state of all ranks of a job.
class Job {
 public:
  // A job whose tensors are cut and replicated at random.
  Job(Dice& dice, const std::vector<Tensor>& tensors, int ranks)
      : Job(RandomLayout(dice, tensors, rank_holders(ranks)).complete()) {}
  explicit Job(Collection collection)
      : collection_(std::make_shared<const Collection>(std::move(collection))),
        memories_(empty_memories(*collection_)) {}

  int ranks() const { return static_cast<int>(memories_.size()); }
  const Collection& collection() const { return *collection_; }

  void set(const std::vector<Memory>& values) {
    memories_ = tests::fill(*collection_, values);
  }
  bool has(const std::vector<Memory>& values) const {
    return holds(*collection_, memories_, values);
  }

  LocalState state(int rank) {
    LocalState state{.collection = collection_, .rank = rank, .pieces = {}};
    for_each_piece(*collection_,
                   [&](TensorId t, HolderId h, const Box& box, const Map& map) {
                     if (h != static_cast<HolderId>(rank)) return;
                     state.pieces.edit().push_back(
                         make_piece(collection_->tensor(t), box, memories_[h], map));
                   });
    return state;
  }

 private:
  std::shared_ptr<const Collection> collection_;
  Memories memories_;
};

// A collection in which every rank holds all of each tensor.
inline Collection replicated(std::vector<Tensor> tensors, int ranks) {
  LayoutBuilder builder(tensors, rank_holders(ranks));
  for (int r = 0; r < ranks; ++r) {
    int64_t offset = 0;
    for (TensorId t = 0; t < tensors.size(); ++t) {
      builder.add(t, Box::whole(tensors[t].shape), static_cast<HolderId>(r), offset);
      offset += tensors[t].bytes();
    }
  }
  return Collection::create(tensors, std::move(builder).build().value()).value();
}

// A state of one small tensor, and its values after a step.
inline std::vector<Tensor> small_state() {
  return {{.name = "w", .dtype = Dtype::kF32, .shape = {30, 100}}};
}
inline std::vector<Memory> small_state_at(int64_t step) {
  Dice dice(static_cast<uint64_t>(step));
  return random_values(dice, small_state());
}

// Runs body(rank, transport) on a thread for each rank. When the body of a rank
// returns, the other ranks see that rank as a process that has ended.
inline void run_ranks(Env& env, int ranks,
                      const std::function<void(int, Transport&)>& body) {
  LocalNetwork network(env, ranks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      body(rank, network.endpoint(rank));
      network.kill(rank);
    });
  }
  threads.clear();
}

// The options of a process on a machine that was booted `boots` times. Owners from
// earlier boots count as dead.
inline SaverOptions test_options(int boots = 1) {
  SaverOptions options;
  options.ring_bytes = 1 << 20;
  options.block_bytes = 64 << 10;
  options.space_reserve = 0;
  options.background = false;
  options.identity = Identity{.host = "alpha",
                              .boot = fmt::format("boot-{}", boots),
                              .pid = 100 + boots,
                              .started = 7};
  return options;
}

// Saves a step as a job of one rank and waits until it is durable.
inline Result<Durable> save_alone(Env& env, Job& job, int64_t step,
                                  const SaverOptions& options = test_options()) {
  const auto saver = HOLDFAST_TRY(Saver::open(env, kRun, nullptr, options));
  const LocalState state = job.state(0);
  const SaveHandle handle = HOLDFAST_TRY(saver->save({.step = step, .state = &state}));
  return handle.durable();
}

inline Result<RestoredState> restore_alone(Env& env, Job& job,
                                           const RestoreOptions& options = {}) {
  return restore(env, kRun, job.state(0), nullptr, options);
}

}  // namespace holdfast::tests
