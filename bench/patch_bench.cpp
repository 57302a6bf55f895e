// Measures patches: one flip in a large file of each format, and many flips at once.
//
//   patch_bench [--bytes N] [--flips N] [--runs N] [--folder PATH] [--json PATH]
//   patch_bench --file PATH --tensor NAME --flips N
//
// The large files are sparse. Bars: one flip in 4 GB takes less than 5 ms beside its
// syncs, of which there are at most 5, and a patch of 100,000 flips in a file of 2 GB
// applies 50,000 a second or more, with its syncs. The second form only prints how many
// flips a second it applies to a file that is there; formats_bench.py compares that with
// another program.
#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <random>

#include "bench/figures.h"
#include "holdfast/env/env_wrapper.h"
#include "holdfast/env/file_wrapper.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/formats/format.h"
#include "holdfast/formats/sparse_testing.h"

namespace holdfast {
namespace {

struct Settings {
  int64_t bytes = 4'000'000'000;
  int64_t flips = 100'000;
  int64_t runs = 5;
  std::string folder = ".", json, file, tensor;
};

// Counts the syncs of files, and the time that they take.
class SyncCounter : public EnvWrapper {
 public:
  using EnvWrapper::EnvWrapper;

  Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) override {
    auto file = HOLDFAST_TRY(inner_.open(path, options));
    return std::unique_ptr<File>(
        std::make_unique<CountedFile>(std::move(file), *this));
  }
  Result<void> sync_folder(const Path& folder) override {
    return counted([&] { return inner_.sync_folder(folder); });
  }

  int syncs = 0;
  double seconds = 0;

 private:
  template <typename Sync>
  Result<void> counted(const Sync& sync) {
    const Instant start = inner_.now();
    Result<void> done = sync();
    seconds += std::chrono::duration<double>(inner_.now() - start).count();
    ++syncs;
    return done;
  }

  class CountedFile : public FileWrapper {
   public:
    CountedFile(std::unique_ptr<File> inner, SyncCounter& counter)
        : FileWrapper(std::move(inner)), counter_(counter) {}
    Result<void> sync() override {
      return counter_.counted([&] { return inner_->sync(); });
    }
    Result<void> sync_data() override {
      return counter_.counted([&] { return inner_->sync_data(); });
    }

   private:
    SyncCounter& counter_;
  };
};

// Flips of one bit of random elements, none of them twice.
std::vector<Flip> random_flips(const std::string& tensor, int64_t elements,
                               int64_t count) {
  std::mt19937_64 engine(1);
  std::vector<Flip> flips;
  const int64_t stride = std::max<int64_t>(elements / count, 1);
  for (int64_t i = 0; i < count; ++i) {
    const auto inside = static_cast<int64_t>(engine() % static_cast<uint64_t>(stride));
    Flip flip{.tensor = tensor, .element = i * stride + inside};
    flip.mask[1] = std::byte{4};
    flips.push_back(flip);
  }
  std::shuffle(flips.begin(), flips.end(), engine);
  return flips;
}

class Bench {
 public:
  explicit Bench(Settings settings) : settings_(std::move(settings)) {}

  Result<void> run() {
    if (!settings_.file.empty()) return run_file();
    HOLDFAST_TRY(env_->create_folders(folder_));
    const Result<void> done = run_all();
    HOLDFAST_TRY(env_->remove_all(folder_));
    HOLDFAST_TRY(done);
    return settings_.json.empty() ? Result<void>()
                                  : figures_.write_json(*env_, settings_.json);
  }
  bool passed() const { return figures_.passed(); }

 private:
  Result<void> run_all() {
    for (const Format& format : formats()) {
      if (!format.can_write() || !format.can_patch() || format.one_tensor) continue;
      const Path path = folder_ / "large";
      HOLDFAST_TRY(tests::write_sparse(*env_, path, format, settings_.bytes));
      HOLDFAST_TRY(one_flip(format, path));
      HOLDFAST_TRY(env_->remove_all(path));
      HOLDFAST_TRY(tests::write_sparse(*env_, path, format, settings_.bytes / 2));
      HOLDFAST_TRY(many_flips(format, path));
      HOLDFAST_TRY(env_->remove_all(path));
    }
    return {};
  }

  // Seconds for planning and applying a patch, with its syncs.
  Result<double> apply(Env& env, const Path& path, const std::vector<Flip>& flips) {
    const Instant start = env_->now();
    const Patch patch =
        HOLDFAST_TRY(plan_patch(env, path, flips, Checksums::kConsistent));
    HOLDFAST_TRY(apply_patch(env, patch));
    return std::chrono::duration<double>(env_->now() - start).count();
  }

  Result<void> one_flip(const Format& format, const Path& path) {
    Series times, syncs;
    for (int64_t run = 0; run < settings_.runs; ++run) {
      const auto flips = random_flips("large", settings_.bytes / 4, 1 + run);
      SyncCounter counter(*env_);
      const double took = HOLDFAST_TRY(apply(counter, path, {flips.back()}));
      times.add(1000 * (took - counter.seconds));
      syncs.add(counter.syncs);
    }
    figures_.at_most(fmt::format("{}: one flip beside syncs, ms", format.name), times,
                     5);
    figures_.at_most(fmt::format("{}: syncs of one flip", format.name), syncs, 5);
    return {};
  }

  Result<void> many_flips(const Format& format, const Path& path) {
    const auto flips = random_flips("large", settings_.bytes / 8, settings_.flips);
    Series rates;
    for (int64_t run = 0; run < settings_.runs; ++run) {
      rates.add(static_cast<double>(settings_.flips) /
                HOLDFAST_TRY(apply(*env_, path, flips)));
    }
    figures_.at_least(fmt::format("{}: flips a second in one patch", format.name),
                      rates, 50'000);
    return {};
  }

  Result<void> run_file() {
    const Contents contents = HOLDFAST_TRY(open_file(*env_, settings_.file));
    const auto tensor = contents.collection.find(settings_.tensor);
    if (!tensor) return not_found("{}: no such tensor", settings_.tensor);
    const auto flips = random_flips(
        settings_.tensor, contents.collection.tensor(*tensor).shape.elements(),
        settings_.flips);
    const double took = HOLDFAST_TRY(apply(*env_, settings_.file, flips));
    fmt::print("{:.0f}\n", static_cast<double>(settings_.flips) / took);
    return {};
  }

  const Settings settings_;
  const std::unique_ptr<Env> env_ = make_posix_env();
  const Path folder_ = Path(settings_.folder) / "patch-bench";
  Report figures_;
};

bool parse(int count, char** arguments, Settings& settings) {
  return parse_options(count, arguments,
                       {{"--folder", &settings.folder},
                        {"--json", &settings.json},
                        {"--file", &settings.file},
                        {"--tensor", &settings.tensor}},
                       {{"--bytes", &settings.bytes},
                        {"--flips", &settings.flips},
                        {"--runs", &settings.runs}});
}

}  // namespace
}  // namespace holdfast

int main(int count, char** arguments) {
  holdfast::Settings settings;
  if (!holdfast::parse(count, arguments, settings)) {
    fmt::print(stderr,
               "patch_bench: wrong options; expected those in patch_bench.cpp\n");
    return 2;
  }
  holdfast::Bench bench(settings);
  const holdfast::Result<void> outcome = bench.run();
  if (!outcome.ok()) {
    fmt::print(stderr, "patch_bench: {}\n", outcome.error().message());
    return 1;
  }
  return bench.passed() ? 0 : 1;
}
