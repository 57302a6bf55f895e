// Measures exchanges of tensors on a GPU.
//
//   exchange_gpu [JSON]
//
// 1. One rank with 4.0 GB on the GPU goes from four pieces of each tensor to two, of rows
//    and of columns. The bar is half the speed of a copy of the same bytes inside the GPU.
//    Sealing before and after is shown apart.
// 2. Two processes on one GPU: the second gets half of the tensors of the first, 1.0 GB,
//    through shared memory. Beside it stand bare copies of as many bytes from the GPU into
//    pinned memory, and back.
#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_memory.h"
#include "holdfast/exchange/exchange.h"
#include "holdfast/transport/tcp_transport.h"

namespace holdfast {
namespace {

constexpr double kBar = 0.5;
constexpr int kRounds = 7;
constexpr int64_t kRows = 4096, kColumns = 4096;  // 32 MiB of bf16
constexpr int64_t kTensorBytes = kRows * kColumns * 2;

// Tensors in bf16, each cut into `cuts` pieces, of rows (even tensors) or of columns. Piece
// i is held by rank i * ranks / cuts.
Collection cut(int tensors, int cuts, int ranks) {
  std::vector<Tensor> all;
  for (int t = 0; t < tensors; ++t) {
    all.push_back({.name = fmt::format("t{}", t), .dtype = Dtype::kBf16,
                   .shape = {kRows, kColumns}});
  }
  std::vector<Holder> holders;
  for (int r = 0; r < ranks; ++r) holders.push_back({.name = fmt::format("rank {}", r)});
  LayoutBuilder builder(all, holders);
  std::vector<int64_t> used(holders.size());
  for (TensorId t = 0; t < all.size(); ++t) {
    for (int i = 0; i < cuts; ++i) {
      const bool rows = t % 2 == 0;
      const Extent part{kRows * i / cuts, kRows * (i + 1) / cuts};
      const Box box = rows ? Box{part, {0, kColumns}} : Box{{0, kRows}, part};
      const auto holder = static_cast<HolderId>(i * ranks / cuts);
      builder.add(t, box, holder, used[holder]);
      used[holder] += box.elements() * 2;
    }
  }
  return Collection::create(all, std::move(builder).build().value()).value();
}

struct Change {
  Change(Collection before, Collection after)
      : source(std::move(before)),
        target(std::move(after)),
        made(plan(source, target, Topology::uniform(1)).value()) {}

