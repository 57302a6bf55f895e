// Measures how long damage takes to be found and mended, and what seals cost a load.
//
//   repair_bench [--bytes N] [--runs N] [--folder PATH] [--json PATH]
//
// Bars, for 1 GB: one damaged word of a step is mended by its seal in less than 2 s, and
// one flipped bit of a .pt file by its CRC in less than 5 s, each with all reads, the
// write of a new file and its sync; a step is loaded at 0.95 or more of the speed of the
// same step without seals.
#include <fmt/core.h>

#include <map>
#include <random>

#include "bench/figures.h"
#include "holdfast/checkpoint/restore.h"
#include "holdfast/checkpoint/saver.h"
#include "holdfast/repair/repair.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/formats/format.h"
#include "holdfast/shard/shard_index.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/manifest.h"
#include "holdfast/store/step_check.h"

namespace holdfast {
namespace {

constexpr double kGigabyte = 1e9;

struct Settings {
  int64_t bytes = 1'000'000'000;
  int64_t runs = 5;
  std::string folder = ".", json;
};

Bytes random_bytes(int64_t count) {
  Bytes bytes(static_cast<size_t>(count));
  std::mt19937_64 engine(1);
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    store_little_endian(static_cast<uint64_t>(engine()), ByteSpan(bytes).subspan(i));
  }
  return bytes;
}

// Tensors of equal size that lie one after the other.
Collection cut(int64_t bytes, int64_t each, HolderKind kind) {
  std::vector<Tensor> tensors;
  for (int64_t i = 0; i < bytes / each; ++i) {
    tensors.push_back(
        {.name = fmt::format("h.{}.weight", i), .dtype = Dtype::kF32, .shape = {each / 4}});
  }
  LayoutBuilder builder(tensors, {{.name = "memory", .kind = kind}});
  for (TensorId t = 0; t < tensors.size(); ++t) {
    builder.add(t, Box::whole(tensors[t].shape), 0, static_cast<int64_t>(t) * each);
  }
  return Collection::create(tensors, std::move(builder).build().value()).value();
}

class Bench {
 public:
  explicit Bench(Settings settings)
      : settings_(std::move(settings)), memory_(random_bytes(settings_.bytes)) {}

  Result<void> run() {
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
    HOLDFAST_TRY(save());
    HOLDFAST_TRY(mend_word());
    HOLDFAST_TRY(compare_loads());
    HOLDFAST_TRY(env_->remove_all(folder_ / "run"));
    return mend_bit();
  }

  double since(Instant start) const {
    return std::chrono::duration<double>(env_->now() - start).count();
  }
  double scaled(double seconds) const {
    return seconds * kGigabyte / static_cast<double>(settings_.bytes);
  }

  LocalState state(ByteSpan memory) const {
    LocalState state{.collection = collection_, .rank = 0, .pieces = {}};
    const int64_t each = collection_->tensor(0).bytes();
    for (TensorId t = 0; t < collection_->tensors().size(); ++t) {
      state.pieces.edit().push_back(whole_piece(
          collection_->tensor(t),
          memory.subspan(static_cast<size_t>(t) * static_cast<size_t>(each),
                         static_cast<size_t>(each))));
    }
    return state;
  }

  Result<void> save() {
    const auto saver = HOLDFAST_TRY(Saver::open(*env_, folder_ / "run", nullptr, {}));
    const LocalState saved = state(memory_);
    const SaveHandle handle = HOLDFAST_TRY(saver->save({.step = 1, .state = &saved}));
    step_ = HOLDFAST_TRY(handle.durable()).folder;
    return saver->close();
  }

  Result<void> flip(const Path& path, int64_t offset, std::byte mask) {
    const auto file = HOLDFAST_TRY(env_->open(path, {.mode = OpenMode::kUpdate}));
    std::byte byte{};
    HOLDFAST_TRY(file->read_at(offset, ByteSpan(&byte, 1)));
    byte ^= mask;
    HOLDFAST_TRY(file->write_at(offset, ByteView(&byte, 1)));
    HOLDFAST_TRY(file->sync());
    return file->close();
  }

  Result<double> mend(const Path& path) {
    const Instant start = env_->now();
    const Found found = HOLDFAST_TRY(find_to_repair(*env_, path));
    const RepairReport report = HOLDFAST_TRY(plan_repair(*env_, found));
    HOLDFAST_TRY(repair_in_place(*env_, found, report));
    return since(start);
  }

