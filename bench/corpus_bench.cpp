// Measures how fast the samples of a file of text are indexed and read, beside reads
// without anything else.
//
//   corpus_bench [--bytes N] [--samples N] [--rounds N] [--threads N] [--folder PATH]
//                [--json PATH]
//
// The file has `bytes` bytes of lines of 1 KiB. Each round is measured cold (after the
// page cache was dropped, which needs root) and cached. Indexing is compared with a
// sequential read of the file in blocks of 1 MiB. A full shuffle, of which `samples`
// samples are read in batches of 256, is compared with as many preads of the same lines in
// the same order, by as many threads, each into memory of its own. Last, a file of 10^8
// windows is opened, and a batch of another number of ranks is found at any position of it.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "bench/figures.h"
#include "bench/raw_io.h"
#include "holdfast/dataset/corpus.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/state/sample_sequence.h"

namespace holdfast {
namespace {

constexpr double kLeastIndexing = 0.5;
constexpr double kLeastShuffle = 0.8;
constexpr int64_t kLine = 1024;
constexpr int64_t kBatch = 256;
constexpr int64_t kWindows = 100'000'000;
constexpr double kMostMilliseconds = 10;

struct Settings {
  int64_t bytes = 2'000'000'000;
  int64_t samples = 50'000;
  int64_t rounds = 3;
  int64_t threads = 8;
  std::string folder = ".", json;
};

// Lines of kLine bytes in all, which differ.
Result<void> write_lines(Env& env, const Path& path, int64_t bytes) {
  const auto file = HOLDFAST_TRY(env.open(path, {.mode = OpenMode::kTruncate}));
  std::string block;
  int64_t at = 0;
  for (int64_t line = 0; line < bytes / kLine; ++line) {
    std::string text = fmt::format("{{\"n\": {}, \"text\": \"", line);
    text.append(static_cast<size_t>(kLine) - 3 - text.size(), static_cast<char>('a' + line % 26));
    block += text + "\"}\n";
    if (std::ssize(block) < (4 << 20) && (line + 1) * kLine < bytes / kLine * kLine) continue;
    HOLDFAST_TRY(file->write_at(at, bytes_of(block)));
    at += std::ssize(block);
    block.clear();
  }
  HOLDFAST_TRY(file->sync_data());
  return file->close();
}

class Bench {
 public:
  explicit Bench(Settings settings) : settings_(std::move(settings)) {}

  Result<void> run() {
    HOLDFAST_TRY(env_->create_folders(folder_));
    const Result<void> done = run_all();
    HOLDFAST_TRY(env_->remove_all(folder_));
    HOLDFAST_TRY(done);
    return settings_.json.empty() ? Result<void>()
                                  : report_.write_json(*env_, settings_.json);
  }
  bool passed() const { return report_.passed(); }

 private:
  Result<void> run_all() {
    HOLDFAST_TRY(write_lines(*env_, file_, settings_.bytes));
    corpus_ = HOLDFAST_TRY(Corpus::open(
        *env_, {file_.native()}, {.threads = static_cast<int>(settings_.threads)}));
    for (const char* const cache : {"cold", "cached"}) HOLDFAST_TRY(measure(cache));
    return measure_windows();
  }

  Result<void> measure_windows() {
    const Path path = folder_ / "windows.bin";
    const auto file = HOLDFAST_TRY(env_->open(path, {.mode = OpenMode::kTruncate}));
    HOLDFAST_TRY(file->truncate(kWindows));
    HOLDFAST_TRY(file->close());
    const auto open = [&] {
      return Corpus::open(*env_, {path.native()}, {.context = 1, .dtype = Dtype::kU8});
    };
    HOLDFAST_TRY(open());  // makes the index
    Series opened, found;
    for (int64_t round = 0; round < 10 * settings_.rounds; ++round) {
      const Instant start = env_->now();
      const auto corpus = HOLDFAST_TRY(open());
      opened.add(1e3 * seconds_since(start));
      found.add(HOLDFAST_TRY(find_batch(*corpus, round)));
    }
    report_.at_most("10^8 windows: open, ms", opened, kMostMilliseconds);
    report_.at_most("10^8 windows: find a batch at any position, ms", found, kMostMilliseconds);
    return {};
  }

  // Milliseconds. Position and number of ranks are others in each round.
  Result<double> find_batch(const Corpus& corpus, int64_t round) {
    const int64_t at = round * 7'654'321 % (kWindows - kBatch), ranks = 1 + round % 9;
    const Instant start = env_->now();
    const auto sequence = HOLDFAST_TRY(SampleSequence::create(
        {.samples = corpus.samples(), .seed = 5, .batch = kBatch}));
    const Positions share = share_of(HOLDFAST_TRY(sequence.batch_at(at)), round % ranks, ranks);
    HOLDFAST_TRY(corpus.ranges_of(sequence.indices(share)));
    return 1e3 * seconds_since(start);
  }

