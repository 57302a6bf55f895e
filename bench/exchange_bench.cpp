// Measures how fast the memory of a rank is filled from one and from two peers on the
// same machine, beside a raw copy of the same bytes through the same kind of shared
// memory, which plans nothing, agrees on nothing and checks nothing; and beside one that
// also computes the seals, which take longer than the copy.
//
// The bar is against the copy with seals: a fill must not hand a replacement bytes that
// nobody has checked, and no code that checks them can be as fast as one that does not.
// The other ratio is printed without a bar.
//
//   exchange_bench [megabytes]   default 256
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "figures.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/exchange/change_layout.h"
#include "holdfast/exchange/shared_ring.h"
#include "holdfast/state/seal.h"
#include "holdfast/transport/tcp_transport.h"

namespace holdfast {
namespace {

constexpr double kBar = 0.8;
constexpr int kRounds = 9;
constexpr int64_t kTensor = int64_t{4} << 20;

// Ranks of one job in this process: rank 0 is to be filled, the others are whole.
class Job {
 public:
  Job(Env& env, int ranks, int64_t bytes) : env_(env) {
    std::vector<std::string> addresses;
    for (int rank = 0; rank < ranks; ++rank) {
      transports_.push_back(
          TcpTransport::listen(env, rank, ranks, {.host = "127.0.0.1"}).value());
      addresses.push_back(transports_.back()->address());
      memories_.emplace_back(static_cast<size_t>(bytes),
                             static_cast<std::byte>(rank == 0 ? 0 : 7));
      pieces_.push_back(pieces_in(memories_.back()));
    }
    on_each(ranks,
            [&](int rank) { transport(rank).connect(addresses, kNoDeadline).value(); });
  }

  double fill() {
    std::ranges::fill(memories_[0], std::byte{0});
    const double took = seconds(env_, [&] {
      on_each(static_cast<int>(pieces_.size()), [&](int rank) {
        const auto r = static_cast<size_t>(rank);
        GivenStorage storage(pieces_[r]);
        const LayoutChange change{.old = rank == 0 ? LocalPieces() : pieces_[r],
                                  .wanted = rank == 0 ? pieces_[r] : LocalPieces()};
        const Result<Exchanged> filled =
            change_layout(env_, transport(rank), change, storage,
                          {.proof = ExchangeProof::kMoved});
        HOLDFAST_CHECK(filled.ok(), "{}", filled.error().message());
      });
    });
    HOLDFAST_CHECK(memories_[0] == memories_[1], "filled with other bytes");
    return took;
  }

 private:
  static LocalPieces pieces_in(Bytes& memory) {
    std::vector<LocalPiece> pieces;
    const auto bytes = static_cast<int64_t>(memory.size());
    for (int64_t at = 0; at < bytes; at += kTensor) {
      const Shape shape{kTensor / 4096, 1024};
      pieces.push_back(whole_piece({.name = fmt::format("t{}", at), .shape = shape},
                                   ByteSpan(memory).subspan(static_cast<size_t>(at))));
    }
    return pieces;
  }
  TcpTransport& transport(int rank) { return *transports_[static_cast<size_t>(rank)]; }

  Env& env_;
  std::vector<std::unique_ptr<TcpTransport>> transports_;
  std::vector<Bytes> memories_;
  std::vector<LocalPieces> pieces_;
};

// Copies the bytes through a ring: one thread in, another out. With `sealed`, both
// compute the seals that a fill computes, and compare nothing.
void copy_through_ring(Env& env, ByteView from, ByteSpan to, bool sealed) {
  const auto ring = SharedRing::create(env).value();
  const auto other = SharedRing::open(ring->address()).value();
  const auto window = static_cast<size_t>(SharedRing::kSlotBytes);
  std::jthread sender([&] {
    for (size_t at = 0; at < from.size(); at += window) {
      ByteSpan slot;
      while (slot.empty()) slot = ring->free_slot();
      const ByteSpan into = slot.first(std::min(window, from.size() - at));
      std::memcpy(into.data(), from.data() + at, into.size());
      if (sealed) benchmark::DoNotOptimize(seal_bytes(into, at));
      ring->publish();
    }
  });
  size_t unsealed = 0;
  for (size_t at = 0; at < to.size(); at += window) {
    ByteView slot;
    while (slot.empty()) slot = other->filled_slot();
    const size_t size = std::min(window, to.size() - at);
    std::memcpy(to.data() + at, slot.data(), size);
    other->release();
    if (!sealed || at + size - unsealed < kTensor) continue;
    benchmark::DoNotOptimize(seal_bytes(to.subspan(unsealed, kTensor), unsealed));
    unsealed += kTensor;
  }
}

double copy_raw(Env& env, int peers, ByteView from, ByteSpan to, bool sealed) {
  return seconds(env, [&] {
    const size_t part = from.size() / static_cast<size_t>(peers);
    on_each(peers, [&](int peer) {
      const size_t at = part * static_cast<size_t>(peer);
      copy_through_ring(env, from.subspan(at, part), to.subspan(at, part), sealed);
    });
  });
}

void measure(Env& env, int peers, int64_t bytes, Report& figures) {
  Job job(env, peers + 1, bytes);
  const Bytes from(static_cast<size_t>(bytes), std::byte{7});
  Bytes to(from.size());
  Series raw, sealed, fill;
  for (int round = -1; round < kRounds; ++round) {
    const double copied = copy_raw(env, peers, from, to, false);
    const double checked = copy_raw(env, peers, from, to, true);
    const double filled = job.fill();
    if (round < 0) continue;  // the first round touches all pages
    raw.add(static_cast<double>(bytes) / copied);
    sealed.add(static_cast<double>(bytes) / checked);
    fill.add(static_cast<double>(bytes) / filled);
  }
  const std::string name = fmt::format("{} peer{}", peers, peers == 1 ? "" : "s");
  figures.show(fmt::format("raw copy, {}", name), raw, "GB/s", 1e9);
  figures.show(fmt::format("raw copy and seals, {}", name), sealed, "GB/s", 1e9);
  figures.show(fmt::format("fill, {}", name), fill, "GB/s", 1e9);
  figures.at_least(fmt::format("fill / raw copy and seals, {}", name),
                   ratios(fill, sealed), kBar);
  figures.show(fmt::format("fill / raw copy, {}", name), ratios(fill, raw), "");
}

}  // namespace
}  // namespace holdfast

int main(int count, char** arguments) {
  int64_t megabytes = 256;
  if (count > 2 || (count == 2 && !holdfast::parse_number(arguments[1], megabytes))) {
    fmt::print(stderr, "usage: exchange_bench [megabytes]\n");
    return 2;
  }
  const auto env = holdfast::make_posix_env();
  holdfast::Report figures;
  const int64_t tensors = std::max<int64_t>(megabytes / 4, 2);
  for (const int peers : {1, 2}) {
    holdfast::measure(*env, peers, tensors * holdfast::kTensor, figures);
  }
  return figures.passed() ? 0 : 1;
}
