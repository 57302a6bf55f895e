// Measures how fast the state of four ranks becomes that of eight, by each carrier, beside
// what the carrier can do without a plan: memcpy by as many threads, a bare ring between two
// processes, a bare connection. Then beside other ways to do it (rivals/through_stores.h).
// Ranks are processes for the rings and threads of one process otherwise.
//
// A figure is about the copy phase. What the seals before and after take is printed apart.
//
//   layout_change_bench [megabytes] [--only rings] [--json FILE]   default 1536
#include <benchmark/benchmark.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "figures.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/exchange/exchange.h"
#include "holdfast/exchange/shared_ring.h"
#include "holdfast/transport/processes_testing.h"
#include "holdfast/transport/tcp_transport.h"
#include "rivals/through_stores.h"

namespace holdfast {
namespace {

constexpr int kRounds = 5;
constexpr int kOld = 4, kNew = 8;
constexpr int64_t kSide = 4096;  // tensors are [4096, 4096] of F32, 64 MiB
constexpr int64_t kTensorBytes = kSide * kSide * 4;

// As tensor parallelism cuts: every second tensor by columns, the others by rows.
Collection cut(int tensors, int ranks) {
  std::vector<Tensor> all;
  std::vector<Holder> holders;
  for (int t = 0; t < tensors; ++t) {
    all.push_back({.name = fmt::format("t{}", t), .shape = Shape{kSide, kSide}});
  }
  for (int r = 0; r < ranks; ++r) holders.push_back({.name = fmt::format("rank {}", r)});
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

  struct Took {
    double copy = 0;    // the slowest rank
    double verify = 0;  // before and after together
  };
  // The pieces that each holder has afterwards, by name, in `pieces`.
  Took change(const Collection& source, const Collection& target,
              std::map<std::string, LocalPieces>& pieces,
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
      const auto in_seconds = [](Duration d) {
        return std::chrono::duration<double>(d).count();
      };
      took.copy = std::max(took.copy, in_seconds(done[r].copied_for));
      took.verify =
          std::max(took.verify, in_seconds(done[r].prepared + done[r].verified));
      made_[made.holders[r].name] = done[r].pieces;
    }
    return took;
  }
  const std::map<std::string, LocalPieces>& made() const { return made_; }

