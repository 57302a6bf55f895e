// A state of four ranks that becomes one of eight, or of four others, again and again, in one
// process.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "figures.h"
#include "holdfast/exchange/exchange.h"
#include "holdfast/transport/tcp_transport.h"
#include "rivals/through_stores.h"

namespace holdfast {

inline constexpr int kOld = 4, kNew = 8;
inline constexpr int64_t kSide = 4096;  // tensors are [4096, 4096] of F32, 64 MiB
inline constexpr int64_t kTensorBytes = kSide * kSide * 4;

// As tensor parallelism cuts: every second tensor by columns, the others by rows. `first` is the
// number of the first rank.
inline Collection cut(int tensors, int ranks, int first = 0) {
  std::vector<Tensor> all;
  std::vector<Holder> holders;
  for (int t = 0; t < tensors; ++t) {
    all.push_back({.name = fmt::format("t{}", t), .shape = Shape{kSide, kSide}});
  }
  for (int r = 0; r < ranks; ++r) holders.push_back({.name = fmt::format("rank {}", first + r)});
  LayoutBuilder builder(all, holders);
  for (TensorId t = 0; t < all.size(); ++t) {
    for (int r = 0; r < ranks; ++r) {
      const Extent part{kSide * r / ranks, kSide * (r + 1) / ranks};
      const Box box = Box::whole(all[t].shape).with(t % 2 == 0 ? 0 : 1, part);
      builder.add(t, box, static_cast<HolderId>(r), int64_t{t} * kTensorBytes);
    }
  }
  return Collection::create(all, std::move(builder).build().value()).value();
}

// Keeps old pieces, and gives memory that was touched before if it has some.
class PoolStorage : public PieceStorage {
 public:
  explicit PoolStorage(bool touched) : touched_(touched) {}
  Result<LocalPiece> make(const std::shared_ptr<const Tensor>& tensor,
                          const Box& box) override {
    std::vector<ByteSpan>& spare = spare_[box.elements() * bytes_of(tensor->dtype)];
    LocalPiece piece;
    if (touched_ && !spare.empty()) {
      piece = {.tensor = tensor,
               .box = box,
               .memory = spare.back(),
               .map = Map::dense(box, bytes_of(tensor->dtype))};
      spare.pop_back();
      return piece;
    }
    return host_.make(tensor, box);
  }
  void release(const LocalPiece&) override {}
  // Memory that it gives again is not free before.
  bool takes_host_memory() const override { return !touched_; }
  void discard(const LocalPiece& made) override {
    if (touched_) {
      spare_[made.bytes()].push_back(made.memory);
    } else {
      host_.discard(made);
    }
  }

 private:
  const bool touched_;
  HostStorage host_;
  std::map<int64_t, std::vector<ByteSpan>> spare_;  // by size
};

// The ranks of one job in this process.
class Ranks {
 public:
  Ranks(Env& env, int count) : env_(env) {
    std::vector<std::string> addresses;
    for (int rank = 0; rank < count; ++rank) {
      transports_.push_back(
          TcpTransport::listen(env, rank, count, {.host = "127.0.0.1"}).value());
      addresses.push_back(transports_.back()->address());
    }
    on_each(count, [&](int rank) {
      transports_[static_cast<size_t>(rank)]->connect(addresses, kNoDeadline).value();
    });
  }

  // In seconds.
  struct Took {
    double all = 0;    // the slowest rank
    double seals = 0;  // of all pieces before and after, taken again by themselves
    double copy() const { return all - seals; }
  };
  // `pieces` are those that each holder has before, by name.
  Took change(const Collection& source, const Collection& target,
              const std::map<std::string, LocalPieces>& pieces,
              std::map<std::string, std::unique_ptr<PoolStorage>>& storages,
              const ExchangeOptions& options) {
    const Plan made = plan(source, target, Topology::uniform(1)).value();
    std::vector<Exchanged> done(transports_.size());
    on_each(static_cast<int>(transports_.size()), [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      const std::string& name = made.holders[r].name;
      const ExchangeTask task{.source = &source,
                              .target = &target,
                              .plan = &made,
                              .holder = name,
                              .old = r < source.layout().holders().size()
                                         ? pieces.at(name)
                                         : LocalPieces()};
      Result<Exchanged> one =
          exchange(env_, *transports_[r], task, *storages.at(name), options);
      HOLDFAST_CHECK(one.ok(), "{}", one.error().message());
      done[r] = *std::move(one);
    });
    Took took;
    for (size_t r = 0; r < done.size(); ++r) {
      const Duration all = done[r].prepared + done[r].copied_for + done[r].verified;
      took.all = std::max(took.all, std::chrono::duration<double>(all).count());
      made_[made.holders[r].name] = done[r].pieces;
    }
    took.seals = seconds(env_, [&] {
      seal_all(made, pieces);
      seal_all(made, made_);
    });
    return took;
  }
  const std::map<std::string, LocalPieces>& made() const { return made_; }

