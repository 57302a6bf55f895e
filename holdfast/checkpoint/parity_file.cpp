#include "holdfast/checkpoint/parity_file.h"

#include <algorithm>

#include "holdfast/base/crc32c.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/manifest.h"
#include "holdfast/store/step_check.h"

namespace holdfast {

Result<std::unique_ptr<ParityFile>> ParityFile::create(Env& env, const Path& folder,
                                                       const std::string& shard,
                                                       double share, int64_t bytes) {
  const ParityShape shape = HOLDFAST_TRY(parity_shape(share, bytes));
  std::string name = parity_name(shard);
  auto sink = HOLDFAST_TRY(FileSink::create(env, folder / name));
  return std::unique_ptr<ParityFile>(
      new ParityFile(std::move(sink), std::move(name), shape));
}

Result<ManifestFile> ParityFile::finish() {
  HOLDFAST_TRY(encoder_.finish());
  const int64_t bytes = sink_->size();
  HOLDFAST_TRY(sink_->finish());
  return ManifestFile{
      .name = name_, .bytes = bytes, .digest = crc_digest(encoder_.crc())};
}

Result<ManifestFile> write_parity(Env& env, const Path& folder,
                                  const std::string& shard, double share) {
  const auto source = HOLDFAST_TRY(FileSource::open(env, folder / shard));
  const auto parity =
      HOLDFAST_TRY(ParityFile::create(env, folder, shard, share, source->size()));
  constexpr int64_t kPart = int64_t{4} << 20;
  for (int64_t at = 0; at < source->size(); at += kPart) {
    HOLDFAST_TRY(parity->add(HOLDFAST_TRY(
        source->read_bytes(at, std::min(kPart, source->size() - at)))));
  }
  return parity->finish();
}

namespace {

// What the manifest of a step says about a file; nullopt if it does not name the file.
Result<std::optional<ManifestFile>> listed_file(Env& env, const Path& path) {
  const Manifest manifest = HOLDFAST_TRY(read_manifest(env, folder_of(path)));
  const auto found = std::ranges::find(manifest.files, path.filename().native(),
                                       &ManifestFile::name);
  if (found == manifest.files.end()) return std::optional<ManifestFile>();
  return std::optional(*found);
}

Result<bool> is_as_listed(Env& env, const Path& path, const ManifestFile& listed) {
  const auto source = HOLDFAST_TRY(FileSource::open(env, path));
  if (source->size() != listed.bytes) return false;
  return crc_digest(HOLDFAST_TRY(crc32c_of(*source, 0, listed.bytes))) == listed.digest;
}

}  // namespace

Result<std::optional<ManifestFile>> link_parity(Env& env, const Path& shard,
                                                const Path& folder,
                                                const std::string& name, double share) {
  const Path from = folder_of(shard) / parity_name(shard.filename().native());
  std::optional<ManifestFile> listed = HOLDFAST_TRY(listed_file(env, from));
  if (!listed) return listed;
  const Result<bool> right = is_as_listed(env, from, *listed);
  if (right.ok() && *right) {
    HOLDFAST_TRY(env.link(from, folder / parity_name(name)));
    listed->name = parity_name(name);
    return listed;
  }
  if (share == 0) return std::optional<ManifestFile>();
  return std::optional(HOLDFAST_TRY(write_parity(env, folder, name, share)));
}

}  // namespace holdfast
