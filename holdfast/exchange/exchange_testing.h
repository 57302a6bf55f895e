// For tests of exchanges: ranks with pieces in memory, over LocalNetwork.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "holdfast/base/testing.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/exchange/change_layout.h"
#include "holdfast/state/layout_testing.h"
#include "holdfast/transport/local_transport.h"
#include "holdfast/transport/transport_testing.h"

namespace holdfast::tests {

// The pieces of one holder of the collection, in that holder's memory.
inline LocalPieces pieces_in(const Collection& collection, HolderId holder,
                             Memory& memory) {
  std::vector<LocalPiece> pieces;
  for_each_piece(collection,
                 [&](TensorId t, HolderId h, const Box& box, const Map& map) {
                   if (h != holder) return;
                   pieces.push_back(make_piece(collection.tensor(t), box, memory, map));
                 });
  return pieces;
}

// Fills ranks from those that are whole, which keep what they have.
inline Result<Exchanged> fill(Env& env, Transport& transport, const LocalPieces& pieces,
                              bool is_whole, ExchangeOptions options = {}) {
  options.proof = ExchangeProof::kMoved;
  GivenStorage storage(pieces);
  const LayoutChange change{.old = is_whole ? pieces : LocalPieces(),
                            .wanted = is_whole ? LocalPieces() : pieces};
  return change_layout(env, transport, change, storage, options);
}

inline int64_t sum_of(const std::array<int64_t, kCarriers>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

// Ranks of a job, each with the memory that the layout says, some of them whole and the
// others with other bytes.
struct Ranks {
  Ranks(const Collection& collection, std::vector<bool> is_whole, uint64_t seed = 1)
      : all(collection), whole(std::move(is_whole)) {
    Dice dice(seed);
    const std::vector<Memory> values = random_values(dice, all.tensors());
    right = empty_memories(all);
    for (Memory& memory : right) std::ranges::fill(memory, kOther);
    memories = right;
    for_each_piece(all, [&](TensorId t, HolderId h, const Box& box, const Map& map) {
      const Tensor& tensor = all.tensor(t);
      for_each_run(tensor, box, map, [&](int64_t from, int64_t to, int64_t bytes) {
        std::copy_n(values[t].data() + from, bytes, right[h].data() + to);
      });
    });
    for (size_t r = 0; r < memories.size(); ++r) {
      if (whole[r]) memories[r] = right[r];
    }
  }

  int size() const { return static_cast<int>(whole.size()); }

  // Makes the call on all ranks, each with its own transport.
  std::vector<Result<Exchanged>> run(Env& env, const std::function<Transport&(int)>& at,
                                  Duration at_most = std::chrono::seconds(60),
                                  bool shared_memory = true) {
    std::vector<Result<Exchanged>> outcomes(whole.size(), Result<Exchanged>(Exchanged{}));
    on_ranks(size(), [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      const LocalPieces pieces =
          pieces_in(all, static_cast<HolderId>(rank), memories[r]);
      outcomes[r] = fill(env, at(rank), pieces, whole[r],
                         {.deadline = env.now() + at_most,
                          .shared_memory = shared_memory});
    });
    return outcomes;
  }
  // True if every rank has the right bytes, and nothing was written beside them.
  bool is_right() const {
    bool same = true;
    for (size_t r = 0; r < whole.size(); ++r) same &= is_right(r);
    return same;
  }
  // True if no byte of a whole rank has changed.
  bool whole_ranks_are_unchanged() const {
    bool same = true;
    for (size_t r = 0; r < whole.size(); ++r) same &= !whole[r] || is_right(r);
    return same;
  }

  Collection all;
  std::vector<bool> whole;
  Memories right, memories;

 private:
  static constexpr std::byte kOther{0x5a};  // what is in memory that nobody has filled

  bool is_right(size_t r) const {
    return std::memcmp(memories[r].data(), right[r].data(), right[r].size()) == 0;
  }
};

// A transport that counts the calls of its rank and calls `at_call` before each. If
// `at_call` is true for a send, the message is lost.
class CountingTransport : public Transport {
 public:
  using AtCall = std::function<bool(int rank, int call)>;
  CountingTransport(Transport& under, AtCall at_call)
      : under_(under), at_call_(std::move(at_call)) {}

  int rank() const override { return under_.rank(); }
  int size() const override { return under_.size(); }
  int calls() const { return calls_; }
  Result<void> send(int to, Tag tag, ByteView bytes, Instant deadline) override {
    const int call = ++calls_;
    if (at_call_(rank(), call)) return {};
    Bytes copy = copy_of(bytes);
    if (damage == call && !copy.empty()) copy[copy.size() / 2] ^= std::byte{4};
    return under_.send(to, tag, copy, deadline);
  }
  Result<Bytes> recv(int from, Tag tag, Instant deadline) override {
    static_cast<void>(at_call_(rank(), ++calls_));
    return under_.recv(from, tag, deadline);
  }
  Result<void> barrier(Instant deadline) override { return under_.barrier(deadline); }
  Result<std::vector<Bytes>> all_gather(ByteView bytes, Instant deadline) override {
    static_cast<void>(at_call_(rank(), ++calls_));
    return under_.all_gather(bytes, deadline);
  }

  int damage = -1;  // the number of the send of which a bit is flipped

 private:
  Transport& under_;
  AtCall at_call_;
  std::atomic<int> calls_ = 0;
};

inline Tensor tensor_of(std::string name, Shape shape, Dtype dtype = Dtype::kF32) {
  return {.name = std::move(name), .dtype = dtype, .shape = shape};
}

// A collection whose holders are ranks on one host: boxes are placed one after another.
class RankLayout {
 public:
  RankLayout(std::vector<Tensor> tensors, int ranks)
      : tensors_(std::move(tensors)), used_(static_cast<size_t>(ranks)) {
    for (int r = 0; r < ranks; ++r) {
      holders_.push_back({.name = fmt::format("rank {}", r)});
    }
  }
  void put(TensorId t, const Box& box, int rank) {
    int64_t& used = used_[static_cast<size_t>(rank)];
    placed_.push_back({t, box, static_cast<HolderId>(rank), used});
    used += box.elements() * bytes_of(tensors_[t].dtype);
  }
  Collection build() const {
    LayoutBuilder builder(tensors_, holders_);
    for (const auto& [t, box, h, offset] : placed_) builder.add(t, box, h, offset);
    return Collection::create(tensors_, std::move(builder).build().value()).value();
  }

 private:
  struct Placed {
    TensorId t;
    Box box;
    HolderId h;
    int64_t offset;
  };
  std::vector<Tensor> tensors_;
  std::vector<Holder> holders_;
  std::vector<int64_t> used_;
  std::vector<Placed> placed_;
};

// Every rank holds all tensors.
inline Collection replicas(const std::vector<Tensor>& tensors, int ranks) {
  RankLayout layout(tensors, ranks);
  for (int r = 0; r < ranks; ++r) {
    for (TensorId t = 0; t < tensors.size(); ++t) {
      layout.put(t, Box::whole(tensors[t].shape), r);
    }
  }
  return layout.build();
}

}  // namespace holdfast::tests
