// Measures whether saves and loads are as fast as the storage device. Saves and loads a
// state of incompressible fp32 tensors, in turns with raw transfers of the same bytes
// from and to the same memory.
//
//   write      the time from save() until durable: captured, digested, written, synced,
//              committed. The raw transfer allocates, writes and syncs a file.
//   load       restore() into the tensors: every byte is checked, nothing is cached
//   verify     check_step() in full
//   partial    how many bytes are read from the device to load one layer
//   memory     the peak memory of a save with a ring of 256 MiB
//   many       100,000 tensors of 4 KiB, compared with one tensor of the same bytes
//
// A sweep measures raw transfers with several block sizes and depths, with O_DIRECT and
// through the page cache. The two fastest take part in every round, and the one with
// the better median counts as raw.
//
//   checkpoint_bench [--bytes=N] [--pairs=N] [--folder=PATH] [--json=PATH]
//                    [--only=write|read|partial|memory|many]
//
// Writes into a new folder below --folder, which is the current folder by default.
// Exits with 1 if a bar is missed. Figures of a machine with other load mean little.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>

#include "bench/figures.h"
#include "bench/raw_io.h"
#include "holdfast/base/mutex.h"
#include "holdfast/checkpoint/events.h"
#include "holdfast/checkpoint/restore.h"
#include "holdfast/checkpoint/saver.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/store/step_check.h"

namespace holdfast {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kTensors = 100;
constexpr int64_t kLayer = 4;  // tensors in a layer
constexpr int64_t kLargestBlock = 16 * kMiB;

struct Settings {
  int64_t bytes = 2048 * kMiB;
  int64_t pairs = 9;
  Path folder = ".";
  Path json;
  std::string only;  // the part to measure; if empty, all parts
};

// Ignores options of other benchmarks, because all benchmarks get the same options.
bool parse(int count, char** arguments, Settings& settings) {
  for (int i = 1; i < count; ++i) {
    const std::string_view text = arguments[i];
    const std::string_view value =
        text.substr(std::min(text.size(), text.find('=') + 1));
    bool good = true;
    if (text.starts_with("--bytes=")) good = parse_number(value, settings.bytes);
    if (text.starts_with("--pairs=")) good = parse_number(value, settings.pairs);
    if (text.starts_with("--folder=")) settings.folder = value;
    if (text.starts_with("--json=")) settings.json = value;
    if (text.starts_with("--only=")) settings.only = value;
    if (!good) {
      fmt::print(stderr, "checkpoint_bench: {}; expected a number above 0\n", text);
      return false;
    }
  }
  settings.bytes = std::max(settings.bytes / kLargestBlock, kTensors) * kLargestBlock;
  return true;
}

// Reads a number from a file in /proc/self, such as "VmHWM:" from "status", in the unit
// of that file.
int64_t process_number(std::string_view file, std::string_view name) {
  std::ifstream in(fmt::format("/proc/self/{}", file));
  for (std::string word; in >> word;) {
    if (word != name) continue;
    int64_t number = 0;
    in >> number;
    return number;
  }
  return 0;
}

// Collects how long each phase of a save took, as the events of the saver report it.
class Profile : public EventSink {
 public:
  void put(const EventRecord& record) override {
    MutexLock lock(mutex_);
    for (const auto& [field, value] : record.fields) {
      const auto* const seconds = std::get_if<double>(&value);
      if (seconds != nullptr) phases_[record.name + "." + field].add(*seconds);
    }
  }

  void print() {
    MutexLock lock(mutex_);
    const auto of = [this](const char* name) {
      return phases_.contains(name) ? phases_[name].median() : 0;
    };
    const double file = of("save_written.seconds");
    fmt::print(
        "  phases, seconds: staged {:.3f}; digested {:.3f}, waited for the ring "
        "{:.3f}, "
        "for the disk {:.3f}, synced {:.3f}; committed {:.3f}\n",
        of("save_captured.seconds"), of("save_written.digest"),
        of("save_written.stage"), of("save_written.disk"), of("save_written.sync"),
        of("save_durable.seconds") - file);
  }

