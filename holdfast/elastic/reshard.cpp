#include "holdfast/elastic/reshard.h"

#include "holdfast/elastic/reshard_internal.h"
#include "holdfast/formats/format.h"
#include "holdfast/inspect/attempt_path.h"
#include "holdfast/store/location.h"

namespace holdfast {
namespace {

constexpr int64_t kSealWindow = int64_t{4} << 20;

// What files need beside the tensors: headers, indexes and objects.
constexpr int64_t kBesides = int64_t{16} << 20;

Path without_slash(const Path& path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

Result<Seal> seal_of_tensor(const Contents& contents, TensorId tensor) {
  const int64_t bytes = contents.collection.tensor(tensor).bytes();
  CanonicalStream stream(contents, tensor);
  Bytes window(static_cast<size_t>(std::min(kSealWindow, bytes)));
  Seal seal;
  for (int64_t at = 0; at < bytes; at += kSealWindow) {
    const ByteSpan part =
        ByteSpan(window).first(static_cast<size_t>(std::min(kSealWindow, bytes - at)));
    HOLDFAST_TRY(stream.read(part));
    seal += seal_bytes(part, static_cast<uint64_t>(at));
  }
  return seal;
}

// The bytes that an interrupted call has written for the target.
int64_t bytes_there(Env& env, const Path& to) {
  const Path files = work_folder(to).files;
  const Result<std::vector<std::string>> names = env.list(files);
  if (!names.ok()) return 0;
  int64_t bytes = 0;
  for (const std::string& name : *names) {
    const Result<FileInfo> info = env.info(files / name);
    if (info.ok()) bytes += info->size;
  }
  return bytes;
}

Result<void> check_space_for(Env& env, const Path& to, int64_t bytes) {
  const int64_t free = HOLDFAST_TRY(env.free_space(folder_of(to)));
  if (free - kBesides >= bytes - bytes_there(env, to)) return {};
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
  Contents source = *plan.contents;
  meter_sources(source, options.reading, source.collection.bytes());
  Resharded done{.bytes = source.collection.bytes(), .folder = to};
  HOLDFAST_TRY(write_new_folder(
      env, to, choose_attempt(env, to), [&](const Path& folder) -> Result<void> {
        HOLDFAST_TRY(format->write(env, folder, source));
        const Contents written = HOLDFAST_TRY(format->open(env, folder));
        done.files = std::ssize(written.sources);
        std::vector<Seal> seals;
        for (const Tensor& tensor : plan.files->tensors()) {
          const auto id = written.collection.find(tensor.name);
          if (!id) return corrupt("{}: is not in the target", tensor.name);
          seals.push_back(HOLDFAST_TRY(seal_of_tensor(written, *id)));
        }
        done.seals = HOLDFAST_TRY(compare_seals(plan, seals));
        return {};
      }));
  return done;
}

}  // namespace

WorkFolder work_folder(const Path& to) {
  const Path run = folder_of(to) / fmt::format(".{}.reshard", to.filename().native());
  return {.run = run, .files = run / "files"};
}

TensorId source_tensor(const ReshardPlan& plan, TensorId of_target) {
  return plan.contents->collection.find(plan.files->tensor(of_target).name).value();
}

Result<std::vector<Seal>> source_seals(const ReshardPlan& plan) {
  const Contents& contents = *plan.contents;
  std::vector<Seal> seals;
  for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
    const auto bytes = static_cast<uint64_t>(contents.collection.tensor(t).bytes());
    if (plan.step && plan.step->seals[t].bytes == bytes) {
      seals.push_back(plan.step->seals[t]);
    } else {
      seals.push_back(HOLDFAST_TRY(seal_of_tensor(contents, t)));
    }
  }
  return seals;
}

Result<int64_t> compare_seals(const ReshardPlan& plan,
                              std::span<const Seal> of_target) {
  const std::vector<Seal> seals = HOLDFAST_TRY(source_seals(plan));
  for (TensorId t = 0; t < of_target.size(); ++t) {
    if (of_target[t] == seals[source_tensor(plan, t)]) continue;
    return corrupt("{}: its seal in the target is not that of the source",
                   plan.files->tensor(t).name);
  }
  return std::ssize(of_target);
}

Result<Resharded> reshard(Env& env, const ReshardPlan& plan, const Path& named,
                          const ReshardOptions& options) {
  HOLDFAST_TRY(check_place(named));
  const Path to = without_slash(named);
  if (env.info(to).ok()) return conflict("{}: exists", to.native());
  HOLDFAST_TRY(check_space_for(env, to, plan.files->bytes()));
  return plan.format == kNativeFormat ? write_native(env, plan, to, options)
                                      : write_format(env, plan, to, options);
}

}  // namespace holdfast
