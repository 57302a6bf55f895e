#include "holdfast/base/env.h"

namespace holdfast {
namespace {

Result<Bytes> read_to_end(File& file, int64_t limit) {
  const int64_t size = HOLDFAST_TRY(file.size());
  if (size > limit) {
    return invalid("{}: {} bytes, limit {}", file.path().native(), size, limit);
  }
  Bytes bytes(static_cast<size_t>(size));
  bytes.resize(HOLDFAST_TRY(file.read_at(0, bytes)));
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

Result<void> Env::replace_file(const Path& path, ByteView bytes) {
  Path beside = path;
  beside += fmt::format(".{:016x}.tmp", random64());
  const Result<void> replaced = [&]() -> Result<void> {
    HOLDFAST_TRY(write_file(beside, bytes));
    return rename(beside, path);
  }();
  if (!replaced.ok()) {
    (void)remove_file(beside);  // the first failure is the one to report
    return replaced;
  }
  return sync_folder(folder_of(path));
}

Result<void> Env::create_folders(const Path& path) {
  const Path folder = without_slash(path);
  Result<void> created = create_folder(folder);
  if (!created.ok() && created.error().code() == ErrorCode::kNotFound) {
    HOLDFAST_TRY(create_folders(folder_of(folder)));
    created = create_folder(folder);
  }
  if (created.ok()) return sync_folder(folder_of(folder));
  if (created.error().code() != ErrorCode::kConflict) return created;
  const FileInfo there = HOLDFAST_TRY(info(folder));
  return there.folder ? Result<void>() : created;
}

Result<void> Env::remove_all(const Path& path) {
  const Result<FileInfo> there = info(path);
  if (!there.ok()) {
    if (there.error().code() == ErrorCode::kNotFound) return {};
    return there.error();
  }
  if (!there->folder || there->symlink) return remove_file(path);
  const std::vector<std::string> names = HOLDFAST_TRY(list(path));
  for (const std::string& name : names) HOLDFAST_TRY(remove_all(path / name));
  return remove_folder(path);
}

}  // namespace holdfast