 private:
  Mutex mutex_;
  std::map<std::string, Series> phases_ HOLDFAST_GUARDED_BY(mutex_);
};

// A state of `count` tensors of equal size, one after the other in `memory`.
Result<LocalState> state_over(ByteSpan memory, int64_t count) {
  const int64_t elements = static_cast<int64_t>(memory.size()) / count / 4;
  const Shape shape = HOLDFAST_TRY(Shape::create(std::array{elements}));
  std::vector<LocalPiece> tensors;
  for (int64_t i = 0; i < count; ++i) {
    tensors.push_back(whole_piece(
        {.name = fmt::format("layers.{}.{}", i / kLayer, i % kLayer), .shape = shape},
        memory.subspan(static_cast<size_t>(i * elements * 4),
                       static_cast<size_t>(elements * 4))));
  }
  return make_local_state(std::move(tensors));
}

class Bench {
 public:
  explicit Bench(const Settings& settings)
      : settings_(settings),
        folder_(settings.folder / fmt::format("bench-{:016x}", env_->random64())) {}
  ~Bench() { (void)env_->remove_all(folder_); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Result<void> run() {
    HOLDFAST_TRY(env_->create_folders(folder_));
    state_ = HOLDFAST_TRY(state_over(memory_.span(), kTensors));
    fmt::print("{} MiB in {} tensors, {} rounds by turns\n", settings_.bytes / kMiB,
               kTensors, settings_.pairs);
    if (wants("write") || wants("read")) HOLDFAST_TRY(sweep());
    HOLDFAST_TRY(writes());  // always: the other parts read the step that this writes
    if (wants("read")) HOLDFAST_TRY(reads());
    if (wants("partial")) HOLDFAST_TRY(partial());
    if (wants("memory")) HOLDFAST_TRY(memory());
    if (wants("many")) HOLDFAST_TRY(many());
    if (settings_.json.empty()) return {};
    return figures_.write_json(*env_, settings_.json);
  }

  bool passed() const { return figures_.passed(); }

 private:
  struct Raw {
    RawShape shape;
    double swept = 0;
    Series rates{};
  };

  // Waits until the disk has finished the writes of earlier measurements.
  static void settle() { ::sync(); }

  bool wants(std::string_view part) const {
    return settings_.only.empty() || settings_.only == part;
  }

  Result<void> sweep() {
    for (const auto& [block, depth, direct] : {std::tuple(1, 16, true),
                                               {4, 4, true},
                                               {4, 16, true},
                                               {16, 4, true},
                                               {16, 8, true},
                                               {4, 4, false},
                                               {16, 4, false}}) {
      const RawShape shape{settings_.bytes, block * kMiB, depth, direct};
      settle();
      writes_.push_back({shape, HOLDFAST_TRY(raw_write(shape))});
      reads_.push_back({shape, HOLDFAST_TRY(raw_read(shape))});
      fmt::print("  raw {:<34} write {:>6.3f}  read {:>6.3f} GB/s\n", name_of(shape),
                 writes_.back().swept / 1e9, reads_.back().swept / 1e9);
      std::fflush(stdout);
    }
    for (std::vector<Raw>* raws : {&writes_, &reads_}) {
      std::sort(raws->begin(), raws->end(),
                [](const Raw& a, const Raw& b) { return a.swept > b.swept; });
      raws->resize(2);
    }
    return {};
  }

  static std::string name_of(const RawShape& shape) {
    return fmt::format("{} {} MiB x {}", shape.direct ? "direct" : "buffered",
                       shape.block / kMiB, shape.depth);
  }

  Result<double> raw_write(const RawShape& shape) {
    HOLDFAST_TRY(env_->remove_all(raw_path()));
    settle();
    return measure_raw_write(*env_, raw_path(), shape, memory_.span());
  }

  Result<double> raw_read(const RawShape& shape) {
    HOLDFAST_TRY(forget(raw_path()));
    return measure_raw_read(*env_, raw_path(), shape, memory_.span());
  }

  // The rates of the raw transfer that has the better median over all rounds.
  const Series& best(const std::vector<Raw>& raws) {
    const Raw& raw = *std::max_element(
        raws.begin(), raws.end(),
        [](const Raw& a, const Raw& b) { return a.rates.median() < b.rates.median(); });
    fmt::print("  raw is {}\n", name_of(raw.shape));
    return raw.rates;
  }

  Result<double> save(Saver& saver, const LocalState& state, int64_t step) {
    HOLDFAST_TRY(remove_step(step - 1));
    settle();
    const Instant start = env_->now();
    const SaveHandle handle = HOLDFAST_TRY(saver.save({.step = step, .state = &state}));
    last_ = HOLDFAST_TRY(handle.durable()).folder;
    return since(start);
  }

  Result<void> remove_step(int64_t step) {
    if (step == 0 || last_.empty()) return {};
    HOLDFAST_TRY(env_->remove_all(last_));
    return {};
  }

  double since(Instant start) const {
    return std::chrono::duration<double>(env_->now() - start).count();
  }

  Result<void> writes() {
    fmt::print("durable write\n");
    Profile profile;
    Series rates, first;
    const auto bytes = static_cast<double>(state_.collection->bytes());
    int64_t step = 0;
    const int64_t pairs = wants("write") ? settings_.pairs : 1;
    // Opens a new saver every third round, to see whether its first save is slower.
    std::unique_ptr<Saver> saver;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      for (Raw& raw : writes_) raw.rates.add(HOLDFAST_TRY(raw_write(raw.shape)));
      if (pair % 3 == 0) {
        saver = nullptr;
        saver = HOLDFAST_TRY(
            Saver::open(*env_, folder_ / "run", nullptr, {.events = &profile}));
        first.add(bytes / HOLDFAST_TRY(save(*saver, state_, ++step)));
      }
      rates.add(bytes / HOLDFAST_TRY(save(*saver, state_, ++step)));
    }
    if (!wants("write")) return {};
    const Series& raw = best(writes_);
    figures_.show("raw write", raw, "GB/s", 1e9);
    figures_.show("durable write", rates, "GB/s", 1e9);
    figures_.show("durable write, first of a saver", first, "GB/s", 1e9);
    profile.print();
    figures_.at_least("durable write of raw", ratios(rates, raw), 0.9);
    Series dearer;
    for (const double rate : first.values) dearer.add(rates.median() / rate);
    figures_.show("time of a first save of others", dearer, "x");
    return {};
  }

