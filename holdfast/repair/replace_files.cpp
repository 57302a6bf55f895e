// Carries a repair out: writes each damaged file again and puts it in the place of the
// damaged one, in all steps that have it.
#include <algorithm>

#include "holdfast/base/crc32c.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/repair/step_repair.h"
#include "holdfast/shard/chunk_reader.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/manifest.h"

namespace holdfast {
namespace {

constexpr std::string_view kHiddenEnd = ".mended.tmp";

Path hidden_beside(Env& env, const Path& path) {
  const std::string name =
      fmt::format(".{}.{}{}", path.filename().native(), hex64(env.random64()), kHiddenEnd);
  return folder_of(path) / name;
}

// Removes what a killed repair of this file has left.
void remove_left(Env& env, const Path& path) {
  const std::string begin = fmt::format(".{}.", path.filename().native());
  const Result<std::vector<std::string>> names = env.list(folder_of(path));
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!name.starts_with(begin) || !name.ends_with(kHiddenEnd)) continue;
    static_cast<void>(env.remove_file(folder_of(path) / name));
  }
}

// All names of a file in the steps of a run, except `path` itself.
std::vector<Path> other_names(Env& env, const Path& run, const Path& path) {
  std::vector<Path> names;
  const Result<FileInfo> own = env.info(path);
  const Result<std::vector<std::string>> steps = env.list(run);
  if (!own.ok() || own->links < 2 || !steps.ok()) return names;
  for (const std::string& step : *steps) {
    const Result<std::vector<std::string>> files =
        parse_step_name(step) ? env.list(run / step) : std::vector<std::string>();
    if (!files.ok()) continue;
    for (const std::string& file : *files) {
      const Path other = run / step / file;
      const Result<FileInfo> info = env.info(other);
      const bool same = info.ok() && info->inode == own->inode &&
                        info->device == own->device && other != path;
      if (same) names.push_back(other);
    }
  }
  return names;
}

// Writes the shard with its mended chunks, and checks every chunk on the way.
Result<void> write_shard(const ShardFile& shard, const FileMend& mend,
                         const Source* old, Sink& sink) {
  for (size_t c = 0; c < shard.chunks.size(); ++c) {
    const ByteExtent place = place_of(shard, c);
    const auto mended = mend.chunks.find(c);
    const Bytes stored =
        mended != mend.chunks.end()
            ? HOLDFAST_TRY(mended->second())
            : HOLDFAST_TRY(old->read_bytes(place.offset, place.bytes));
    Bytes unpacked;
    const ByteView chunk = HOLDFAST_TRY(open_chunk(shard, c, stored, unpacked));
    HOLDFAST_TRY(check_chunk(mend.file, shard,
                             {.number = c, .bytes = chunk, .crc = crc32c(chunk)}));
    HOLDFAST_TRY(sink.append(stored));
  }
  return {};
}

Result<void> write_whole(const StepRepair& repair, const FileMend& mend, Sink& sink) {
  const Bytes bytes = HOLDFAST_TRY(mend.whole());
  const auto& files = repair.step->manifest.files;
  const auto file = std::ranges::find(files, mend.file, &ManifestFile::name);
  const bool right = file == files.end()  // the manifest, which has its own digest
                         ? decode_manifest(bytes, mend.file).ok()
                         : file->digest == xxh3_digest(bytes) ||
                               file->digest == crc_digest(crc32c(bytes));
  if (!right) return corrupt("{}: has other bytes than before", mend.file);
  return sink.append(bytes);
}

Result<void> write_mended(Env& env, const StepRepair& repair, const FileMend& mend,
                          const Path& to) {
  const auto sink = HOLDFAST_TRY(FileSink::create(env, to));
  if (mend.whole) {
    HOLDFAST_TRY(write_whole(repair, mend, *sink));
  } else {
    // If the file is missing, all of its chunks are mended.
    const ShardFile& shard = *repair.step->find_shard(mend.file);
    std::unique_ptr<FileSource> old;
    if (mend.chunks.size() < shard.chunks.size()) {
      old = HOLDFAST_TRY(FileSource::open(env, repair.step->folder / mend.file));
    }
    HOLDFAST_TRY(write_shard(shard, mend, old.get(), *sink));
  }
  return sink->finish();
}

// Gives the file at `hidden` the name `name`, in place of the file that has it. Both are
// in different folders.
Result<void> replace_by_link(Env& env, const Path& hidden, const Path& name) {
  remove_left(env, name);
  const Path beside = hidden_beside(env, name);
  HOLDFAST_TRY(env.link(hidden, beside));
  const Result<void> renamed = env.rename(beside, name);
  if (!renamed.ok()) static_cast<void>(env.remove_file(beside));
  HOLDFAST_TRY(renamed);
  return env.sync_names(folder_of(name));
}

Result<void> replace_file(Env& env, const StepRepair& repair, const FileMend& mend) {
  const Path path = repair.step->folder / mend.file;
  remove_left(env, path);
  const Path hidden = hidden_beside(env, path);
  const auto write = [&]() -> Result<void> {
    HOLDFAST_TRY(write_mended(env, repair, mend, hidden));
    for (const Path& other : other_names(env, folder_of(repair.step->folder), path)) {
      HOLDFAST_TRY(replace_by_link(env, hidden, other));
    }
    HOLDFAST_TRY(env.rename(hidden, path));
    return env.sync_names(folder_of(path));
  };
  Result<void> written = write();
  if (!written.ok()) static_cast<void>(env.remove_file(hidden));
  return written;
}

}  // namespace

Result<void> apply_step_repair(Env& env, const StepRepair& repair) {
  HOLDFAST_CHECK(repair.lost.empty(), "a repair that mends only some of the damage");
  for (const FileMend& mend : repair.files) {
    HOLDFAST_TRY(replace_file(env, repair, mend));
  }
  return {};
}

}  // namespace holdfast
