// Copies a checkpoint of any kind under a hidden name, lets a function change the copy,
// and then gives the copy its name.
#include <algorithm>

#include "holdfast/corruption/alter.h"
#include "holdfast/formats/format.h"
#include "holdfast/inspect/attempt_path.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/inspect/seal_file.h"

namespace holdfast {
namespace {

using ChangeCopy = std::function<Result<void>(const Found&)>;

constexpr int64_t kCopyBlock = int64_t{4} << 20;

Result<void> copy_file(Env& env, const Path& from, const Path& to) {
  const auto source = HOLDFAST_TRY(FileSource::open(env, from));
  const auto sink = HOLDFAST_TRY(FileSink::create(env, to));
  for (int64_t at = 0; at < source->size(); at += kCopyBlock) {
    const int64_t count = std::min(kCopyBlock, source->size() - at);
    HOLDFAST_TRY(sink->append(HOLDFAST_TRY(source->read_bytes(at, count))));
  }
  return sink->finish();
}

// Copies the files in a folder, and those in folders below it.
Result<void> copy_folder(Env& env, const Path& from, const Path& to) {
  HOLDFAST_TRY(env.create_folder(to));
  const std::vector<std::string> names = HOLDFAST_TRY(env.list(from));
  for (const std::string& name : names) {
    // Attempts are hidden, and so is the index of a DCP folder, which is copied.
    if (name.starts_with('.') && name.ends_with(".tmp")) continue;
    const bool folder = HOLDFAST_TRY(env.info(from / name)).folder;
    HOLDFAST_TRY(folder ? copy_folder(env, from / name, to / name)
                        : copy_file(env, from / name, to / name));
  }
  return env.sync_names(to);
}

// Some files under hidden names, which get their names together. Removes them if that
// does not happen.
class HiddenFiles {
 public:
  explicit HiddenFiles(Env& env) : env_(env) {}
  ~HiddenFiles() {
    for (const auto& [hidden, name] : names_) (void)env_.remove_all(hidden);
  }
  HiddenFiles(const HiddenFiles&) = delete;
  HiddenFiles& operator=(const HiddenFiles&) = delete;

  Result<void> copy(const Path& from, const Path& hidden, const Path& name) {
    HOLDFAST_TRY(check_new(name));
    names_.emplace_back(hidden, name);
    const bool folder = HOLDFAST_TRY(env_.info(from)).folder;
    return folder ? copy_folder(env_, from, hidden) : copy_file(env_, from, hidden);
  }

  // The files that were copied last get their names last.
  Result<void> publish() {
    while (!names_.empty()) {
      const auto [hidden, name] = names_.front();
      HOLDFAST_TRY(env_.rename_new(hidden, name));
      names_.erase(names_.begin());
      if (names_.empty()) HOLDFAST_TRY(env_.sync_names(folder_of(name)));
    }
    return {};
  }

  Result<void> check_new(const Path& name) {
    if (!env_.info(name).ok()) return {};
    return conflict("{}: exists already; expected a new name", name.native());
  }
  void add(const Path& hidden, const Path& name) { names_.emplace_back(hidden, name); }

 private:
  Env& env_;
  std::vector<std::pair<Path, Path>> names_;
};

Path with_suffix(Path path, std::string_view suffix) {
  path += suffix;
  return path;
}

// Names the checkpoint `path` in errors about its copy, whose hidden name says nothing to
// people.
Result<void> name_instead(Result<void> done, const Path& hidden, const Path& path) {
  if (done.ok()) return done;
  std::string message = done.error().message();
  const std::string& from = hidden.native();
  for (size_t at = message.find(from); at != message.npos; at = message.find(from, at)) {
    message.replace(at, from.size(), path.native());
    at += path.native().size();
  }
  return Error(done.error().code(), std::move(message));
}

// A step becomes the only step of a new run directory.
Result<void> copy_step(Env& env, const Found& found, const Path& to,
                       const ChangeCopy& change) {
  HiddenFiles hidden(env);
  HOLDFAST_TRY(hidden.check_new(to));
  const Path run = choose_attempt(env, to), step = run / found.path.filename();
  hidden.add(run, to);
  HOLDFAST_TRY(env.create_folder(run));
  const Path run_file = folder_of(found.path) / kRunFile;
  if (env.info(run_file).ok()) {
    HOLDFAST_TRY(copy_file(env, run_file, run / kRunFile));
  }
  HOLDFAST_TRY(copy_folder(env, found.path, step));
  HOLDFAST_TRY(env.sync_names(run));
  HOLDFAST_TRY(name_instead(change({.path = step}), step, found.path));
  return hidden.publish();
}

// The index and the data files of a TensorFlow checkpoint, whose names begin alike.
Result<void> copy_bundle(Env& env, const Found& found, const Path& to,
                         const ChangeCopy& change) {
  constexpr std::string_view kIndex = ".index";
  const std::string target =
      to.native().ends_with(kIndex)
          ? to.native().substr(0, to.native().size() - kIndex.size())
          : to.native();
  const Path attempt = choose_attempt(env, target);
  std::vector<NamedFile> files = HOLDFAST_TRY(files_of(env, found));
  // The index gets its name last.
  std::stable_partition(files.begin(), files.end(),
                        [&](const NamedFile& file) { return file.name != kIndex; });
  HiddenFiles hidden(env);
  const Path index = with_suffix(attempt, kIndex);
  const Path seals = seals_path(found.path);
  if (env.info(seals).ok()) {
    HOLDFAST_TRY(
        hidden.copy(seals, seals_path(index), seals_path(with_suffix(target, kIndex))));
  }
  for (const NamedFile& file : files) {
    HOLDFAST_TRY(hidden.copy(file.path, with_suffix(attempt, file.name),
                             with_suffix(target, file.name)));
  }
  HOLDFAST_TRY(name_instead(change({.path = index, .format = found.format}), index,
                            found.path));
  return hidden.publish();
}

Result<void> copy_one(Env& env, const Path& from, const Format* format, const Path& to,
                      const ChangeCopy& change) {
  const Path target = to.has_filename() ? to : to.parent_path();
  const Path attempt = choose_attempt(env, target);
  HiddenFiles hidden(env);
  if (env.info(seals_path(from)).ok()) {
    HOLDFAST_TRY(
        hidden.copy(seals_path(from), seals_path(attempt), seals_path(target)));
  }
  HOLDFAST_TRY(name_instead(hidden.copy(from, attempt, target), attempt, target));
  HOLDFAST_TRY(
      name_instead(change({.path = attempt, .format = format}), attempt, from));
  return hidden.publish();
}

}  // namespace

Result<void> make_copy(Env& env, const Found& found, const Path& to,
                       const ChangeCopy& change) {
  if (found.step()) return copy_step(env, found, to, change);
  const bool folder = HOLDFAST_TRY(env.info(found.path)).folder;
  if (!folder && found.format->name == "tensorflow") {
    return copy_bundle(env, found, to, change);
  }
  if (found.format->list_files != nullptr) {
    // A copy of the index alone would name the files of the original.
    const auto files = HOLDFAST_TRY(found.format->list_files(env, found.path));
    return unsupported("{}: its weights are in {} files beside it; expected --in-place",
                       found.path.native(), files.size() - 1);
  }
  // The index of a folder of shards stands for the folder.
  const bool index = !folder && found.format->folder;
  return copy_one(env, index ? folder_of(found.path) : found.path, found.format, to,
                  change);
}

}  // namespace holdfast