  Collection source, target;
  Plan made;
};

// The bytes of a piece come from the pattern, at a place that depends on tensor and box.
size_t shift_of(const LocalPiece& piece) {
  size_t number = 0;
  for (const char c : piece.tensor->name.substr(1)) number = number * 10 + static_cast<size_t>(c - '0');
  return number * 8192 + static_cast<size_t>(piece.box[0].lo + 3 * piece.box[1].lo);
}

LocalPieces make_old(const Gpu& gpu, const Collection& source, int rank,
                     PieceStorage& storage, const Pattern& pattern) {
  std::vector<LocalPiece> pieces;
  const Layout& layout = source.layout();
  for (TensorId t = 0; t < source.tensors().size(); ++t) {
    const auto tensor = std::make_shared<const Tensor>(source.tensor(t));
    for (const Slice& slice : layout.slices(t)) {
      if (layout.holder(slice.first) != static_cast<HolderId>(rank)) continue;
      pieces.push_back(storage.make(tensor, slice.box).value());
      gpu.write(pieces.back().memory,
                pattern.window(shift_of(pieces.back()), pieces.back().memory.size()));
    }
  }
  gpu.wait();
  return pieces;
}

// True if the new piece has the bytes that the old pieces of the source had.
bool is_right(const Gpu& gpu, const LocalPiece& piece, const Collection& source,
              const Pattern& pattern) {
  const Bytes seen = gpu.read(piece.memory);
  const TensorId t = *source.find(piece.tensor->name);
  for (const Slice& slice : source.layout().slices(t)) {
    const auto common = intersect(piece.box, slice.box);
    if (!common.has_value() || common->empty()) continue;
    LocalPiece old = piece;
    old.box = slice.box;
    const auto bytes = static_cast<size_t>(common->elements() * 2);
    Bytes want(bytes), got(bytes);
    const Map dense = Map::dense(*common, 2);
    run_copy(plan_copy(Map::dense(slice.box, 2).narrowed(slice.box, *common), dense,
                       common->shape(), 2),
             pattern.window(shift_of(old), static_cast<size_t>(slice.box.elements() * 2)),
             want);
    run_copy(plan_copy(piece.map.narrowed(piece.box, *common), dense, common->shape(), 2),
             seen, got);
    if (want != got) return false;
  }
  return true;
}

double seconds_of(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

Result<Exchanged> run(Env& env, Transport& transport, const Change& change,
                      const LocalPieces& old, PieceStorage& storage) {
  const ExchangeTask task{.source = &change.source,
                          .target = &change.target,
                          .plan = &change.made,
                          .holder = fmt::format("rank {}", transport.rank()),
                          .old = old};
  return exchange(env, transport, task, storage);
}

void measure_inside(Env& env, Report& figures) {
  constexpr int kTensors = 120;  // 4.03 GB
  const Gpu gpu;
  const Change change(cut(kTensors, 4, 1), cut(kTensors, 2, 1));
  const Pattern pattern(static_cast<size_t>(kTensorBytes) + 8192 * (kTensors + 3));
  const auto transport = TcpTransport::listen(env, 0, 1, {.host = "127.0.0.1"}).value();
  transport->connect({transport->address()}, kNoDeadline).value();
  Series copies, exchanges, seals, ratio, wrong;
  wrong.add(0);
  for (int round = -1; round < kRounds; ++round) {
    DeviceStorage storage(*gpu.device);
    const LocalPieces old = make_old(gpu, change.source, 0, storage, pattern);
    const auto all = static_cast<int64_t>(kTensors) * kTensorBytes;
    const ByteSpan from = gpu.device->allocate(all, 0).value();
    const ByteSpan to = gpu.device->allocate(all, 0).value();
    const double copied = [&] {
      const DeviceCopy copy(gpu, from, to);
      copy.seconds();
      return copy.seconds();
    }();
    gpu.device->free(from);
    gpu.device->free(to);
    const Exchanged done = run(env, *transport, change, old, storage).value();
    if (round < 0) {
      for (const LocalPiece& piece : done.pieces) {
        wrong.values[0] += !is_right(gpu, piece, change.source, pattern);
      }
      continue;
    }
    copies.add(copied);
    exchanges.add(seconds_of(done.copied_for));
    seals.add(seconds_of(done.verified));
    ratio.add(copied / seconds_of(done.copied_for));
  }
  figures.at_most("pieces that have other bytes after the exchange", wrong, 0);
  figures.show("copy of 4.0 GB inside the GPU", copies, "ms", 1e-3);
  figures.show("exchange of 4.0 GB inside the GPU, copying", exchanges, "ms", 1e-3);
  figures.show("exchange of 4.0 GB inside the GPU, verifying", seals, "ms", 1e-3);
  figures.at_least("speed of the exchange / of the copy", ratio, kBar);
}

// The other end of a pipe: a process with the other rank.
struct Ends {
  int in, out;
  void write_line(const std::string& text) const {
    const std::string line = text + "\n";
    HOLDFAST_CHECK(::write(out, line.data(), line.size()) == std::ssize(line), "write");
  }
  std::string read_line() const {
    std::string line;
    char c = 0;
    while (::read(in, &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
};

constexpr int kMoved = 64;  // tensors of 32 MiB, half of which go to the second process

// What one of the two processes does. Prints, in the first one, the seconds of each round.
std::vector<double> run_rank(int rank, const Ends& ends) {
  const auto env = make_posix_env();
  const auto transport = TcpTransport::listen(*env, rank, 2, {.host = "127.0.0.1"}).value();
  ends.write_line(transport->address());
  std::vector<std::string> addresses{transport->address(), ends.read_line()};
  if (rank == 1) std::swap(addresses[0], addresses[1]);
  transport->connect(addresses, env->now() + std::chrono::seconds(60)).value();
  const Gpu gpu;
  const Change change(cut(kMoved, 1, 1), cut(kMoved, 2, 2));
  const Pattern pattern(static_cast<size_t>(kTensorBytes) + 8192 * (kMoved + 3));
  std::vector<double> seconds;
  for (int round = 0; round < 4; ++round) {
    DeviceStorage storage(*gpu.device);
    const LocalPieces old =
        rank == 0 ? make_old(gpu, change.source, 0, storage, pattern) : LocalPieces();
    const Exchanged done = run(*env, *transport, change, old, storage).value();
    const bool right = round > 0 || std::ranges::all_of(done.pieces, [&](const LocalPiece& one) {
      return is_right(gpu, one, change.source, pattern);
    });
    HOLDFAST_CHECK(right, "rank {} has other bytes", rank);
    if (round > 0) seconds.push_back(seconds_of(done.copied_for));
  }
  return seconds;
}

void measure_processes(Report& figures, const std::vector<double>& seconds) {
  const Gpu gpu;
  constexpr int64_t kBytes = kMoved / 2 * kTensorBytes, kBlock = int64_t{16} << 20;
  const ByteSpan memory = gpu.device->allocate(kBytes, 0).value();
  StagingRing ring({.bytes = 2 * kBlock, .block = kBlock, .pinner = gpu.device.get()});
  const ByteSpan block = ring.take_block();
  Series from, to, moved;
  for (const double one : seconds) {
    moved.add(static_cast<double>(kBytes) / one);
    const auto each = [&](const auto& copy) {
      return gpu.seconds([&] {
        for (int64_t at = 0; at < kBytes; at += kBlock) {
          copy(memory.subspan(static_cast<size_t>(at), static_cast<size_t>(kBlock)));
        }
      });
    };
    from.add(static_cast<double>(kBytes) / each([&](ByteSpan part) {
      gpu.device->read(plain_bytes(kBlock), part, 0, block).value();
    }));
    to.add(static_cast<double>(kBytes) / each([&](ByteSpan part) { gpu.write(part, block); }));
  }
  ring.give_back(block);
  gpu.device->free(memory);
  figures.show("exchange of 1.0 GB between two processes", moved, "GB/s", 1e9);
  figures.show("bare copy from the GPU into pinned memory", from, "GB/s", 1e9);
  figures.show("bare copy from pinned memory to the GPU", to, "GB/s", 1e9);
}

int measure(int count, char** arguments) {
  // The processes part before either uses the GPU, because CUDA does not survive a fork.
  int there[2], back[2];
  HOLDFAST_CHECK(::pipe(there) == 0 && ::pipe(back) == 0, "pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    run_rank(1, {.in = there[0], .out = back[1]});
    ::_exit(0);
  }
  const std::vector<double> seconds = run_rank(0, {.in = back[0], .out = there[1]});
  int status = 0;
  HOLDFAST_CHECK(::waitpid(child, &status, 0) == child && status == 0, "the other process");
  Report figures;
  const auto env = make_posix_env();
  measure_inside(*env, figures);
  measure_processes(figures, seconds);
  return finish(figures, count, arguments);
}

}  // namespace
}  // namespace holdfast

int main(int count, char** arguments) { return holdfast::measure(count, arguments); }
