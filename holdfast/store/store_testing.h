// A tiny checkpoint and identities of processes on imaginary machines, for tests of
// code that uses the store.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "holdfast/base/crc32c.h"
#include "holdfast/base/testing.h"
#include "holdfast/env/file.h"
#include "holdfast/shard/shard_index.h"
#include "holdfast/store/attempt.h"

namespace holdfast {

inline constexpr const char* kTestRun = "/runs/gpt";

// The identity of process `pid` on the machine `host`.
inline Identity test_process(int64_t pid, std::string host = "alpha",
                             std::string boot = "boot-1") {
  return {.host = std::move(host),
          .boot = std::move(boot),
          .pid = pid,
          .started = pid * 10};
}

// Liveness for tests: no process lives, or only the processes with the given numbers
// live.
inline Liveness nobody_lives() {
  return [](int64_t) { return Result<std::optional<int64_t>>(std::nullopt); };
}
inline Liveness only_live(std::set<int64_t> pids) {
  return [pids](int64_t pid) {
    return Result<std::optional<int64_t>>(pids.contains(pid) ? std::optional(pid * 10)
                                                             : std::nullopt);
  };
}

// The files of one checkpoint. Their bytes differ for each seed.
struct TinyStep {
  Bytes shard;
  ShardIndex index;
  std::string objects;
};

// Makes a shard with one chunk for the header and three tensors: `w` and `b` share a
// chunk, `big` has two chunks.
inline TinyStep tiny_step(uint64_t seed) {
  constexpr int64_t kHeader = 512, kFirst = 700, kBig = 1000, kW = 96, kB = 8;
  TinyStep tiny{.shard = Bytes(static_cast<size_t>(kHeader + kBig + kW + kB)),
                .index = {},
                .objects = fmt::format("{{\"seed\":{}}}", seed)};
  for (size_t i = 0; i < tiny.shard.size(); ++i) {
    tiny.shard[i] = static_cast<std::byte>((i * 131 + seed * 7919 + i / 256) >> 3);
  }
  ShardFile file{.name = "rank-0000.safetensors",
                 .bytes = static_cast<int64_t>(tiny.shard.size()),
                 .chunks = {}};
  int64_t offset = 0;
  for (const int64_t bytes : {kHeader, kFirst, kBig - kFirst, kW + kB}) {
    const ByteView chunk =
        ByteView(tiny.shard)
            .subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes));
    file.chunks.push_back({.offset = offset, .bytes = bytes, .crc = crc32c(chunk)});
    offset += bytes;
  }
  tiny.index.files = {std::move(file)};
  const auto add = [&](const char* name, Shape shape, int64_t at) {
    tiny.index.tensors.push_back({.name = name, .dtype = Dtype::kU8, .shape = shape});
    StoredPiece piece{.tensor = static_cast<uint32_t>(tiny.index.tensors.size() - 1),
                      .box = Box::whole(shape),
                      .offset = at};
    piece.seal = seal_bytes(
        ByteView(tiny.shard)
            .subspan(static_cast<size_t>(at), static_cast<size_t>(shape.elements())),
        0);
    tiny.index.pieces.push_back(piece);
  };
  add("big", Shape{kBig}, kHeader);
  add("w", Shape{12, 8}, kHeader + kBig);
  add("b", Shape{8}, kHeader + kBig + kW);
  return tiny;
}

// The files in the step's folder, without the manifest.
inline std::map<std::string, Bytes> files_of(const TinyStep& tiny) {
  return {{"rank-0000.safetensors", tiny.shard},
          {"rank-0000.index.json", encode_shard_index(tiny.index)},
          {"objects.json", copy_of(bytes_of(tiny.objects))}};
}

inline Result<std::map<std::string, Bytes>> read_step(Env& env, const Path& folder) {
  std::map<std::string, Bytes> files;
  const std::vector<std::string> names = HOLDFAST_TRY(env.list(folder));
  for (const std::string& name : names) {
    if (name == kManifestName) continue;
    files.emplace(name, HOLDFAST_TRY(env.read_file(folder / name)));
  }
  return files;
}

// Writes the files of a tiny step as a rank does. Returns their entries for the
// manifest.
inline Result<std::vector<ManifestFile>> write_tiny(Env& env, Attempt& attempt,
                                                    uint64_t seed) {
  const TinyStep tiny = tiny_step(seed);
  const ShardFile& shard = tiny.index.files[0];
  const auto file = HOLDFAST_TRY(
      env.open(attempt.folder() / shard.name, {.mode = OpenMode::kCreate}));
  HOLDFAST_TRY(file->allocate(shard.bytes));
  HOLDFAST_TRY(file->write_at(0, tiny.shard));
  HOLDFAST_TRY(file->sync_data());
  HOLDFAST_TRY(file->close());
  std::vector<ManifestFile> files = {{.name = shard.name,
                                      .bytes = shard.bytes,
                                      .digest = crc_digest(combined_crc(shard))}};
  files.push_back(HOLDFAST_TRY(
      attempt.put_file("rank-0000.index.json", encode_shard_index(tiny.index))));
  files.push_back(
      HOLDFAST_TRY(attempt.put_file("objects.json", bytes_of(tiny.objects))));
  HOLDFAST_TRY(attempt.sync());
  return files;
}

// Makes and commits a whole checkpoint as a job with one rank does.
inline Result<Path> save_tiny(const Run& run, const Owner& owner, int64_t step,
                              uint64_t seed, std::map<std::string, double> metrics = {},
                              EventSink* events = nullptr) {
  Attempt attempt =
      HOLDFAST_TRY(Attempt::begin(run, owner, step, run.env().random64(), events));
  HOLDFAST_TRY(check_space(run, int64_t{1} << 21, 0));
  Manifest manifest;
  manifest.files = HOLDFAST_TRY(write_tiny(run.env(), attempt, seed));
  manifest.metrics = std::move(metrics);
  return attempt.commit(std::move(manifest));
}

}  // namespace holdfast