 private:
  Env& env_;
  std::vector<std::unique_ptr<TcpTransport>> transports_;
  std::map<std::string, LocalPieces> made_;
};

// The pieces of a holder, each of which has bytes of its own.
LocalPieces make_old(const Collection& source, HolderId holder, HostStorage& memory) {
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
      : env_(env), source(cut(tensors, kOld)), target(cut(tensors, kNew)) {
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
    Ranks putting(env_, kOld + count), getting(env_, count + kNew);
    const double put =
        putting.change(source, stores, pieces_, storages_, options).copy;
    std::map<std::string, LocalPieces> stored = putting.made();
    const double got = getting.change(stores, after, stored, storages_, options).copy;
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

// Copies by as many threads as there are new ranks.
void copy_by_threads(ByteView from, ByteSpan to) {
  const size_t part = from.size() / kNew;
  on_each(kNew, [&](int i) {
    const size_t at = part * static_cast<size_t>(i);
    std::memcpy(to.data() + at, from.data() + at, part);
  });
}

constexpr size_t kWindow = static_cast<size_t>(SharedRing::kSlotBytes);

void send_through(SharedRing& ring, ByteView from) {
  for (size_t at = 0; at < from.size(); at += kWindow) {
    ByteSpan slot;
    while (slot.empty()) slot = ring.free_slot();
    std::memcpy(slot.data(), from.data() + at, std::min(kWindow, from.size() - at));
    ring.publish();
  }
}

void receive_through(SharedRing& ring, ByteSpan to) {
  for (size_t at = 0; at < to.size(); at += kWindow) {
    ByteView slot;
    while (slot.empty()) slot = ring.filled_slot();
    std::memcpy(to.data() + at, slot.data(), std::min(kWindow, to.size() - at));
    ring.release();
  }
}

// A connection over loopback; [0] listens for [1].
std::pair<int, int> connect_bare() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  HOLDFAST_CHECK(::bind(listener, plain, size) == 0, "bind");
  HOLDFAST_CHECK(::listen(listener, 1) == 0, "listen");
  HOLDFAST_CHECK(::getsockname(listener, plain, &size) == 0, "getsockname");
  const int one = ::socket(AF_INET, SOCK_STREAM, 0);
  HOLDFAST_CHECK(::connect(one, plain, size) == 0, "connect");
  const int other = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  return {one, other};
}

void copy_over_tcp(ByteView from, ByteSpan to) {
  const auto [one, other] = connect_bare();
  std::jthread sender([&, descriptor = one] {
    for (size_t at = 0; at < from.size();) {
      const size_t size = std::min(from.size() - at, size_t{1} << 20);
      const ssize_t sent = ::write(descriptor, from.data() + at, size);
      HOLDFAST_CHECK(sent > 0, "write");
      at += static_cast<size_t>(sent);
    }
  });
  for (size_t at = 0; at < to.size();) {
    const ssize_t got = ::read(other, to.data() + at, to.size() - at);
    HOLDFAST_CHECK(got > 0, "read");
    at += static_cast<size_t>(got);
  }
  sender.join();
  ::close(one);
  ::close(other);
}

struct Baseline {
  const char* name;
  ExchangeOptions options;
  bool touched;
  double bar;
  // Copies the bytes that are moved between ranks; the others are copied by threads.
  std::function<void(Env&, ByteView, ByteSpan)> copy;
};

std::vector<Baseline> baselines() {
  const auto threads = [](Env&, ByteView from, ByteSpan to) { copy_by_threads(from, to); };
  const auto tcp = [](Env&, ByteView from, ByteSpan to) { copy_over_tcp(from, to); };
  return {{"one process, touched / memcpy", {}, true, 0.8, threads},
          {"one process, new / memcpy", {}, false, 0.8, threads},
          {"transport / bare TCP",
           {.direct = false, .shared_memory = false},
           true,
           0.7,
           tcp}};
}

// Memory of the host in the same condition as that of the new pieces.
class Target {
 public:
  Target(size_t bytes, bool touched) : touched_(touched) {
    shape_ = Shape{static_cast<int64_t>(bytes)};
    if (touched_) std::memset(get().data(), 1, bytes);
  }
  ByteSpan get() {
    if (touched_ && !piece_.memory.empty()) return piece_.memory;
    if (!piece_.memory.empty()) storage_.discard(piece_);
    const auto tensor = std::make_shared<const Tensor>(
        Tensor{.name = "copy", .dtype = Dtype::kU8, .shape = shape_});
    piece_ = storage_.make(tensor, Box::whole(shape_)).value();
    return piece_.memory;
  }

 private:
  const bool touched_;
  Shape shape_;
  HostStorage storage_;
  LocalPiece piece_;
};

double copy_bare(Env& env, const Baseline& base, ByteView from, Target& target,
                 const Plan& made) {
  const ByteSpan to = target.get();
  const auto moved = static_cast<size_t>(made.figures.moved);
  return seconds(env, [&] {
    base.copy(env, from.first(moved), to.first(moved));
    copy_by_threads(from.subspan(moved), to.subspan(moved));
  });
}

void measure(Env& env, int tensors, const Baseline& base, Report& figures) {
  State state(env, tensors, base.touched);
  const Plan made = plan(state.source, state.target, Topology::uniform(1)).value();
  const auto bytes = static_cast<size_t>(made.figures.needed);
  const Bytes from(bytes, std::byte{7});
  Target target(bytes, base.touched);
  Ranks ranks(env, kNew);
  Series bare, changed, verified;
  for (int round = -1; round < kRounds; ++round) {
    const double copied = copy_bare(env, base, from, target, made);
    const Ranks::Took took = state.change(ranks, base.options);
    if (round < 0) continue;  // the first round touches all pages
    bare.add(static_cast<double>(bytes) / copied);
    changed.add(static_cast<double>(bytes) / took.copy);
    verified.add(took.verify);
  }
  figures.show(fmt::format("{}: bare", base.name), bare, "GB/s", 1e9);
  figures.show(fmt::format("{}: exchange", base.name), changed, "GB/s", 1e9);
  figures.show(fmt::format("{}: seals before and after", base.name), verified, "s");
  figures.at_least(base.name, ratios(changed, bare), base.bar);
}

// What a process has measured in a round, in memory that all of them share.
struct RoundOfRank {
  double bare = 0;  // of the two ranks that copy bare
  double copy = 0, verify = 0;
};
using Rounds = std::array<std::array<RoundOfRank, kNew>, kRounds + 1>;

Rounds& shared_rounds() {
  void* memory = ::mmap(nullptr, sizeof(Rounds), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  HOLDFAST_CHECK(memory != MAP_FAILED, "mmap");
  return *new (memory) Rounds();
}

// A rank that is a process.
class RankProcess {
 public:
  RankProcess(Env& env, TcpTransport& transport, const Collection& source,
              const Collection& target, const Plan& made)
      : env_(env),
        transport_(transport),
        plan_(made),
        task_{.source = &source,
              .target = &target,
              .plan = &made,
              .holder = made.holders[static_cast<size_t>(rank())].name,
              .old = make_old(source, static_cast<HolderId>(rank()), memory_)} {
    // Rank 0 sends the bare bytes, rank 1 receives them.
    if (rank() < 2) bare_.resize(static_cast<size_t>(made.figures.needed), std::byte{7});
  }

  RoundOfRank run() {
    RoundOfRank round;
    transport_.barrier(kNoDeadline).value();
    if (rank() < 2) round.bare = copy_bare();
    transport_.barrier(kNoDeadline).value();
    const Exchanged done =
        exchange(env_, transport_, task_, pool_, {.direct = false}).value();
    round.copy = std::chrono::duration<double>(done.copied_for).count();
    round.verify = std::chrono::duration<double>(done.prepared + done.verified).count();
    for (const LocalPiece& piece : done.pieces) pool_.discard(piece);
    return round;
  }

 private:
  static constexpr Tag kTag = 9;
  int rank() const { return transport_.rank(); }

  // What moves goes through the ring, the rest is copied in the receiver.
  double copy_bare() {
    const auto moved = static_cast<size_t>(plan_.figures.moved);
    if (rank() == 0) {
      const auto ring = SharedRing::create(env_).value();
      transport_.send(1, kTag, bytes_of(ring->address()), kNoDeadline).value();
      transport_.recv(1, kTag, kNoDeadline).value();
      const double took = seconds(
          env_, [&] { send_through(*ring, ByteView(bare_).first(moved)); });
      transport_.recv(1, kTag, kNoDeadline).value();
      return took;
    }
    const Bytes address = transport_.recv(0, kTag, kNoDeadline).value();
    const auto ring = SharedRing::open(text_of(address)).value();
    const ByteSpan to(bare_);
    transport_.send(0, kTag, bytes_of("go"), kNoDeadline).value();
    const double took = seconds(env_, [&] {
      receive_through(*ring, to.first(moved));
      std::memcpy(to.data() + moved, to.data(), to.size() - moved);
    });
    transport_.send(0, kTag, bytes_of("done"), kNoDeadline).value();
    return took;
  }

  Env& env_;
  TcpTransport& transport_;
  const Plan& plan_;
  HostStorage memory_;
  PoolStorage pool_{true};
  ExchangeTask task_;
  Bytes bare_;
};

void measure_rings(int tensors, Report& figures) {
  const Collection source = cut(tensors, kOld), target = cut(tensors, kNew);
  const Plan made = plan(source, target, Topology::uniform(1)).value();
  Rounds& rounds = shared_rounds();
  tests::Processes processes(kNew, [&](Env& env, TcpTransport& transport) {
    RankProcess rank(env, transport, source, target, made);
    for (auto& round : rounds) {
      round[static_cast<size_t>(transport.rank())] = rank.run();
    }
    transport.barrier(kNoDeadline).value();
    return 0;
  });
  for (const int code : processes.wait()) HOLDFAST_CHECK(code == 0, "a rank failed");
  const auto bytes = static_cast<double>(made.figures.needed);
  Series bare, changed, verified, whole;
  for (size_t i = 1; i < rounds.size(); ++i) {  // the first round touches all pages
    RoundOfRank most;
    for (const RoundOfRank& one : rounds[i]) {
      most = {std::max(most.bare, one.bare), std::max(most.copy, one.copy),
              std::max(most.verify, one.verify)};
    }
    bare.add(bytes / most.bare);
    changed.add(bytes / most.copy);
    verified.add(most.verify);
    whole.add(most.copy + most.verify);
  }
  figures.show("rings / bare ring: bare", bare, "GB/s", 1e9);
  figures.show("rings / bare ring: exchange", changed, "GB/s", 1e9);
  figures.show("rings / bare ring: seals before and after", verified, "s");
  figures.show("rings: copy and seals", whole, "s");
  figures.at_least("rings / bare ring", ratios(changed, bare), 0.7);
}

void measure_rivals(Env& env, int tensors, Report& figures) {
  State state(env, tensors, true);
  const ExchangeOptions options{.direct = false};
  Ranks ranks(env, kNew);
  Series own, tenplex, central;
  for (int round = -1; round < kRounds; ++round) {
    const double took = state.change(ranks, options).copy;
    const double stores = state.through_stores(false, options);
    const double one = state.through_stores(true, options);
    if (round < 0) continue;
    own.add(took);
    tenplex.add(stores);
    central.add(one);
  }
  figures.show("exchange by rings", own, "s");
  figures.show("Tenplex's way by rings", tenplex, "s");
  figures.show("Central by rings", central, "s");
  figures.show("Tenplex's way / exchange", ratios(tenplex, own), "");
  figures.at_least("Central / exchange", ratios(central, own), 2);
}

}  // namespace
}  // namespace holdfast

int main(int count, char** arguments) {
  int64_t megabytes = 1536;
  std::string json, only;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = arguments[i];
    if (word == "--json" && i + 1 < count) {
      json = arguments[++i];
    } else if (word == "--only" && i + 1 < count && arguments[i + 1] == std::string_view("rings")) {
      only = arguments[++i];
    } else if (!holdfast::parse_number(word, megabytes)) {
      fmt::print(stderr,
                 "usage: layout_change_bench [megabytes] [--only rings] [--json FILE]\n");
      return 2;
    }
  }
  const auto env = holdfast::make_posix_env();
  holdfast::Report figures;
  const int tensors = static_cast<int>(std::max<int64_t>(megabytes / 64, 2));
  // Before any thread is there, because processes are made by fork.
  holdfast::measure_rings(tensors, figures);
  if (only.empty()) {
    for (const holdfast::Baseline& base : holdfast::baselines()) {
      holdfast::measure(*env, tensors, base, figures);
    }
    holdfast::measure_rivals(*env, tensors, figures);
  }
  if (!json.empty()) figures.write_json(*env, json).value();
  return figures.passed() ? 0 : 1;
}
