// Measures how fast this device writes and reads a file, for several block sizes and
// numbers of transfers in flight, with O_DIRECT and through the page cache. Writes
// include the allocation and the sync; reads are cold. There is no bar here: other
// benchmarks are compared with these figures.
//
// "env" uses the Env as it is by default (io_uring if there is one), "threads" uses its
// threads instead of io_uring, and "pwrite, pread" are system calls in a loop.
//
//   raw_io_bench [--bytes=N] [--folder=PATH] [--rounds=N]
//   raw_io_bench --copy=FILE --folder=PATH     copies a file, and prints GB/s alone
//
// Writes into a new folder below --folder, which is the current folder by default.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include "bench/figures.h"
#include "bench/raw_io.h"
#include "holdfast/env/posix_env.h"

namespace holdfast {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLargest = 16 * kMiB, kDeepest = 16;

struct Settings {
  int64_t bytes = 2048 * kMiB;
  int64_t rounds = 1;
  Path folder = ".";
  Path copy{};  // the file to copy; empty to measure everything
};

// Ignores options of other benchmarks, because all benchmarks get the same options.
bool parse(int count, char** arguments, Settings& settings) {
  for (int i = 1; i < count; ++i) {
    const std::string_view text = arguments[i];
    const std::string_view value =
        text.substr(std::min(text.size(), text.find('=') + 1));
    bool good = true;
    if (text.starts_with("--bytes=")) good = parse_number(value, settings.bytes);
    if (text.starts_with("--rounds=")) good = parse_number(value, settings.rounds);
    if (text.starts_with("--folder=")) settings.folder = value;
    if (text.starts_with("--copy=")) settings.copy = value;
    if (!good) {
      fmt::print(stderr, "raw_io_bench: {}; expected a number above 0\n", text);
      return false;
    }
  }
  settings.bytes = std::max(settings.bytes / kLargest, kDeepest) * kLargest;
  return true;
}

struct Best {
  double rate = 0;
  std::string how;

  void take(double candidate, const std::string& name) {
    if (candidate > rate) *this = {candidate, name};
  }
};

class Sweep {
 public:
  explicit Sweep(const Settings& settings)
      : settings_(settings),
        path_(settings.folder / fmt::format("raw-{:016x}", env_->random64()) / "file") {
  }
  ~Sweep() { (void)env_->remove_all(path_.parent_path()); }
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;

  // Copies a cold file in the way that is fastest on most disks, for other benchmarks.
  Result<void> copy() {
    HOLDFAST_TRY(env_->create_folders(path_.parent_path()));
    const int64_t bytes = HOLDFAST_TRY(env_->info(settings_.copy)).size;
    RawShape shape{.bytes = bytes / (4 * kMiB) * (4 * kMiB), .depth = 8};
    HOLDFAST_TRY(forget(settings_.copy));
    const double rate = HOLDFAST_TRY(
        measure_raw_copy(*env_, settings_.copy, path_, shape, memory_.span()));
    fmt::print("{:.4f}\n", rate / 1e9);
    return {};
  }

  Result<void> run() {
    if (!settings_.copy.empty()) return copy();
    HOLDFAST_TRY(env_->create_folders(path_.parent_path()));
    fmt::print(
        "{} MiB of random bytes, GB/s; writes with allocation and sync, reads cold\n",
        settings_.bytes / kMiB);
    for (int64_t round = 0; round < settings_.rounds; ++round) {
      for (const bool direct : {true, false}) HOLDFAST_TRY(shapes(direct));
      HOLDFAST_TRY(others());
    }
    fmt::print("best write {:.2f} ({}), best read {:.2f} ({})\n", write_.rate / 1e9,
               write_.how, read_.rate / 1e9, read_.how);
    return {};
  }

 private:
  Result<void> shapes(bool direct) {
    for (const int64_t block : {1, 4, 16}) {
      for (const int64_t depth : {1, 4, 16}) {
        HOLDFAST_TRY(through_env(*env_, "env", shape(block, depth, direct)));
      }
    }
    return {};
  }

  // Measures with threads instead of io_uring, and with plain system calls.
  Result<void> others() {
    const auto threads = make_posix_env({.uring = false});
    HOLDFAST_TRY(through_env(*threads, "threads", shape(4, 4, true)));
    return plain(shape(16, 1, true));
  }

  RawShape shape(int64_t block, int64_t depth, bool direct) const {
    return {settings_.bytes, block * kMiB, depth, direct};
  }

  Result<void> through_env(Env& env, std::string_view way, const RawShape& shape) {
    const double write =
        HOLDFAST_TRY(measure_raw_write(env, path_, shape, memory_.span()));
    HOLDFAST_TRY(forget(path_));
    const double read =
        HOLDFAST_TRY(measure_raw_read(env, path_, shape, memory_.span()));
    report(way, shape, write, read);
    return {};
  }

  Result<void> plain(const RawShape& shape) {
    const double write =
        HOLDFAST_TRY(measure_plain_write(path_, shape, memory_.span()));
    HOLDFAST_TRY(forget(path_));
    const double read = HOLDFAST_TRY(measure_plain_read(path_, shape, memory_.span()));
    report("pwrite, pread", shape, write, read);
    return {};
  }

  void report(std::string_view way, const RawShape& shape, double write, double read) {
    const std::string how =
        fmt::format("{} {} {} MiB x {}", way, shape.direct ? "direct" : "buffered",
                    shape.block / kMiB, shape.depth);
    fmt::print("{:<40} write {:>6.2f}  read {:>6.2f}\n", how, write / 1e9, read / 1e9);
    std::fflush(stdout);
    write_.take(write, how);
    read_.take(read, how);
  }

  const Settings settings_;
  const std::unique_ptr<Env> env_ = make_posix_env();
  const Path path_;
  AlignedBytes memory_ = make_noise(kLargest * kDeepest);
  Best write_, read_;
};

}  // namespace
}  // namespace holdfast

int main(int count, char** arguments) {
  holdfast::Settings settings;
  if (!holdfast::parse(count, arguments, settings)) return 2;
  const holdfast::Result<void> outcome = holdfast::Sweep(settings).run();
  if (!outcome.ok())
    fmt::print(stderr, "raw_io_bench: {}\n", outcome.error().message());
  return outcome.ok() ? 0 : 1;
}
