// For tests of exchange(): ranks that hold a state with known values, and take part in an
// exchange together.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/exchange/exchange.h"
#include "holdfast/exchange/exchange_testing.h"
#include "holdfast/plan/plan.h"

namespace holdfast::tests {

// True if the pieces have exactly the canonical values of their tensors, element by
// element.
inline bool pieces_hold(const LocalPieces& pieces, const Collection& collection,
                        const std::vector<Memory>& values) {
  bool same = true;
  for (const LocalPiece& piece : pieces) {
    const Memory& value = values[*collection.find(piece.tensor->name)];
    for_each_run(*piece.tensor, piece.box, piece.map,
                 [&](int64_t at, int64_t local, int64_t bytes) {
                   same &= std::memcmp(value.data() + at, piece.memory.data() + local,
                                       static_cast<size_t>(bytes)) == 0;
                 });
  }
  return same;
}

// A holder's pieces as the layout says, without their memory: name and box.
inline std::vector<std::pair<std::string, Box>> boxes_of(const Collection& collection,
                                                         const std::string& holder) {
  std::vector<std::pair<std::string, Box>> boxes;
  for_each_piece(collection, [&](TensorId t, HolderId h, const Box& box, const Map&) {
    if (collection.layout().holders()[h].name != holder) return;
    boxes.emplace_back(collection.tensor(t).name, box);
  });
  std::ranges::sort(boxes);
  return boxes;
}

// Takes pieces of storage and counts them, and can be told to fail.
class CountedStorage : public HostStorage {
 public:
  Result<LocalPiece> make(const std::shared_ptr<const Tensor>& tensor,
                          const Box& box) override {
    if (makes_left-- <= 0) return no_space("memory: there is no more");
    return HostStorage::make(tensor, box);
  }
  void release(const LocalPiece& old) override {
    ++released;
    HostStorage::release(old);
  }
  std::atomic<int> makes_left = 1 << 30;
  std::atomic<int> released = 0;
};

// One rank for each holder of the two layouts.
class LiveState {
 public:
  LiveState(Collection before, Collection after, const Topology& topology,
            uint64_t seed = 1)
      : source(std::move(before)), target(std::move(after)) {
    Result<Plan> planned = plan(source, target, topology);
    HOLDFAST_CHECK(planned.ok(), "{}", message_of(planned));
    made = *std::move(planned);
    Dice dice(seed);
    values = random_values(dice, source.tensors());
    old = fill(source, values);
    untouched = old;
    for (size_t h = 0; h < made.holders.size(); ++h) {
      storages.push_back(std::make_unique<CountedStorage>());
    }
  }

  int ranks() const { return static_cast<int>(made.holders.size()); }
  ExchangeTask task_of(int rank) {
    const auto r = static_cast<size_t>(rank);
    ExchangeTask task{.source = &source,
                      .target = &target,
                      .plan = &made,
                      .holder = made.holders[r].name};
    // Holders of the source have the same numbers in the plan.
    if (r < old.size()) {
      task.old = pieces_in(source, static_cast<HolderId>(rank), old[r]);
    }
    return task;
  }
  std::vector<Result<Exchanged>> run(Env& env, const std::function<Transport&(int)>& at,
                                     const ExchangeOptions& options = {}) {
    std::vector<Result<Exchanged>> outcomes(made.holders.size(),
                                            Result<Exchanged>(Exchanged{}));
    on_ranks(ranks(), [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      const ExchangeTask task = task_of(rank);
      outcomes[r] = exchange(env, at(rank), task, *storages[r], options);
    });
    return outcomes;
  }

  // True if every rank has exactly the boxes and elements of the target.
  bool is_right(const std::vector<Result<Exchanged>>& outcomes) const {
    bool right = true;
    for (size_t r = 0; r < outcomes.size(); ++r) {
      right &= outcomes[r].ok() && is_right(r, *outcomes[r]);
    }
    return right;
  }
  bool is_right(size_t rank, const Exchanged& outcome) const {
    std::vector<std::pair<std::string, Box>> boxes;
    for (const LocalPiece& piece : outcome.pieces) {
      boxes.emplace_back(piece.tensor->name, piece.box);
    }
    std::ranges::sort(boxes);
    return boxes == boxes_of(target, made.holders[rank].name) &&
           pieces_hold(outcome.pieces, target, values);
  }
  bool old_is_untouched() const { return old == untouched; }
  // True if no rank has memory of new pieces.
  bool nothing_is_left() const {
    return std::ranges::all_of(storages, [](const auto& one) {
      return one->bytes() == 0;
    });
  }
  // The sum of what the carriers of all ranks counted.
  static int64_t received(const std::vector<Result<Exchanged>>& outcomes) {
    int64_t bytes = 0;
    for (const Result<Exchanged>& one : outcomes) {
      for (const int64_t part : one->received) bytes += part;
    }
    return bytes;
  }
  static int64_t sent(const std::vector<Result<Exchanged>>& outcomes) {
    int64_t bytes = 0;
    for (const Result<Exchanged>& one : outcomes) {
      for (const int64_t part : one->sent) bytes += part;
    }
    return bytes;
  }

  Collection source, target;
  Plan made;
  std::vector<Memory> values;
  Memories old, untouched;
  std::vector<std::unique_ptr<CountedStorage>> storages;  // by rank
};

// Ways to carry bytes, for tests that run over each of them.
struct CarrierCase {
  Carrier carrier;
  ExchangeOptions options;
};
inline std::vector<CarrierCase> all_carriers() {
  return {{Carrier::kDirect, {}},
          {Carrier::kRing, {.direct = false}},
          {Carrier::kTransport, {.direct = false, .shared_memory = false}}};
}

// Holders that are memories, called "worker 0", "worker 1", ..., on random hosts.
inline std::vector<Holder> random_workers(Dice& dice, int64_t hosts, int64_t first,
                                          int64_t count) {
  std::vector<Holder> workers;
  for (int64_t w = first; w < first + count; ++w) {
    workers.push_back({.name = fmt::format("worker {}", w),
                       .host = static_cast<HostId>(w % hosts)});
  }
  // The numbers of a layout need not be in the order of the names.
  if (dice.one_in(2)) std::ranges::reverse(workers);
  return workers;
}

// A random change: some workers go, some stay and some come.
inline LiveState random_change(uint64_t seed) {
  Dice dice(seed);
  const std::vector<Tensor> tensors = random_tensors(dice);
  const int64_t hosts = 1 + dice.below(3);
  const int64_t before = 1 + dice.below(4), gone = dice.below(before + 1);
  const int64_t after = 1 + dice.below(4);
  Collection source =
      RandomLayout(dice, tensors, random_workers(dice, hosts, 0, before)).complete();
  Collection target =
      RandomLayout(dice, tensors, random_workers(dice, hosts, gone, after)).complete();
  return LiveState(std::move(source), std::move(target),
                   Topology::uniform(static_cast<uint32_t>(hosts)), seed);
}

}  // namespace holdfast::tests
