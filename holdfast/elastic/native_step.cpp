// Writes a re-cut checkpoint as a run with one step.
//
// The run is made in the hidden folder ".NAME.reshard" and renamed at the end. Shards are
// written into its folder "files". The index of a shard is written when the shard is
// durable, so an index says that its shard is finished. The owner of the hidden run is the
// process that writes it, so two processes never write the same target.
#include <algorithm>
#include <atomic>
#include <thread>

#include "holdfast/base/thread_pool.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/checkpoint/write_plan.h"
#include "holdfast/device/staging_ring.h"
#include "holdfast/elastic/reshard_internal.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/shard/shard_writer.h"
#include "holdfast/state/object_json.h"
#include "holdfast/store/attempt.h"
#include "holdfast/store/process.h"

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
class NativeWriter {
 public:
  NativeWriter(Env& env, const ReshardPlan& plan, const Path& to,
               const ReshardOptions& options)
      : env_(env),
        plan_(plan),
        to_(to),
        options_(options),
        work_(work_folder(to).run),
        files_(work_folder(to).files),
        ranks_(static_cast<int>(plan.files->layout().holders().size())),
        counter_(options.reading, plan.files->bytes() + bytes_to_seal(plan)) {
    for (TensorId t = 0; t < plan.files->tensors().size(); ++t) {
      source_of_.push_back(source_tensor(plan, t));
    }
  }

  Result<Resharded> write() {
    HOLDFAST_TRY(env_.create_folders(work_));
    const Run run = HOLDFAST_TRY(Run::create_or_open(env_, work_));
    const Identity self =
        options_.identity ? *options_.identity : HOLDFAST_TRY(this_process(env_));
    owner_ = HOLDFAST_TRY(run.acquire(self));
    static_cast<void>(run.sweep(*owner_, {}));
    Result<Resharded> done = write_owned(run);
    // The run is owned until it has its name: a process that took it earlier would empty
    // the folder that is being published.
    if (done.ok()) {
      const Result<void> published = publish();
      if (!published.ok()) done = published.error();
    }
    // A failure is ignored: the owner is dead when this process ends.
    static_cast<void>(done.ok() ? std::move(*owner_).release_at(to_)
                                : std::move(*owner_).release());
    HOLDFAST_TRY(done);
    HOLDFAST_TRY(env_.sync_names(folder_of(to_)));
    return done;
  }

 private:
  Result<Resharded> write_owned(const Run& run) {
    const LeaseKeeper keeper(env_, *owner_);
    HOLDFAST_TRY(begin_or_continue(run));
    HOLDFAST_TRY(write_shards());
    done_.files = ranks_;
    done_.bytes = plan_.files->bytes();
    done_.seals = HOLDFAST_TRY(check_or_remove());
    const Path folder = HOLDFAST_TRY(commit(run));
    done_.folder = to_ / folder.filename();
    HOLDFAST_TRY(env_.remove_all(files_));
    HOLDFAST_TRY(env_.remove_all(work_ / kPlanName));
    return done_;
  }

  Result<void> publish() {
    HOLDFAST_TRY(owner_->check());
    return env_.rename_new(work_, to_);
  }

  // Keeps what an earlier call for the same source and target has left, and removes
  // anything else. A step that it had committed is made again from the files: it is only
  // links.
  Result<void> begin_or_continue(const Run& run) {
    const std::string own = HOLDFAST_TRY(fingerprint_of(env_, plan_));
    const Result<std::string> left = env_.read_text(work_ / kPlanName);
    if (!left.ok() || *left != own) HOLDFAST_TRY(env_.remove_all(files_));
    for (const Step& step : HOLDFAST_TRY(run.steps()).steps) {
      HOLDFAST_TRY(env_.remove_all(step.folder));
    }
    HOLDFAST_TRY(env_.replace_file(work_ / kPlanName, bytes_of(own)));
    return env_.create_folders(files_);
  }

  Result<void> write_shards() {
    indexes_.resize(static_cast<size_t>(ranks_));
    ThreadPool pool({.threads = writers_of(options_, ranks_)});
    for (int rank = 0; rank < ranks_; ++rank) {
      pool.submit([this, rank] { write_rank(rank); });
    }
    pool.wait_idle();
    MutexLock lock(mutex_);
    return error_ ? Result<void>(*error_) : Result<void>();
  }

  void write_rank(int rank) {
    {
      MutexLock lock(mutex_);
      if (error_) return;
    }
    Result<ShardIndex> index = finished(rank);
    const bool kept = index.ok();
    if (!kept) {
      index = write_shard(rank);
    } else if (const auto counted = counter_.add(bytes_in(*index)); !counted.ok()) {
      index = counted.error();
    }
    MutexLock lock(mutex_);
    if (!index.ok()) {
      if (!error_) error_ = index.error();
      return;
    }
    done_.kept += kept ? 1 : 0;
    indexes_[static_cast<size_t>(rank)] = *std::move(index);
  }