  Result<void> measure(const std::string& cache) {
    const bool is_cold = cache == "cold";
    Series raw, index, bare, shuffle;
    if (!is_cold) HOLDFAST_TRY(read_all());
    for (int64_t round = 0; round < settings_.rounds; ++round) {
      const std::vector<int64_t> order = order_of(round);
      // The two ways take turns in being the first of a round.
      for (const int way : {0, 1}) {
        const bool is_raw = (round + way) % 2 == 0;
        if (is_cold) HOLDFAST_TRY(forget(file_));
        (is_raw ? raw : index).add(HOLDFAST_TRY(is_raw ? read_all() : index_all()));
        if (is_cold) HOLDFAST_TRY(forget(file_));
        (is_raw ? bare : shuffle).add(HOLDFAST_TRY(is_raw ? read_bare(order)
                                                          : read_samples(order)));
      }
    }
    report_.show(cache + ": sequential read", raw, "GB/s", 1e9);
    report_.show(cache + ": indexing", index, "GB/s", 1e9);
    report_.at_least(cache + ": indexing, of a sequential read", ratios(index, raw), kLeastIndexing);
    report_.show(cache + ": bare preads of a shuffle", bare, "samples/s");
    report_.show(cache + ": full shuffle", shuffle, "samples/s");
    report_.at_least(cache + ": full shuffle, of bare preads", ratios(shuffle, bare), kLeastShuffle);
    return {};
  }

  // Another part of the order in each round, so that what was read is not read again.
  std::vector<int64_t> order_of(int64_t round) {
    const auto sequence = SampleSequence::create({.samples = corpus_->samples(), .batch = kBatch});
    const int64_t first = round * settings_.samples;
    return sequence.value().indices({first, first + settings_.samples});
  }

  // Bytes a second.
  Result<double> read_all() {
    const RawShape shape{
        .bytes = settings_.bytes >> 20 << 20, .block = 1 << 20, .direct = false};
    return measure_plain_read(file_, shape, memory_.span());
  }

  Result<double> index_all() {
    const Path index = folder_ / "again";
    HOLDFAST_TRY(env_->remove_all(index));
    const Instant start = env_->now();
    HOLDFAST_TRY(make_index(*env_, file_, index, CorpusKind::kText, {}));
    return static_cast<double>(settings_.bytes) / seconds_since(start);
  }

  // Samples a second.
  Result<double> read_bare(const std::vector<int64_t>& order) {
    const std::vector<FileRange> ranges = HOLDFAST_TRY(corpus_->ranges_of(order));
    const int file = ::open(file_.c_str(), O_RDONLY | O_CLOEXEC);
    std::atomic<size_t> next = 0;
    std::atomic<bool> is_whole = file >= 0;
    const Instant start = env_->now();
    on_each(static_cast<int>(settings_.threads), [&](int) {
      char line[kLine];
      for (size_t i = next++; i < ranges.size(); i = next++) {
        const auto size = static_cast<size_t>(ranges[i].size());
        const ssize_t count = ::pread(file, line, size, ranges[i].begin);
        if (count != static_cast<ssize_t>(size)) is_whole = false;
      }
    });
    const double took = seconds_since(start);
    ::close(file);
    if (!is_whole) return io_error("{}: cannot be read", file_.native());
    return static_cast<double>(order.size()) / took;
  }

  Result<double> read_samples(const std::vector<int64_t>& order) {
    std::vector<Bytes> into(static_cast<size_t>(kBatch), Bytes(kLine));
    std::vector<SampleRead> reads;
    const Instant start = env_->now();
    for (size_t first = 0; first < order.size(); first += into.size()) {
      const auto batch = std::span(order).subspan(first, std::min(into.size(), order.size() - first));
      reads.clear();
      for (const FileRange& range : HOLDFAST_TRY(corpus_->ranges_of(batch))) {
        reads.push_back({range, ByteSpan(into[reads.size()]).first(static_cast<size_t>(range.size()))});
      }
      HOLDFAST_TRY(corpus_->read(reads));
    }
    return static_cast<double>(order.size()) / seconds_since(start);
  }

  double seconds_since(Instant start) {
    return std::chrono::duration<double>(env_->now() - start).count();
  }

  const Settings settings_;
  const std::unique_ptr<Env> env_ = make_posix_env();
  const Path folder_ = Path(settings_.folder) / "corpus-bench";
  const Path file_ = folder_ / "lines.jsonl";
  AlignedBytes memory_{4 << 20};
  std::unique_ptr<Corpus> corpus_;
  Report report_;
};

bool parse(int count, char** arguments, Settings& settings) {
  return parse_options(count, arguments,
                       {{"--folder", &settings.folder}, {"--json", &settings.json}},
                       {{"--bytes", &settings.bytes},
                        {"--samples", &settings.samples},
                        {"--rounds", &settings.rounds},
                        {"--threads", &settings.threads}});
}

}  // namespace
}  // namespace holdfast

int main(int count, char** arguments) {
  holdfast::Settings settings;
  if (!holdfast::parse(count, arguments, settings)) {
    fmt::print(stderr, "corpus_bench: wrong options; expected those in corpus_bench.cpp\n");
    return 2;
  }
  holdfast::Bench bench(settings);
  const holdfast::Result<void> outcome = bench.run();
  if (!outcome.ok()) {
    fmt::print(stderr, "corpus_bench: {}\n", outcome.error().message());
    return 1;
  }
  return bench.passed() ? 0 : 1;
}