 private:
  // Each rank in a thread of its own, as in the exchange.
  void seal_all(const Plan& made, const std::map<std::string, LocalPieces>& pieces) {
    on_each(static_cast<int>(transports_.size()), [&](int rank) {
      const auto own = pieces.find(made.holders[static_cast<size_t>(rank)].name);
      if (own == pieces.end()) return;
      for (const LocalPiece& piece : own->second) seal_of(piece).value();
    });
  }

  Env& env_;
  std::vector<std::unique_ptr<TcpTransport>> transports_;
  std::map<std::string, LocalPieces> made_;
};

// The pieces of a holder, each of which has bytes of its own.
inline LocalPieces make_old(const Collection& source, HolderId holder, HostStorage& memory) {
  std::vector<LocalPiece> pieces;
  const Layout& layout = source.layout();
  for (TensorId t = 0; t < source.tensors().size(); ++t) {
    const auto tensor = std::make_shared<const Tensor>(source.tensor(t));
    for (const Slice& slice : layout.slices(t)) {
      if (layout.holder(slice.first) != holder) continue;
      pieces.push_back(memory.make(tensor, slice.box).value());
      std::memset(pieces.back().memory.data(), static_cast<int>(t + holder + 1),
                  pieces.back().memory.size());
    }
  }
  return pieces;
}

// A state that is changed again and again.
class State {
 public:
  State(Env& env, int tensors, bool touched)
      : State(env, tensors, touched, cut(tensors, kNew)) {}
  State(Env& env, int tensors, bool touched, Collection wanted)
      : env_(env), source(cut(tensors, kOld)), target(std::move(wanted)) {
    for (int r = 0; r < kNew; ++r) {
      storages_[fmt::format("rank {}", r)] = std::make_unique<PoolStorage>(touched);
    }
    const auto holders = source.layout().holders();
    for (HolderId h = 0; h < holders.size(); ++h) {
      pieces_[holders[h].name] = make_old(source, h, old_memory_);
    }
  }

  Ranks::Took change(Ranks& ranks, const ExchangeOptions& options) {
    const Ranks::Took took = ranks.change(source, target, pieces_, storages_, options);
    for (const auto& [name, made] : ranks.made()) {
      for (const LocalPiece& piece : made) storages_.at(name)->discard(piece);
    }
    return took;
  }
  // The bytes that a new rank gets of each tensor, all from one old rank: copied row by row
  // as they lie there, one after the other to `to`.
  void copy_rows(int rank, ByteSpan to) const {
    const LocalPieces& old = pieces_.at(fmt::format("rank {}", rank * kOld / kNew));
    for (const LocalPiece& piece : old) {
      const Box& from = piece.box;
      const auto id = target.find(piece.tensor->name).value();
      const Box& box = target.layout().slices(id)[static_cast<size_t>(rank)].box;
      const auto row = static_cast<size_t>(box.size(1) * 4);
      const auto gap = static_cast<size_t>(from.size(1) * 4);
      const std::byte* first = piece.memory.data() + (box[1].lo - from[1].lo) * 4 +
                               (box[0].lo - from[0].lo) * from.size(1) * 4;
      const size_t rows = row == gap ? 1 : static_cast<size_t>(box.size(0));
      const size_t run = static_cast<size_t>(box.elements() * 4) / rows;
      for (size_t i = 0; i < rows; ++i) {
        std::memcpy(to.data() + i * run, first + i * gap, run);
      }
      to = to.subspan(rows * run);
    }
  }
  // Through stores, as the rivals do. Returns the time of both copies.
  double through_stores(bool one, const ExchangeOptions& options) {
    const Collection stores = rivals::moved_to(source, "store ", one);
    const Collection after = rivals::moved_to(target, "new ", false);
    for (const Collection* state : {&stores, &after}) {
      for (const Holder& holder : state->layout().holders()) {
        auto& storage = storages_[holder.name];
        if (storage == nullptr) storage = std::make_unique<PoolStorage>(true);
      }
    }
    const int count = one ? 1 : kOld;
    const auto wanted = static_cast<int>(target.layout().holders().size());
    Ranks putting(env_, kOld + count), getting(env_, count + wanted);
    const double put =
        putting.change(source, stores, pieces_, storages_, options).copy();
    std::map<std::string, LocalPieces> stored = putting.made();
    const double got = getting.change(stores, after, stored, storages_, options).copy();
    for (const auto* made : {&putting.made(), &getting.made()}) {
      for (const auto& [name, pieces] : *made) {
        const bool fresh = name.starts_with(made == &getting.made() ? "new" : "store");
        for (const LocalPiece& piece : pieces) {
          if (fresh) storages_.at(name)->discard(piece);
        }
      }
    }
    return put + got;
  }

 private:
  Env& env_;
  HostStorage old_memory_;
  std::map<std::string, LocalPieces> pieces_;
  std::map<std::string, std::unique_ptr<PoolStorage>> storages_;

 public:
  const Collection source, target;
};

}  // namespace holdfast
