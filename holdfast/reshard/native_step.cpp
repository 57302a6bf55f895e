// Writes a re-cut checkpoint as a run with one step.
//
// The hidden run itself becomes the target. Shards are written into its folder "files". The
// index of a shard is written when the shard is durable, so an index says that its shard is
// finished. The step is made of links to the shards.
#include <algorithm>
#include <thread>

#include "holdfast/base/json_text.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/checkpoint/write_plan.h"
#include "holdfast/device/staging_ring.h"
#include "holdfast/reshard/target_writer.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/shard/shard_writer.h"
#include "holdfast/state/object_json.h"
#include "holdfast/store/attempt.h"

namespace holdfast {
namespace {

// The memory of one file that is being written. With the windows and chunks of its reader
// a writer needs less than 48 MiB.
constexpr int64_t kRingBytes = int64_t{32} << 20;
constexpr int64_t kBlockBytes = int64_t{4} << 20;

// The bytes of the tensors in a shard.
int64_t bytes_in(const ShardIndex& index) {
  int64_t bytes = 0;
  for (const StoredPiece& piece : index.pieces) {
    bytes += piece.box.elements() * bytes_of(index.tensors[piece.tensor].dtype);
  }
  return bytes;
}

// Carries out one call of write_native().
class NativeWriter : public TargetWriter {
 public:
  NativeWriter(Env& env, const ReshardPlan& plan, const Path& to,
               const ReshardOptions& options)
      : TargetWriter(env, plan, to, options,
                     std::ssize(plan.files->layout().holders()),
                     plan.files->bytes() + bytes_to_seal(plan)),
        indexes_(plan.files->layout().holders().size()) {
    for (TensorId t = 0; t < plan.files->tensors().size(); ++t) {
      source_of_.push_back(source_tensor(plan, t));
    }
  }

 private:
  // A step that an earlier call has committed is made again from the files: it is only
  // links.
  Result<void> begin(const Run& run) override {
    for (const Step& step : HOLDFAST_TRY(run.steps()).steps) {
      HOLDFAST_TRY(env_.remove_all(step.folder));
    }
    return {};
  }

  Result<void> remove_files() override { return env_.remove_all(files_); }
  Result<void> publish() override { return env_.rename_new(work_, to_); }
  // A failure is ignored: the owner is dead when this process ends.
  void leave() override { static_cast<void>(std::move(*owner_).release_at(to_)); }

  Result<int64_t> load_finished(int64_t file) override {
    const Path path = files_ / index_name(static_cast<int>(file));
    ShardIndex index = HOLDFAST_TRY(
        decode_shard_index(HOLDFAST_TRY(env_.read_file(path)), path.native()));
    const FileInfo info = HOLDFAST_TRY(env_.info(files_ / index.files.front().name));
    if (info.size != index.files.front().bytes) {
      return corrupt("{}: is of {} bytes; expected {}", path.native(), info.size,
                     index.files.front().bytes);
    }
    const int64_t bytes = bytes_in(index);
    indexes_[static_cast<size_t>(file)] = std::move(index);
    return bytes;
  }

  Result<void> write_file(int64_t file) override {
    const int rank = static_cast<int>(file);
    const WritePlan plan = HOLDFAST_TRY(WritePlan::create(plan_.files, rank));
    const ShardPlan shard = plan.shard(
        [this, file](TensorId tensor, const Box& box, int64_t first, ByteSpan into) {
          return read(static_cast<HolderId>(file), source_of_[tensor], box, first,
                      into);
        });
    const Path path = files_ / plan.shard_name();
    HOLDFAST_TRY(remove_shard(rank, path));
    StagingRing ring({.bytes = kRingBytes, .block = kBlockBytes});
    ShardWriter writer(ring, shard.shard());
    const std::jthread stager([&] { static_cast<void>(writer.stage()); });
    const Result<WrittenShard> written = writer.write(env_, path);
    if (!written.ok()) {
      static_cast<void>(remove_shard(rank, path));
      return written.error();
    }
    ShardIndex index = shard.index(plan.shard_name(), *written);
    HOLDFAST_TRY(owner_->check());
    HOLDFAST_TRY(
        env_.replace_file(files_ / plan.index_name(), encode_shard_index(index)));
    indexes_[static_cast<size_t>(file)] = std::move(index);
    return {};
  }

  // An index says that its shard is finished, so it goes before the shard does, also if
  // the power fails in between. A process that has lost the run removes nothing.
  Result<void> remove_shard(int rank, const Path& shard) {
    HOLDFAST_TRY(owner_->check());
    HOLDFAST_TRY(env_.remove_all(files_ / index_name(rank)));
    HOLDFAST_TRY(env_.sync_names(files_));
    return env_.remove_all(shard);
  }

