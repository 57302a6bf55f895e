#include "holdfast/env/env.h"

#include <algorithm>

#include "holdfast/env/file.h"

namespace holdfast {
namespace {

// The file's size only says how much to ask for first: files such as those in /proc
// claim to be empty, and others grow meanwhile.
Result<Bytes> read_to_end(File& file, int64_t limit) {
  constexpr int64_t kLeastPiece = 4096;
  const int64_t size = HOLDFAST_TRY(file.size());
  if (size > limit) {
    return invalid("{}: {} bytes, limit {}", file.path().native(), size, limit);
  }
  Bytes bytes;
  int64_t done = 0, piece = std::max(size, kLeastPiece);
  while (true) {
    // Asks for one byte more than the limit, to see whether the file is too long.
    const int64_t room = limit - done;
    const auto want = static_cast<size_t>(room < piece ? room + 1 : piece);
    bytes.resize(static_cast<size_t>(done) + want);
    const size_t count = HOLDFAST_TRY(file.read_at(done, ByteSpan(bytes).last(want)));
    done += static_cast<int64_t>(count);
    if (done > limit) {
      return invalid("{}: more than {} bytes", file.path().native(), limit);
    }
    if (count < want) break;
    piece = std::max(done, kLeastPiece);
  }
  bytes.resize(static_cast<size_t>(done));
  return bytes;
}

Path without_slash(const Path& path) {
  const Path normal = path.lexically_normal();
  return normal.has_filename() || !normal.has_relative_path() ? normal
                                                              : normal.parent_path();
}

}  // namespace

Path folder_of(const Path& path) {
  const Path parent = path.parent_path();
  return parent.empty() ? Path(".") : parent;
}

Result<std::unique_ptr<File>> Env::create_unnamed(const Path& folder) {
  return unsupported("{}: this Env cannot create files without a name",
                     folder.native());
}

Result<void> Env::name_file(File& file, const Path& to) {
  return unsupported("{}: this Env cannot give an open file the name {}",
                     file.path().native(), to.native());
}

Result<Bytes> Env::read_file(const Path& path, int64_t limit) {
  const auto file = HOLDFAST_TRY(open(path, {.mode = OpenMode::kRead}));
  Bytes bytes = HOLDFAST_TRY(read_to_end(*file, limit));
  HOLDFAST_TRY(file->close());
  return bytes;
}

Result<std::string> Env::read_text(const Path& path, int64_t limit) {
  return std::string(text_of(HOLDFAST_TRY(read_file(path, limit))));
}

Result<void> Env::write_file(const Path& path, ByteView bytes) {
  const auto file = HOLDFAST_TRY(open(path, {.mode = OpenMode::kTruncate}));
  HOLDFAST_TRY(file->write_at(0, bytes));
  HOLDFAST_TRY(file->sync());
  return file->close();
}

Result<void> Env::sync_names(const Path& folder) {
  Result<void> synced = sync_folder(folder);
  const bool cannot = !synced.ok() && synced.error().code() == ErrorCode::kUnsupported;
  return cannot ? Result<void>() : synced;
}

Result<void> Env::replace_file(const Path& path, ByteView bytes) {
  Path beside = path;
  beside += fmt::format(".{:016x}.tmp", random64());
  const Result<void> replaced = [&]() -> Result<void> {
    HOLDFAST_TRY(write_file(beside, bytes));
    return rename(beside, path);
  }();
  if (!replaced.ok()) {
    (void)remove_file(beside);  // `replaced` is reported even if this fails too
    return replaced;
  }
  return sync_names(folder_of(path));
}

// Makes the name of a folder durable that create_folders() found already there. An
// earlier call may have created the folder and been killed before it synced the name.
// The names above need no sync: they were synced before this folder was created.
Result<void> Env::sync_name(const Path& folder) {
  if (folder == "." || !folder.has_relative_path()) return {};
  return sync_names(folder_of(folder));
}

Result<void> Env::create_folders(const Path& path) {
  const Path folder = without_slash(path);
  Result<void> created = create_folder(folder);
  if (created.ok()) {
    HOLDFAST_TRY(sync_name(folder_of(folder)));
  } else if (created.error().code() == ErrorCode::kNotFound) {
    HOLDFAST_TRY(create_folders(folder_of(folder)));
    created = create_folder(folder);
  }
  if (created.ok()) return sync_names(folder_of(folder));
  if (created.error().code() != ErrorCode::kConflict) return created;
  const FileInfo there = HOLDFAST_TRY(info(folder));
  return there.folder ? sync_name(folder) : created;
}

Result<void> Env::remove_all(const Path& path) {
  const Result<void> removed = remove_tree(path);
  const bool gone = !removed.ok() && is_missing(removed.error());
  return gone ? Result<void>() : removed;
}

// Names below the folder may vanish meanwhile: remove_all() treats each of them as
// removed.
Result<void> Env::remove_tree(const Path& path) {
  const FileInfo there = HOLDFAST_TRY(info(path));
  if (!there.folder || there.symlink) return remove_file(path);
  const std::vector<std::string> names = HOLDFAST_TRY(list(path));
  for (const std::string& name : names) HOLDFAST_TRY(remove_all(path / name));
  return remove_folder(path);
}

}  // namespace holdfast