  Result<void> mend_word() {
    Series times;
    const Path shard = step_ / shard_name(0, false);
    for (int64_t run = 0; run < settings_.runs; ++run) {
      HOLDFAST_TRY(flip(shard, settings_.bytes / 2 + 4 * run, std::byte{0x41}));
      times.add(scaled(HOLDFAST_TRY(mend(step_))));
    }
    figures_.at_most("step: a word of 1 GB mended by its seal, s", times, 2);
    return {};
  }

  // Makes a step whose pieces have no seals, of the same shard.
  Result<Path> without_seals() {
    const Path folder = folder_ / "run" / "step-00000002";
    HOLDFAST_TRY(env_->create_folder(folder));
    Manifest manifest = HOLDFAST_TRY(read_manifest(*env_, step_));
    manifest.step = 2;
    ++manifest.sequence;
    for (ManifestFile& file : manifest.files) {
      if (!is_index_name(file.name)) {
        HOLDFAST_TRY(env_->link(step_ / file.name, folder / file.name));
        continue;
      }
      const Bytes old = HOLDFAST_TRY(env_->read_file(step_ / file.name));
      ShardIndex index = HOLDFAST_TRY(decode_shard_index(old, file.name));
      for (StoredPiece& piece : index.pieces) piece.seal = Seal();
      const Bytes bytes = encode_shard_index(index);
      file.bytes = std::ssize(bytes);
      file.digest = xxh3_digest(bytes);
      HOLDFAST_TRY(env_->write_file(folder / file.name, bytes));
    }
    HOLDFAST_TRY(env_->write_file(folder / kManifestName, encode_manifest(manifest)));
    return folder;
  }

  Result<void> compare_loads() {
    HOLDFAST_TRY(without_seals());
    Series with, without;
    for (int64_t run = 0; run < settings_.runs; ++run) {
      for (const int64_t step : {1, 2}) {
        const LocalState into = state(memory_);
        const Instant start = env_->now();
        HOLDFAST_TRY(restore(*env_, folder_ / "run", into, nullptr, {.step = step}));
        (step == 1 ? with : without)
            .add(static_cast<double>(settings_.bytes) / since(start));
      }
    }
    figures_.show("load with seals", with, "GB/s", kGigabyte);
    figures_.show("load without seals", without, "GB/s", kGigabyte);
    figures_.at_least("load with seals against without", ratios(with, without), 0.95);
    return {};
  }

  Result<void> mend_bit() {
    // In a larger record, other damage would pass for one flipped bit too often.
    constexpr int64_t kRecord = 500'000;
    Contents contents{
        .collection = cut(settings_.bytes, kRecord, HolderKind::kFile),
        .sources = {std::make_shared<MemorySource>("memory", std::move(memory_))},
        .objects = {},
        .metadata = {}};
    const Path path = folder_ / "a.pt";
    HOLDFAST_TRY(write_file(*env_, path, contents));
    Series times;
    for (int64_t run = 0; run < settings_.runs; ++run) {
      HOLDFAST_TRY(flip(path, settings_.bytes / 2 + run, std::byte{0x10}));
      times.add(scaled(HOLDFAST_TRY(mend(path))));
    }
    figures_.at_most(".pt: a bit of 1 GB mended by its crc, s", times, 5);
    return {};
  }

  const Settings settings_;
  Bytes memory_;
  const std::unique_ptr<Env> env_ = make_posix_env();
  const Path folder_ = Path(settings_.folder) / "repair-bench";
  // Shared with the states that are saved and restored.
  const std::shared_ptr<const Collection> collection_ = std::make_shared<const Collection>(
      cut(settings_.bytes, settings_.bytes / 8 / 4 * 4, HolderKind::kMemory));
  Path step_;
  Report figures_;
};

bool parse(int count, char** arguments, Settings& settings) {
  return parse_options(count, arguments,
                       {{"--folder", &settings.folder}, {"--json", &settings.json}},
                       {{"--bytes", &settings.bytes}, {"--runs", &settings.runs}});
}

}  // namespace
}  // namespace holdfast

int main(int count, char** arguments) {
  holdfast::Settings settings;
  if (!holdfast::parse(count, arguments, settings)) {
    fmt::print(stderr,
               "repair_bench: wrong options; expected those in repair_bench.cpp\n");
    return 2;
  }
  holdfast::Bench bench(settings);
  const holdfast::Result<void> outcome = bench.run();
  if (!outcome.ok()) {
    fmt::print(stderr, "repair_bench: {}\n", outcome.error().message());
    return 1;
  }
  return bench.passed() ? 0 : 1;
}