  Result<void> reads() {
    fmt::print("cold load and verify\n");
    Series loads, verifies;
    for (int64_t pair = 0; pair < settings_.pairs; ++pair) {
      for (Raw& raw : reads_) raw.rates.add(HOLDFAST_TRY(raw_read(raw.shape)));
      loads.add(HOLDFAST_TRY(load(state_)));
      verifies.add(HOLDFAST_TRY(verify()));
    }
    const Series& raw = best(reads_);
    figures_.show("raw read", raw, "GB/s", 1e9);
    figures_.show("cold load, verified", loads, "GB/s", 1e9);
    figures_.show("verify", verifies, "GB/s", 1e9);
    figures_.at_least("cold load of raw", ratios(loads, raw), 0.9);
    figures_.at_least("verify of raw", ratios(verifies, raw), 0.8);
    return {};
  }

  Result<void> forget_step() {
    for (const std::string& name : HOLDFAST_TRY(env_->list(last_))) {
      HOLDFAST_TRY(forget(last_ / name));
    }
    return {};
  }

  Result<double> load(const LocalState& into) {
    HOLDFAST_TRY(forget_step());
    const Instant start = env_->now();
    const RestoredState restored = HOLDFAST_TRY(restore(*env_, folder_ / "run", into));
    return static_cast<double>(restored.needed) / since(start);
  }

  Result<double> verify() {
    HOLDFAST_TRY(forget_step());
    const Instant start = env_->now();
    const StepReport report = HOLDFAST_TRY(check_step(*env_, last_, Depth::kFull));
    const double seconds = since(start);
    if (!report.whole()) return report.error();
    return static_cast<double>(report.bytes_read) / seconds;
  }