  // The seals of the target are the sums over the pieces of all shards, which were
  // computed from the bytes that went to the disk.
  Result<int64_t> check_seals() override {
    std::vector<Seal> seals(source_of_.size());
    std::vector<bool> there(source_of_.size());
    for (const ShardIndex& index : indexes_) {
      for (const StoredPiece& piece : index.pieces) {
        const auto id = plan_.files->find(index.tensors[piece.tensor].name);
        if (!id) {
          return corrupt("{}: has the tensor {}; expected only those of the target",
                         files_.native(), index.tensors[piece.tensor].name);
        }
        seals[*id] += piece.seal;
        there[*id] = true;
      }
    }
    if (const auto lost = std::ranges::find(there, false); lost != there.end()) {
      const auto id = static_cast<TensorId>(lost - there.begin());
      return corrupt("{}: is not in the target; expected all tensors",
                     shown(plan_.files->tensor(id).name));
    }
    return compare_seals(plan_, seals, counter_);
  }

  Result<void> commit(const Run& run) override {
    done_.folder = to_ / HOLDFAST_TRY(make_step(run)).filename();
    HOLDFAST_TRY(env_.remove_all(files_));
    return env_.remove_all(work_ / kPlanName);
  }

  Result<Path> make_step(const Run& run) {
    Manifest manifest;
    if (plan_.step) manifest = plan_.step->manifest;
    manifest.parallel = plan_.whole ? "" : to_string(plan_.parallel);
    // The number of ranks says whose objects the step has, and they are the source's.
    if (!plan_.step) manifest.world = static_cast<int>(indexes_.size());
    manifest.files.clear();
    manifest.parent.clear();
    manifest.temporary = false;  // somebody has asked for it
    Attempt attempt = HOLDFAST_TRY(
        Attempt::begin(run, *owner_, step_number(manifest), env_.random64()));
    for (int rank = 0; rank < std::ssize(indexes_); ++rank) {
      const ShardIndex& index = indexes_[static_cast<size_t>(rank)];
      const ShardFile& shard = index.files.front();
      HOLDFAST_TRY(take(attempt.folder(), shard.name));
      manifest.files.push_back({.name = shard.name,
                                .bytes = shard.bytes,
                                .digest = crc_digest(combined_crc(shard))});
      manifest.files.push_back(HOLDFAST_TRY(attempt.put_file(
          index_name(rank), encode_shard_index(index))));
    }
    HOLDFAST_TRY(put_objects(attempt, manifest));
    HOLDFAST_TRY(attempt.sync());
    return attempt.commit(std::move(manifest));
  }

  // The number of a step that comes from Megatron is that of its iteration.
  int64_t step_number(const Manifest& manifest) const {
    if (plan_.step) return manifest.step;
    const auto iteration = plan_.megatron ? megatron_iteration(plan_.contents->objects)
                                          : std::optional<int64_t>();
    return std::max<int64_t>(iteration.value_or(0), 0);
  }

  // Links the file into the step. Where there are no links it is moved, and written again
  // if the process is killed before the end.
  Result<void> take(const Path& folder, const std::string& name) {
    const Result<void> linked = env_.link(files_ / name, folder / name);
    if (linked.ok() || linked.error().code() != ErrorCode::kUnsupported) return linked;
    HOLDFAST_TRY(env_.remove_all(files_ / index_name_of(name)));
    return env_.rename(files_ / name, folder / name);
  }

  static std::string index_name_of(const std::string& shard) {
    return shard.substr(0, shard.find('.')) + ".index.json";
  }

  // The objects of a step are copied as they are, those of all its ranks.
  Result<void> put_objects(Attempt& attempt, Manifest& manifest) {
    const auto put = [&](const std::string& name, ByteView bytes) -> Result<void> {
      manifest.files.push_back(HOLDFAST_TRY(attempt.put_file(name, bytes)));
      return {};
    };
    if (!plan_.step) {
      if (plan_.contents->objects.none()) return {};
      const std::string text = HOLDFAST_TRY(encode_object(plan_.contents->objects));
      return put(objects_name(), bytes_of(text));
    }
    for (const ManifestFile& file : plan_.step->manifest.files) {
      if (file.name != objects_name() && !rank_of_objects(file.name)) continue;
      const Path path = plan_.step->folder / file.name;
      const Bytes bytes = HOLDFAST_TRY(env_.read_file(path));
      if (xxh3_digest(bytes) != file.digest) {
        return corrupt("{}: has digest {}; expected {}", path.native(),
                       xxh3_digest(bytes), file.digest);
      }
      HOLDFAST_TRY(put(file.name, bytes));
    }
    return {};
  }

  std::vector<TensorId> source_of_;  // by the target's numbers
  std::vector<ShardIndex> indexes_;  // each thread sets those of its files
};

}  // namespace

Result<Resharded> write_native(Env& env, const ReshardPlan& plan, const Path& to,
                               const ReshardOptions& options) {
  return NativeWriter(env, plan, to, options).write();
}

}  // namespace holdfast
