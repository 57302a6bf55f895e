#include "holdfast/reshard/reshard.h"

#include <filesystem>

#include "holdfast/reshard/planned_reads.h"
#include "holdfast/reshard/reshard_internal.h"
#include "holdfast/formats/format.h"
#include "holdfast/inspect/attempt_path.h"
#include "holdfast/store/location.h"
#include "holdfast/store/process.h"
#include "holdfast/store/run.h"

namespace holdfast {
namespace {

// What files need beside the tensors: headers, indexes and objects.
constexpr int64_t kBesides = int64_t{16} << 20;

Path without_slash(const Path& path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

// The folder that is read, and the run that it is a step of.
std::vector<Path> folders_of_source(Env& env, const ReshardPlan& plan) {
  std::vector<Path> folders{plan.from.path};
  if (plan.step && is_run(env, folder_of(plan.step->folder))) {
    folders.push_back(folder_of(plan.step->folder));
  }
  return folders;
}

// Fails if the target would be inside the source: a run takes what is in it for its own.
// Folders are told apart by their numbers, because several paths may lead to one.
Result<void> check_outside(Env& env, const Path& to, const ReshardPlan& plan) {
  std::error_code failed;
  const Path whole = std::filesystem::absolute(to, failed).lexically_normal();
  for (const Path& source : folders_of_source(env, plan)) {
    const Result<FileInfo> of_source = env.info(source);
    if (!of_source.ok() || !of_source->folder || of_source->inode == 0) continue;
    for (Path above = folder_of(whole); above.has_relative_path();
         above = folder_of(above)) {
      const Result<FileInfo> info = env.info(above);
      if (!info.ok() || std::pair(info->device, info->inode) !=
                            std::pair(of_source->device, of_source->inode)) {
        continue;
      }
      return invalid("{}: is inside the source {}; expected a path outside of it",
                     to.native(), source.native());
    }
  }
  return {};
}

}  // namespace

Result<Seal> seal_of_tensor(const Contents& contents, TensorId tensor, int64_t bytes,
                            Counter& counter) {
  return seal_of_tensor(contents, tensor, bytes,
                        [&](int64_t read) { return counter.add(read); });
}

std::optional<Seal> recorded_seal(const ReshardPlan& plan, TensorId tensor) {
  const int64_t bytes = plan.contents->collection.tensor(tensor).bytes();
  if (!plan.step) return std::nullopt;
  const Seal& seal = plan.step->seals[tensor];
  if (seal.bytes != static_cast<uint64_t>(bytes)) return std::nullopt;
  return seal;
}

namespace {

// The seal of each tensor of the source, by the source's numbers.
Result<std::vector<Seal>> source_seals(const ReshardPlan& plan, Counter& counter) {
  std::vector<Seal> seals;
  for (TensorId t = 0; t < plan.contents->collection.tensors().size(); ++t) {
    const std::optional<Seal> seal = recorded_seal(plan, t);
    const int64_t bytes = plan.contents->collection.tensor(t).bytes();
    seals.push_back(
        seal ? *seal
             : HOLDFAST_TRY(seal_of_tensor(*plan.contents, t, bytes, counter)));
  }
  return seals;
}

// The bytes that an interrupted call has written for the target.
// What is not continued is removed before anything is written.
int64_t bytes_there(Env& env, const Path& folder) {
  const Result<std::vector<std::string>> names = env.list(folder);
  if (!names.ok()) return 0;
  int64_t bytes = 0;
  for (const std::string& name : *names) {
    const Result<FileInfo> info = env.info(folder / name);
    if (!info.ok() || info->symlink) continue;
    bytes += info->folder ? bytes_there(env, folder / name) : info->size;
  }
  return bytes;
}

// Removes the hidden folder of a call that was killed after the target had got its name.
// Its files are the target by then, and its owner is dead.
void remove_left(Env& env, const Path& to, const ReshardOptions& options) {
  const WorkFolder work = work_folder(to);
  if (!env.info(work.run).ok() || env.info(work.files).ok()) return;
  const Result<Run> run = Run::open(env, work.run);
  const Result<Identity> self =
      options.identity ? Result<Identity>(*options.identity) : this_process(env);
  // A folder without the file of a run was being removed.
  if (!run.ok() && !is_missing(run.error())) return;
  if (run.ok() && (!self.ok() || !run->acquire(*self).ok())) return;
  static_cast<void>(env.remove_all(work.run));
}

Result<void> check_space_for(Env& env, const Path& to, const ReshardPlan& plan) {
  const int64_t free = HOLDFAST_TRY(env.free_space(folder_of(to)));
  const int64_t bytes = plan.target_bytes();
  // A folder of safetensors is not continued.
  const bool continued = plan.format == kNativeFormat || plan.format == kDcpFormat ||
                         plan.format == kMegatronFormat;
  const int64_t there = continued ? bytes_there(env, work_folder(to).files) : 0;
  if (free - kBesides >= bytes - there) return {};
  return Error(ErrorCode::kNoSpace,
               fmt::format("{}: {} bytes are free; expected {} for the target",
                           to.native(), free, bytes + kBesides));
}

// Writes the whole tensors as a folder of safetensors files, and reads them back before the
// folder gets its name.
Result<Resharded> write_format(Env& env, const ReshardPlan& plan, const Path& to,
                               const ReshardOptions& options) {
  const Format* format = HOLDFAST_TRY(find_format(plan.format));
  for (const Tensor& tensor : plan.contents->collection.tensors()) {
    if (format->keeps_dtype(tensor.dtype)) continue;
    return unsupported("{}: has the dtype {}, which {} does not support", tensor.name,
                       name_of(tensor.dtype), format->name);
  }
  const PlannedReads reads(plan);
  Contents source = HOLDFAST_TRY(reads.whole_contents());
  const int64_t bytes = source.collection.bytes();
  // The tensors are read, read back, and read again for the seals of the source.
  const int64_t total = bytes + plan.files->bytes() + bytes_to_seal(plan);
  Reading first = options.reading;
  first.progress = [&](int64_t read, int64_t) {
    if (options.reading.progress) options.reading.progress(read, total);
  };
  meter_sources(source, first, bytes);
  Counter counter(options.reading, total, bytes);
  Resharded done{.bytes = bytes, .folder = to};
  HOLDFAST_TRY(write_new_folder(
      env, to, choose_attempt(env, to), [&](const Path& folder) -> Result<void> {
        HOLDFAST_TRY(format->write(env, folder, source));
        HOLDFAST_TRY(reads.check_moved(0, 1).within(to.native()));
        done.moved = reads.moved();
        const Contents written = HOLDFAST_TRY(format->open(env, folder));
        done.files = std::ssize(written.sources);
        std::vector<Seal> seals;
        for (const Tensor& tensor : plan.files->tensors()) {
          const auto id = written.collection.find(tensor.name);
          if (!id) {
            return corrupt("{}: is not in the target; expected all tensors",
                           tensor.name);
          }
          seals.push_back(
              HOLDFAST_TRY(seal_of_tensor(written, *id, tensor.bytes(), counter)));
        }
        done.seals = HOLDFAST_TRY(compare_seals(plan, seals, counter));
        return {};
      }));
  return done;
}

}  // namespace

int64_t ReshardPlan::target_files() const {
  if (megatron_target) return megatron_target->files();
  return std::ssize(files->layout().holders());
}

int64_t ReshardPlan::target_bytes() const {
  return megatron_target ? megatron_target->bytes() : files->bytes();
}

WorkFolder work_folder(const Path& to) {
  const Path run = folder_of(to) / fmt::format(".{}.reshard", to.filename().native());
  return {.run = run, .files = run / "files"};
}

TensorId source_tensor(const ReshardPlan& plan, TensorId of_target) {
  return plan.contents->collection.find(plan.files->tensor(of_target).name).value();
}

Result<void> Counter::add(int64_t bytes) {
  if (reading_.stop && reading_.stop()) {
    return unavailable("reshard: was told to stop");
  }
  MutexLock lock(mutex_);
  done_ += bytes;
  if (reading_.progress) reading_.progress(done_, total_);
  return {};
}

int64_t bytes_to_seal(const ReshardPlan& plan) {
  int64_t bytes = 0;
  for (TensorId t = 0; t < plan.contents->collection.tensors().size(); ++t) {
    if (!recorded_seal(plan, t)) bytes += plan.contents->collection.tensor(t).bytes();
  }
  return bytes;
}

Result<int64_t> compare_seals(const ReshardPlan& plan, std::span<const Seal> of_target,
                              Counter& counter) {
  const std::vector<Seal> seals = HOLDFAST_TRY(source_seals(plan, counter));
  for (TensorId t = 0; t < of_target.size(); ++t) {
    const Seal& expected = seals[source_tensor(plan, t)];
    if (of_target[t] == expected) continue;
    const Tensor& tensor = plan.files->tensor(t);
    return corrupt("{}: has the seal {} in the target; expected {} as in the source",
                   tensor.name, print_seal(of_target[t], tensor.dtype, tensor.shape),
                   print_seal(expected, tensor.dtype, tensor.shape));
  }
  return std::ssize(of_target);
}

Result<Resharded> reshard(Env& env, const ReshardPlan& plan, const Path& named,
                          const ReshardOptions& options) {
  HOLDFAST_TRY(check_place(named));
  const Path to = without_slash(named);
  if (env.info(to).ok()) {
    remove_left(env, to, options);
    return conflict("{}: exists; expected a path where there is nothing", to.native());
  }
  HOLDFAST_TRY(check_outside(env, to, plan));
  HOLDFAST_TRY(check_space_for(env, to, plan));
  if (plan.megatron) {
    // Before anything is written, so that it is not counted with what is written.
    Counter counter({.progress = {}, .stop = options.reading.stop}, 0);
    HOLDFAST_TRY(check_replicas(*plan.contents, counter));
  }
  if (plan.format == kNativeFormat) return write_native(env, plan, to, options);
  if (plan.format == kDcpFormat || plan.format == kMegatronFormat) {
    return write_folder(env, plan, to, options);
  }
  return write_format(env, plan, to, options);
}

}  // namespace holdfast