  // Loads one layer from the middle of the state. The kernel counts the bytes that are
  // read from the device, those of the index included.
  Result<void> partial() {
    fmt::print("partial load\n");
    const auto first = state_.pieces.begin() + kTensors / 2;
    const LocalState layer =
        HOLDFAST_TRY(make_local_state(std::vector<LocalPiece>(first, first + kLayer)));
    HOLDFAST_TRY(forget_step());
    const int64_t before = process_number("io", "read_bytes:");
    const RestoredState restored = HOLDFAST_TRY(restore(*env_, folder_ / "run", layer));
    const int64_t fetched = process_number("io", "read_bytes:") - before;
    const auto needed = static_cast<double>(restored.needed);
    figures_.at_most("bytes of shards read, of those needed",
                     {{static_cast<double>(restored.read) / needed}}, 1.05);
    figures_.at_most("bytes fetched from the device, of those needed",
                     {{static_cast<double>(fetched) / needed}}, 1.05);
    return {};
  }

  Result<void> memory() {
    fmt::print("peak memory of a save with a ring of 256 MiB\n");
    Series peaks;
    for (int round = 0; round < 3; ++round) {
      std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
      const int64_t before = process_number("status", "VmRSS:");
      const auto saver = HOLDFAST_TRY(
          Saver::open(*env_, folder_ / "run", nullptr, {.ring_bytes = 256 * kMiB}));
      HOLDFAST_TRY(save(*saver, state_, 1000 + round));
      const int64_t peak = process_number("status", "VmHWM:") - before;
      peaks.add(static_cast<double>(peak) / 1024);
    }
    figures_.at_most("MiB above the state", peaks, 256 + 64);
    return {};
  }

  Result<void> many() {
    constexpr int64_t kMany = 100'000;
    fmt::print("{} tensors of 4 KiB\n", kMany);
    const ByteSpan memory = memory_.span().first(kMany * 4096);
    const LocalState all = HOLDFAST_TRY(state_over(memory, kMany));
    const LocalState one = HOLDFAST_TRY(state_over(memory, 1));
    Series of_all, of_one, of_all_again, of_one_again, planning;
    for (int round = 0; round < 5; ++round) {
      HOLDFAST_TRY(save_twice(one, 2000 + 4 * round, of_one, of_one_again));
      HOLDFAST_TRY(save_twice(all, 2002 + 4 * round, of_all, of_all_again, &planning));
    }
    figures_.show("one tensor", of_one, "s");
    figures_.show("one tensor, again", of_one_again, "s");
    figures_.show("100,000 tensors, planned once", planning, "s");
    figures_.show("100,000 tensors", of_all, "s");
    figures_.show("100,000 tensors, again", of_all_again, "s");
    figures_.at_most("100,000 tensors of one", ratios(of_all, of_one), 3);
    figures_.at_most("100,000 tensors of one, again",
                     ratios(of_all_again, of_one_again), 3);
    return {};
  }

  // Calls prepare() before the first save, as a job does before training begins.
  Result<void> save_twice(const LocalState& state, int64_t step, Series& first,
                          Series& again, Series* planning = nullptr) {
    const auto saver = HOLDFAST_TRY(Saver::open(*env_, folder_ / "run"));
    const Instant start = env_->now();
    HOLDFAST_TRY(saver->prepare(state));
    if (planning != nullptr) planning->add(since(start));
    first.add(HOLDFAST_TRY(save(*saver, state, step)));
    again.add(HOLDFAST_TRY(save(*saver, state, step + 1)));
    return {};
  }

  Path raw_path() const { return folder_ / "raw"; }

  const Settings settings_;
  const std::unique_ptr<Env> env_ = make_posix_env();
  const Path folder_;
  AlignedBytes memory_ = make_noise(settings_.bytes);
  LocalState state_;
  Path last_;  // the folder of the newest step
  std::vector<Raw> writes_, reads_;
  Report figures_;
};

}  // namespace
}  // namespace holdfast

int main(int count, char** arguments) {
  holdfast::Settings settings;
  if (!holdfast::parse(count, arguments, settings)) return 2;
  holdfast::Bench bench(settings);
  const holdfast::Result<void> outcome = bench.run();
  if (!outcome.ok()) {
    fmt::print(stderr, "checkpoint_bench: {}\n", outcome.error().message());
    return 1;
  }
  return bench.passed() ? 0 : 1;
}
