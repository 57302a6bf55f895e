// For tests of patches: random flips, and the bytes of all files under a path.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/formats/format.h"

namespace holdfast::tests {

// The bytes of a file, or of all files in a folder, by path. Journals are left out, also
// those that were not finished.
using Snapshot = std::map<std::string, Bytes>;

inline Snapshot files_under(Env& env, const Path& path) {
  Snapshot files;
  if (!env.info(path).value().folder) {
    files[path.native()] = env.read_file(path).value();
    return files;
  }
  for (const std::string& name : env.list(path).value()) {
    if (name.find(".holdfast-patch") != name.npos) continue;
    files.merge(files_under(env, path / name));
  }
  return files;
}

// How many bytes differ, counting those that only one of them has.
inline int64_t changed_bytes(const Bytes& a, const Bytes& b) {
  int64_t count = std::abs(std::ssize(a) - std::ssize(b));
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) count += a[i] != b[i];
  return count;
}

inline int64_t changed_bytes(const Snapshot& a, const Snapshot& b) {
  int64_t count = 0;
  for (const auto& [path, bytes] : a) count += changed_bytes(bytes, b.at(path));
  return count;
}

inline int64_t predicted_bytes(const Patch& patch) {
  int64_t count = 0;
  for (const FilePatch& file : patch.files) {
    for (const Change& change : file.changes) {
      count += changed_bytes(change.before, change.after);
    }
  }
  return count;
}

// Flips of one or several bits in random elements.
inline std::vector<Flip> random_flips(Dice& dice, const Contents& contents, int count) {
  std::vector<Flip> flips;
  while (std::ssize(flips) < count) {
    const auto& tensors = contents.collection.tensors();
    const Tensor& tensor =
        tensors[static_cast<size_t>(dice.below(std::ssize(tensors)))];
    if (tensor.shape.elements() == 0) continue;
    Flip flip{.tensor = tensor.name, .element = dice.below(tensor.shape.elements())};
    const int64_t bits = 8 * bytes_of(tensor.dtype);
    for (int64_t left = 1 + dice.below(3); left > 0; --left) {
      const int64_t bit = dice.below(bits);
      flip.mask[static_cast<size_t>(bit / 8)] ^= static_cast<std::byte>(1 << (bit % 8));
    }
    flips.push_back(std::move(flip));
  }
  return flips;
}

// Applies flips to the canonical bytes of tensors, by name.
inline void apply_flips(const Contents& contents, std::span<const Flip> flips,
                        std::map<std::string, Bytes>& values) {
  for (const Flip& flip : flips) {
    const TensorId t = contents.collection.find(flip.tensor).value();
    const auto size =
        static_cast<size_t>(bytes_of(contents.collection.tensor(t).dtype));
    Bytes& bytes = values.at(contents.collection.tensor(t).name);
    for (size_t i = 0; i < size; ++i) {
      bytes[static_cast<size_t>(flip.element) * size + i] ^= flip.mask[i];
    }
  }
}

// Applies the patch once for each call of Env that it makes, with an error or a crash at
// that call. Expects that the files are the old or the new ones afterwards. `put` makes the
// files that the patch is for.
inline void expect_old_or_new(const std::function<void(MemoryEnv&)>& put,
                              const Path& path, const Patch& patch) {
  MemoryEnv counted_disk;
  put(counted_disk);
  const Path folder = counted_disk.info(path).value().folder ? path : folder_of(path);
  const Snapshot old = files_under(counted_disk, folder);
  FaultyEnv counted(counted_disk);
  ASSERT_OK(apply_patch(counted, patch));
  EXPECT_LE(counted.calls(Op::kSync) + counted.calls(Op::kSyncFolder),
            3 + std::ssize(patch.files));
  const Snapshot now = files_under(counted_disk, folder);
  for (int64_t k = 1; k <= counted.calls(); ++k) {
    for (const bool crash : {false, true}) {
      MemoryEnv disk;
      put(disk);
      FaultyEnv env(disk);
      if (crash) {
        env.crash_at(Op::kAny, k);
      } else {
        env.fail_at(Op::kAny, k, ErrorCode::kNoSpace);
      }
      const bool done = apply_patch(env, patch).ok();
      EXPECT_FALSE(crash && done);
      for (const Unsynced unsynced : {Unsynced::kLost, Unsynced::kReordered}) {
        const auto after =
            disk.after_crash({.unsynced = unsynced, .seed = static_cast<uint64_t>(k)});
        const auto read = open_file(*after, path);
        EXPECT_TRUE(read.ok()
                        ? files_under(*after, folder) == old ||
                              files_under(*after, folder) == now
                        : message_of(read).find("holdfast-patch") != std::string::npos)
            << k << " " << message_of(read);
        FileLocks locks;
        ASSERT_OK(repair_file(*after, path, locks));
        const Snapshot seen = files_under(*after, folder);
        EXPECT_TRUE(seen == (done ? now : old) || (!done && seen == now)) << k;
        EXPECT_OK(open_file(*after, path));
      }
    }
  }
}

}  // namespace holdfast::tests
