// Carries patches out, and undoes those that a crash has interrupted. The header has the
// protocol.
#include "holdfast/contents/patch.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "holdfast/base/checked.h"
#include "holdfast/contents/patch_journal_internal.h"
#include "holdfast/env/file.h"

namespace holdfast {
namespace {

// What the names of journals end with.
constexpr std::string_view kJournalSuffix = ".holdfast-patch";

Path unfinished_of(const Path& journal) {
  Path path = journal;
  path += ".tmp";
  return path;
}

// The bytes of a change that lie in a file of `size_after` bytes must end there, if the
// change moves the end of the file.
Result<void> check_change(const FilePatch& file, const Change& change, int64_t from) {
  // The numbers of a journal may be anything.
  const auto before = checked_add(change.offset, std::ssize(change.before));
  const auto after = checked_add(change.offset, std::ssize(change.after));
  const bool inside = before && after && change.offset >= from &&
                      *before <= file.size_before && *after <= file.size_after;
  const bool tail = before == file.size_before && after == file.size_after;
  if (inside && (before == after || tail)) return {};
  return invalid(
      "{}: a change of {} bytes to {} at {} contradicts the sizes {} and {} or the "
      "change before it",
      file.file.native(), change.before.size(), change.after.size(), change.offset,
      file.size_before, file.size_after);
}

Result<void> check_file(const FilePatch& file) {
  int64_t from = 0;
  bool moved = file.size_before == file.size_after;
  for (const Change& change : file.changes) {
    HOLDFAST_TRY(check_change(file, change, from));
    from =
        change.offset + std::max(std::ssize(change.before), std::ssize(change.after));
    moved = moved || change.before.size() != change.after.size();
  }
  if (moved) return {};
  return invalid("{}: its size changes from {} to {}, but no change reaches its end",
                 file.file.native(), file.size_before, file.size_after);
}

Result<void> check_patch(const Patch& patch) {
  const std::string name = patch.path.filename().native();
  if (patch.path.empty() || name == "." || name == "..") {
    return invalid("\"{}\": is no name of a file or folder to patch; expected one",
                   patch.path.native());
  }
  std::vector<std::string> names;
  for (const FilePatch& file : patch.files) {
    HOLDFAST_TRY(check_file(file));
    names.push_back(HOLDFAST_TRY(name_in_journal(patch, file.file)));
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return {};
  return invalid("{}: is in the patch twice; expected each file once", *twice);
}

// A file that is patched, opened to read and write.
class Target {
 public:
  static Result<Target> open(Env& env, const FilePatch& patch) {
    return Target(HOLDFAST_TRY(env.open(patch.file, {.mode = OpenMode::kUpdate})),
                  patch);
  }

  // Fails with kConflict unless the file is as the patch expects it.
  Result<void> check_before() const {
    const int64_t size = HOLDFAST_TRY(file_->size());
    if (size != patch_->size_before) {
      return conflict("{}: has {} bytes; expected {}, as when the patch was planned",
                      name(), size, patch_->size_before);
    }
    for (const Change& change : patch_->changes) {
      if (HOLDFAST_TRY(read(change.offset, change.before.size())) == change.before) {
        continue;
      }
      return conflict(
          "{}: has other bytes at {} than when the patch was planned; expected {}",
          name(), change.offset,
          to_hex(ByteView(change.before)
                     .first(std::min<size_t>(change.before.size(), 16))));
    }
    return {};
  }

  // Fails with kCorrupt unless each byte that the patch changes has its old or its new
  // value, as a crash in the middle leaves it.
  Result<void> check_between(const Path& journal) const {
    const auto [least, most] = std::minmax(patch_->size_before, patch_->size_after);
    const int64_t size = HOLDFAST_TRY(file_->size());
    bool fits = least <= size && size <= most;
    for (const Change& change : patch_->changes) {
      fits = fits && HOLDFAST_TRY(lies_between(change));
    }
    if (fits) return {};
    return corrupt(
        "{}: has bytes that are neither those before nor those after the patch in {}, "
        "so "
        "somebody else has changed it; expected the file that was patched, or the "
        "journal "
        "removed",
        name(), journal.native());
  }

  Result<void> write_after() const {
    for (const Change& change : patch_->changes) {
      HOLDFAST_TRY(file_->write_at(change.offset, change.after));
    }
    return cut(patch_->size_after, patch_->size_before);
  }

  Result<void> write_before() const {
    for (const Change& change : patch_->changes) {
      HOLDFAST_TRY(file_->write_at(change.offset, change.before));
    }
    return cut(patch_->size_before, patch_->size_after);
  }

  Result<void> sync() const { return file_->sync_data(); }

 private:
  Target(std::unique_ptr<File> file, const FilePatch& patch)
      : file_(std::move(file)), patch_(&patch) {}

  const std::string& name() const { return patch_->file.native(); }

  // Returns fewer bytes at the end of the file.
  Result<Bytes> read(int64_t offset, size_t count) const {
    Bytes bytes(count);
    bytes.resize(HOLDFAST_TRY(file_->read_at(offset, bytes)));
    return bytes;
  }

  Result<bool> lies_between(const Change& change) const {
    // Bytes that only the longer of the two files has may be anything.
    const size_t both = std::min(change.before.size(), change.after.size());
    const Bytes seen = HOLDFAST_TRY(read(change.offset, both));
    for (size_t i = 0; i < seen.size(); ++i) {
      if (seen[i] != change.before[i] && seen[i] != change.after[i]) return false;
    }
    return true;
  }

  Result<void> cut(int64_t size, int64_t other) const {
    return size < other ? file_->truncate(size) : Result<void>();
  }

  std::unique_ptr<File> file_;
  const FilePatch* patch_;
};

Result<std::vector<Target>> open_targets(Env& env, const Patch& patch) {
  std::vector<Target> targets;
  for (const FilePatch& file : patch.files) {
    targets.push_back(HOLDFAST_TRY(Target::open(env, file)));
  }
  return targets;
}

// A symbolic link may lead out of the folder that the journal is in.
Result<void> check_no_link(const FileInfo& info, const Path& file) {
  if (!info.symlink) return {};
  return conflict("{}: is a symbolic link; expected the file itself", file.native());
}

// A file with several names would change under all of them.
Result<void> check_one_name(Env& env, const Path& file) {
  const FileInfo info = HOLDFAST_TRY(env.info(file));
  HOLDFAST_TRY(check_no_link(info, file));
  if (info.links <= 1) return {};
  return conflict(
      "{}: has {} hard links, and all of them would change; expected a file with one "
      "name",
      file.native(), info.links);
}

Result<void> for_all(const std::vector<Target>& targets,
                     Result<void> (Target::*call)() const) {
  for (const Target& target : targets) HOLDFAST_TRY((target.*call)());
  return {};
}

// Locks a file under the first name of a journal, which it creates if it is not there.
// The lock stays when the journal gets its name.
Result<void> lock_unfinished(Env& env, const Path& unfinished, FileLocks& locks) {
  HOLDFAST_TRY(env.open(unfinished, {.mode = OpenMode::kAppend}));
  return locks.add(env, unfinished);
}

// Makes the journal durable and locks it. On failure no file was changed, and the journal
// is removed if that is possible; it does no harm.
Result<void> write_journal(Env& env, const Patch& patch, const Path& journal,
                           FileLocks& locks) {
  const Path unfinished = unfinished_of(journal);
  HOLDFAST_TRY(lock_unfinished(env, unfinished, locks));
  Result<void> done = env.write_file(unfinished, encode_journal(patch));
  if (done.ok()) {
    done = env.rename_new(unfinished, journal);
    if (done.ok()) done = env.sync_names(folder_of(journal));
    // A conflict means that the journal is that of somebody else.
    const bool ours = done.ok() || done.error().code() != ErrorCode::kConflict;
    if (!done.ok() && ours) (void)env.remove_file(journal);
  }
  if (!done.ok()) (void)env.remove_file(unfinished);
  return done;
}

Result<void> undo(Env& env, const std::vector<Target>& targets, const Path& journal) {
  HOLDFAST_TRY(for_all(targets, &Target::write_before));
  HOLDFAST_TRY(for_all(targets, &Target::sync));
  HOLDFAST_TRY(env.remove_file(journal));
  return env.sync_names(folder_of(journal));
}

Error keeps_journal(const Error& error, const Path& journal) {
  return Error(
      error.code(),
      fmt::format("{}; the patch may be done in part, and {} has the old bytes: "
                  "apply or repair again to put them back",
                  error.message(), journal.native()));
}

// Writes the new bytes. A failed write is undone at once. After a failed sync nothing is
// undone: the system may report success for the next sync without writing anything.
Result<void> carry_out(Env& env, const std::vector<Target>& targets,
                       const Path& journal) {
  const Result<void> written = for_all(targets, &Target::write_after);
  if (!written.ok()) {
    const bool undone = undo(env, targets, journal).ok();
    return undone ? written : keeps_journal(written.error(), journal);
  }
  Result<void> done = for_all(targets, &Target::sync);
  if (done.ok()) done = env.remove_file(journal);
  if (!done.ok()) return keeps_journal(done.error(), journal);
  return env.sync_names(folder_of(journal));
}

// The bytes of a journal; nullopt if there is none.
Result<std::optional<Bytes>> read_journal(Env& env, const Path& journal) {
  Result<Bytes> bytes = env.read_file(journal);
  // kInvalid: the journal would be in a folder that is a file.
  const bool none = !bytes.ok() && (bytes.error().code() == ErrorCode::kInvalid ||
                                    bytes.error().code() == ErrorCode::kNotFound);
  if (none) return std::optional<Bytes>();
  if (!bytes.ok()) return bytes.error();
  return std::optional(*std::move(bytes));
}

// Checks the patch of a journal and locks its files.
Result<void> lock_journaled(Env& env, const Patch& patch, const Path& journal,
                            FileLocks& locks) {
  for (const FilePatch& file : patch.files) {
    const Result<void> checked = check_file(file);
    if (!checked.ok()) {
      return checked.error().as(ErrorCode::kCorrupt).within(journal.native());
    }
  }
  for (const FilePatch& file : patch.files) {
    // A missing file is named by open_targets().
    const Result<FileInfo> info = env.info(file.file);
    if (!info.ok()) continue;
    HOLDFAST_TRY(check_no_link(*info, file.file));
    HOLDFAST_TRY(locks.add(env, file.file));
  }
  return {};
}

// Removes a journal that a crash left under its first name. Usually there is none. The
// lock tells it from one that is being written.
void remove_unfinished(Env& env, const Path& journal) {
  const Path unfinished = unfinished_of(journal);
  FileLocks locks;
  if (!env.info(unfinished).ok() || !locks.add(env, unfinished).ok()) return;
  (void)env.remove_file(unfinished);
}

// Undoes the patch of a journal. Returns whether there was one.
Result<bool> repair_from(Env& env, const Path& journal, FileLocks& locks) {
  const std::optional<Bytes> bytes = HOLDFAST_TRY(read_journal(env, journal));
  if (!bytes) return false;
  FileLocks own;  // of the journal, which is removed in the end
  const Result<void> locked = own.add(env, journal);
  if (!locked.ok() && is_missing(locked.error())) return false;
  HOLDFAST_TRY(locked);
  const Patch patch = HOLDFAST_TRY(decode_journal(*bytes, journal));
  HOLDFAST_TRY(lock_journaled(env, patch, journal, locks));
  // Whoever had the locks before may have ended its patch and removed the journal.
  if (HOLDFAST_TRY(read_journal(env, journal)) != bytes) return false;
  const std::vector<Target> targets =
      HOLDFAST_TRY(open_targets(env, patch).within(journal.native()));
  for (const Target& target : targets) HOLDFAST_TRY(target.check_between(journal));
  HOLDFAST_TRY(undo(env, targets, journal));
  return true;
}

Path as_folder(const Path& path) { return path.has_filename() ? path / "" : path; }

// The journals of patches that may have changed what this path names.
std::vector<Path> journals_near(const Path& path) {
  std::vector<Path> journals{journal_of(as_folder(path)),
                             journal_of(as_folder(folder_of(path)))};
  if (path.has_filename()) journals.push_back(journal_of(path));
  return journals;
}

}  // namespace

int64_t Patch::bytes() const {
  int64_t sum = 0;
  for (const FilePatch& file : files) {
    for (const Change& change : file.changes) sum += std::ssize(change.after);
  }
  return sum;
}

Patch inverse(const Patch& patch) {
  Patch other = patch;
  for (FilePatch& file : other.files) {
    std::swap(file.size_before, file.size_after);
    for (Change& change : file.changes) std::swap(change.before, change.after);
  }
  return other;
}

Path journal_of(const Path& path) {
  if (!path.has_filename()) return path / kJournalSuffix;
  return folder_of(path) /
         fmt::format(".{}{}", path.filename().native(), kJournalSuffix);
}

Result<void> apply_patch(Env& env, const Patch& patch) {
  FileLocks locks;
  return apply_patch(env, patch, locks);
}

Result<void> apply_patch(Env& env, const Patch& patch, FileLocks& locks) {
  HOLDFAST_TRY(check_patch(patch));
  for (const FilePatch& file : patch.files) {
    HOLDFAST_TRY(check_one_name(env, file.file));
    HOLDFAST_TRY(locks.add(env, file.file));
  }
  HOLDFAST_TRY(repair_patch(env, patch.path, locks));
  if (patch.files.empty()) return {};
  const std::vector<Target> targets = HOLDFAST_TRY(open_targets(env, patch));
  HOLDFAST_TRY(for_all(targets, &Target::check_before));
  const Path journal = journal_of(patch.path);
  FileLocks own;  // of the journal, which is removed in the end
  HOLDFAST_TRY(write_journal(env, patch, journal, own));
  return carry_out(env, targets, journal);
}

Result<bool> repair_patch(Env& env, const Path& path) {
  FileLocks locks;
  return repair_patch(env, path, locks);
}

Result<bool> repair_patch(Env& env, const Path& path, FileLocks& locks) {
  const Result<FileInfo> info = env.info(path);
  const bool file = path.has_filename() && info.ok() && !info->folder;
  if (file) HOLDFAST_TRY(locks.add(env, path));
  bool found = false;
  for (const Path& journal : journals_near(path)) {
    found = HOLDFAST_TRY(repair_from(env, journal, locks)) || found;
    remove_unfinished(env, journal);
  }
  return found;
}

Result<void> check_no_journal(Env& env, const Path& path) {
  for (const Path& journal : journals_near(path)) {
    if (!env.info(journal).ok()) continue;
    if (const auto who = who_locks(env, journal)) {
      return conflict(
          "{}: {} patches it at this moment; expected nobody, so try again when that has "
          "ended",
          path.native(), *who);
    }
    if (!env.info(journal).ok()) {  // the patch has ended since
      return conflict(
          "{}: another process changes or reads it at this moment; expected nobody, so try "
          "again when that has ended",
          path.native());
    }
    return conflict(
        "{}: a patch of it was interrupted and may be done in part; expected no {}: "
        "repair puts the old bytes back",
        path.native(), journal.native());
  }
  return {};
}

}  // namespace holdfast