  // The index of a shard that an earlier call has finished.
  Result<ShardIndex> finished(int rank) {
    const Path path = files_ / index_name(rank);
    const Bytes bytes = HOLDFAST_TRY(env_.read_file(path));
    ShardIndex index = HOLDFAST_TRY(decode_shard_index(bytes, path.native()));
    const FileInfo info = HOLDFAST_TRY(env_.info(files_ / index.files.front().name));
    if (info.size != index.files.front().bytes) {
      return corrupt("{}: is of {} bytes; expected {}", path.native(), info.size,
                     index.files.front().bytes);
    }
    return index;
  }

  Result<ShardIndex> write_shard(int rank) {
    const WritePlan plan = HOLDFAST_TRY(WritePlan::create(plan_.files, rank));
    const ShardPlan shard =
        plan.shard([this](TensorId tensor, const Box& box, int64_t first,
                          ByteSpan into) { return read(tensor, box, first, into); });
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
    return index;
  }

  // An index says that its shard is finished, so it goes before the shard does, also if
  // the power fails in between. A process that has lost the run removes nothing.
  Result<void> remove_shard(int rank, const Path& shard) {
    HOLDFAST_TRY(owner_->check());
    HOLDFAST_TRY(env_.remove_all(files_ / index_name(rank)));
    HOLDFAST_TRY(env_.sync_names(files_));
    return env_.remove_all(shard);
  }

  Result<void> read(TensorId tensor, const Box& box, int64_t first, ByteSpan into) {
    HOLDFAST_TRY(counter_.add(std::ssize(into)));
    return read_stream(*plan_.contents, source_of_[tensor], box, first, into);
  }

  // Files with other seals than the source must not be kept by the next call.
  Result<int64_t> check_or_remove() {
    const Result<int64_t> checked = check_seals();
    if (checked.ok() || checked.error().code() != ErrorCode::kCorrupt) return checked;
    HOLDFAST_TRY(owner_->check());
    HOLDFAST_TRY(env_.remove_all(files_));
    HOLDFAST_TRY(env_.remove_all(work_ / kPlanName));
    return corrupt("{} (what was written is removed, so the same command begins anew)",
                   checked.error().message());
  }

  // The seals of the target are the sums over the pieces of all shards, which were
  // computed from the bytes that went to the disk.
  Result<int64_t> check_seals() {
    std::vector<Seal> seals(source_of_.size());
    for (const ShardIndex& index : indexes_) {
      for (const StoredPiece& piece : index.pieces) {
        const auto id = plan_.files->find(index.tensors[piece.tensor].name);
        if (!id) {
          return corrupt("{}: has the tensor {}; expected only those of the target",
                         files_.native(), index.tensors[piece.tensor].name);
        }
        seals[*id] += piece.seal;
      }
    }
    return compare_seals(plan_, seals, counter_);
  }

  Result<Path> commit(const Run& run) {
    Manifest manifest;
    if (plan_.step) manifest = plan_.step->manifest;
    manifest.parallel = plan_.whole ? "" : to_string(plan_.parallel);
    // The number of ranks says whose objects the step has, and they are the source's.
    if (!plan_.step) manifest.world = ranks_;
    manifest.files.clear();
    manifest.parent.clear();
    manifest.temporary = false;  // somebody has asked for it
    Attempt attempt = HOLDFAST_TRY(
        Attempt::begin(run, *owner_, step_number(manifest), env_.random64()));
    for (int rank = 0; rank < ranks_; ++rank) {
      const ShardFile& shard = indexes_[static_cast<size_t>(rank)].files.front();
      HOLDFAST_TRY(take(attempt.folder(), shard.name));
      manifest.files.push_back({.name = shard.name,
                                .bytes = shard.bytes,
                                .digest = crc_digest(combined_crc(shard))});
      manifest.files.push_back(HOLDFAST_TRY(attempt.put_file(
          index_name(rank), encode_shard_index(indexes_[static_cast<size_t>(rank)]))));
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

  Env& env_;
  const ReshardPlan& plan_;
  const Path to_;
  const ReshardOptions& options_;
  const Path work_;   // the run while it is written
  const Path files_;  // its finished shards
  const int ranks_;
  Counter counter_;
  std::optional<Owner> owner_;       // set first of all
  std::vector<TensorId> source_of_;  // by the target's numbers

  Mutex mutex_;
  std::vector<ShardIndex> indexes_;  // each writer sets its own
  Resharded done_;
  std::optional<Error> error_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace

Result<Resharded> write_native(Env& env, const ReshardPlan& plan, const Path& to,
                               const ReshardOptions& options) {
  return NativeWriter(env, plan, to, options).write();
}

}  // namespace holdfast
