#include "holdfast/checkpoint/parity_file.h"

#include <algorithm>

#include "holdfast/base/crc32c.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/manifest.h"

namespace holdfast {
namespace {

constexpr int64_t kWindow = int64_t{4} << 20;

// Calls `visit` with all bytes of a file, in their order.
template <typename Visit>
Result<void> read_in_parts(const Source& source, Visit&& visit) {
  for (int64_t at = 0; at < source.size(); at += kWindow) {
    HOLDFAST_TRY(visit(HOLDFAST_TRY(
        source.read_bytes(at, std::min(kWindow, source.size() - at)))));
  }
  return {};
}

}  // namespace

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
  HOLDFAST_TRY(read_in_parts(*source, [&](ByteView part) { return parity->add(part); }));
  return parity->finish();
}

Result<std::optional<ManifestFile>> link_parity(Env& env, const Path& shard,
                                                const Path& folder,
                                                const std::string& name) {
  const Path from = folder_of(shard) / parity_name(shard.filename().native());
  if (!env.info(from).ok()) return std::optional<ManifestFile>();
  const auto source = HOLDFAST_TRY(FileSource::open(env, from));
  Crc32c crc = 0;
  HOLDFAST_TRY(read_in_parts(*source, [&](ByteView part) -> Result<void> {
    crc = crc32c_extend(crc, part);
    return {};
  }));
  HOLDFAST_TRY(env.link(from, folder / parity_name(name)));
  return std::optional(ManifestFile{
      .name = parity_name(name), .bytes = source->size(), .digest = crc_digest(crc)});
}

}  // namespace holdfast
