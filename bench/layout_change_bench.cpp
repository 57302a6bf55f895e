// Measures how fast the state of four ranks becomes that of eight, by each carrier, beside
// what the carrier can do without a plan: memcpy of the same rows by as many threads, a bare
// ring between two processes, a bare connection. Then beside other ways to do it
// (rivals/through_stores.h). Ranks are processes for the rings and threads of one process
// otherwise.
//
// A figure is about all of an exchange but its seals. They are taken again by themselves in
// the same round, printed apart, and subtracted: ranks that have got their pieces seal them
// while others still copy, so that no clock of a rank tells the two apart.
//
// With --only redeploy, the state of four ranks moves to four others instead (Tenplex, Fig. 10).
//
//   layout_change_bench [megabytes] [--only rings|redeploy] [--json FILE]   default 1536
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <array>
#include <functional>

#include "bare_copies.h"
#include "changed_state.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/transport/processes_testing.h"

namespace holdfast {
namespace {

constexpr int kRounds = 5;

// Copies the same bytes as an exchange. `moved` of them go from one rank to another.
using BareCopy =
    std::function<void(const State&, size_t moved, ByteView from, ByteSpan to)>;

// The rows of the same boxes: what memcpy can do with them.
void copy_rows(const State& state, size_t, ByteView, ByteSpan to) {
  const size_t part = to.size() / kNew;
  on_each(kNew, [&](int rank) {
    state.copy_rows(rank, to.subspan(part * static_cast<size_t>(rank), part));
  });
}

void copy_whole(const State&, size_t, ByteView from, ByteSpan to) {
  copy_by_threads(kNew, from, to);
}

void copy_moved_over_tcp(const State&, size_t moved, ByteView from, ByteSpan to) {
  copy_over_tcp(from.first(moved), to.first(moved));
  copy_by_threads(kNew, from.subspan(moved), to.subspan(moved));
}

struct Baseline {
  const char* name;
  ExchangeOptions options;
  bool touched;
  double bar;
  BareCopy copy;
};

std::vector<Baseline> baselines() {
  return {{"one process, touched / memcpy", {}, true, 0.8, copy_rows},
          {"one process, new / memcpy", {}, false, 0.8, copy_rows},
          {"transport / bare TCP",
           {.direct = false, .shared_memory = false},
           true,
           0.7,
           copy_moved_over_tcp}};
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

void measure(Env& env, int tensors, const Baseline& base, Report& figures) {
  State state(env, tensors, base.touched);
  const Plan made = plan(state.source, state.target, Topology::uniform(1)).value();
  const auto bytes = static_cast<size_t>(made.figures.needed);
  const auto moved = static_cast<size_t>(made.figures.moved);
  const Bytes from(bytes, std::byte{7});
  Target target(bytes, base.touched);
  const auto bare_speed = [&](const BareCopy& copy) {
    const ByteSpan to = target.get();
    return static_cast<double>(bytes) /
           seconds(env, [&] { copy(state, moved, from, to); });
  };
  Ranks ranks(env, kNew);
  Series without_gaps, bare, changed, seals;
  for (int round = -1; round < kRounds; ++round) {
    const double whole = bare_speed(copy_whole), copied = bare_speed(base.copy);
    const Ranks::Took took = state.change(ranks, base.options);
    if (round < 0) continue;  // the first round touches all pages
    without_gaps.add(whole);
    bare.add(copied);
    changed.add(static_cast<double>(bytes) / took.copy());
    seals.add(took.seals);
  }
  figures.show(fmt::format("{}: memcpy without gaps", base.name), without_gaps, "GB/s",
               1e9);
  figures.show(fmt::format("{}: bare", base.name), bare, "GB/s", 1e9);
  figures.show(fmt::format("{}: exchange", base.name), changed, "GB/s", 1e9);
  figures.show(fmt::format("{}: seals before and after", base.name), seals, "s");
  figures.at_least(base.name, ratios(changed, bare), base.bar);
}

// What a process has measured in a round, in memory that all of them share.
struct RoundOfRank {
  double bare = 0;  // of the two ranks that copy bare
  double all = 0, seals = 0;
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
    round.all = std::chrono::duration<double>(done.prepared + done.copied_for +
                                              done.verified)
                    .count();
    round.seals = seal_again(task_.old) + seal_again(done.pieces);
    for (const LocalPiece& piece : done.pieces) pool_.discard(piece);
    return round;
  }

 private:
  static constexpr Tag kTag = 9;
  int rank() const { return transport_.rank(); }

  // How long it takes to seal pieces when all ranks do so.
  double seal_again(const LocalPieces& pieces) {
    transport_.barrier(kNoDeadline).value();
    return seconds(env_, [&] {
      for (const LocalPiece& piece : pieces) seal_of(piece).value();
      transport_.barrier(kNoDeadline).value();
    });
  }

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
  Series bare, changed, seals, whole;
  for (size_t i = 1; i < rounds.size(); ++i) {  // the first round touches all pages
    RoundOfRank most;
    for (const RoundOfRank& one : rounds[i]) {
      most = {std::max(most.bare, one.bare), std::max(most.all, one.all),
              std::max(most.seals, one.seals)};
    }
    bare.add(bytes / most.bare);
    changed.add(bytes / (most.all - most.seals));
    seals.add(most.seals);
    whole.add(most.all);
  }
  figures.show("rings / bare ring: bare", bare, "GB/s", 1e9);
  figures.show("rings / bare ring: exchange", changed, "GB/s", 1e9);
  figures.show("rings / bare ring: seals before and after", seals, "s");
  figures.show("rings: copy and seals", whole, "s");
  figures.at_least("rings / bare ring", ratios(changed, bare), 0.7);
}

// Beside the ways of rivals/through_stores.h, by the same carriers.
void measure_rivals(Env& env, State& state, const std::string& carriers,
                    const ExchangeOptions& options, Report& figures) {
  Ranks ranks(env, kNew);
  Series own, tenplex, central;
  for (int round = -1; round < kRounds; ++round) {
    const double took = state.change(ranks, options).copy();
    const double stores = state.through_stores(false, options);
    const double one = state.through_stores(true, options);
    if (round < 0) continue;
    own.add(took);
    tenplex.add(stores);
    central.add(one);
  }
  figures.show(fmt::format("exchange by {}", carriers), own, "s");
  figures.show(fmt::format("Tenplex's way by {}", carriers), tenplex, "s");
  figures.show(fmt::format("Central by {}", carriers), central, "s");
  figures.show(fmt::format("Tenplex's way / exchange, by {}", carriers),
               ratios(tenplex, own), "");
  const std::string name = fmt::format("Central / exchange, by {}", carriers);
  // The bar is that of ranks on several hosts. On one host all bytes have the same memory to
  // go through, so that twice the bytes take twice the time, and no more.
  if (options.shared_memory) {
    figures.show(name, ratios(central, own), "");
  } else {
    figures.at_least(name, ratios(central, own), 2);
  }
}

// Beside the rivals by messages: to twice as many ranks, or to as many others.
void measure_by_messages(Env& env, int tensors, bool others, Report& figures) {
  State state(env, tensors, true,
              others ? cut(tensors, kNew - kOld, kOld) : cut(tensors, kNew));
  measure_rivals(env, state, others ? "transport to other ranks" : "transport",
                 {.direct = false, .shared_memory = false}, figures);
}

void measure_all(Env& env, int tensors, Report& figures) {
  for (const Baseline& base : baselines()) {
    measure(env, tensors, base, figures);
  }
  State state(env, tensors, true);
  measure_rivals(env, state, "rings", {.direct = false}, figures);
  measure_by_messages(env, tensors, false, figures);
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
    } else if (word == "--only" && i + 1 < count &&
               (arguments[i + 1] == std::string_view("rings") ||
                arguments[i + 1] == std::string_view("redeploy"))) {
      only = arguments[++i];
    } else if (!holdfast::parse_number(word, megabytes)) {
      fmt::print(stderr, "usage: layout_change_bench [megabytes] [--only rings|redeploy] "
                         "[--json FILE]\n");
      return 2;
    }
  }
  const auto env = holdfast::make_posix_env();
  holdfast::Report figures;
  const int tensors = static_cast<int>(std::max<int64_t>(megabytes / 64, 2));
  // Before any thread is there, because processes are made by fork.
  if (only != "redeploy") holdfast::measure_rings(tensors, figures);
  if (only == "redeploy") holdfast::measure_by_messages(*env, tensors, true, figures);
  if (only.empty()) holdfast::measure_all(*env, tensors, figures);
  if (!json.empty()) figures.write_json(*env, json).value();
  return figures.passed() ? 0 : 1;
}
