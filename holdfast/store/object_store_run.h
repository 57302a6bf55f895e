// Checkpoints in an object store. There is no rename there and perhaps no conditional
// put, so a manifest under a name of its own is the commit mark:
//
//   <prefix>/data/<attempt>/<file>                             written once, never again
//   <prefix>/manifest-<epoch>-<sequence>-<attempt>.json        its being there is the commit
//
// Commit:
//   1. All ranks upload their files under the attempt's own keys.
//   2. One process checks that every file of the manifest is there with its size.
//   3. It puts the manifest.                                   <- the commit point
// Removal:
//   1. The manifest goes.                                      <- the point of no return
//   2. The data keys go.
//
// A crash before 3 leaves data without a manifest, as does one during a removal: no reader
// looks at it, and sweep() removes it. No key is ever written by two attempts, so nothing
// that a late or dead process does can change a committed checkpoint.
//
// Numbers in names are padded, so that a listing sorts by age: newest is the greatest
// (epoch, sequence), as everywhere. Manifests are bytes here; their digest and the files'
// digests (manifest.h) are for the caller to check: an ETag is no digest.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/remote/object_store.h"
#include "holdfast/store/manifest.h"

namespace holdfast {

// A committed checkpoint, by the name of its manifest. Ordered by age.
struct ObjectStoreStep {
  int64_t epoch = 0;
  int64_t sequence = 0;
  uint64_t attempt = 0;
  friend auto operator<=>(const ObjectStoreStep&, const ObjectStoreStep&) = default;
};

// "manifest-<epoch>-<sequence>-<attempt>.json": the name of a commit mark.
std::string manifest_name(const ObjectStoreStep& step);
bool is_manifest_name(std::string_view name);

// Manifests have no more bytes than this.
inline constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;

// One run in a store. All calls are safe from several threads and processes at once; who
// may commit and remove is the owner's affair (see the run directory). Errors are
// those of object_store.h.
class ObjectStoreRun {
 public:
  // An empty prefix is the whole bucket. The store must outlive the tier.
  static Result<ObjectStoreRun> create(ObjectStore& store, std::string prefix);

  // For messages: "s3://bucket/prefix".
  std::string name() const;

  // One file of an attempt. kInvalid for a name with a slash.
  Result<std::unique_ptr<Upload>> create_file(uint64_t attempt, const std::string& file,
                                              int64_t size);
  // Steps 2 and 3 above. kConflict, and nothing is committed, if a file is missing or of
  // another size. After kUnavailable and kTimeout the outcome is unknown: see steps().
  Result<void> commit(const ObjectStoreStep& step, ByteView manifest,
                      std::span<const ManifestFile> files);

  // Committed checkpoints, newest first. Names of others are ignored.
  Result<std::vector<ObjectStoreStep>> steps();
  // Names of steps' folders that somebody copied below the prefix with another tool. They
  // are no checkpoints here, but of a run all the same.
  Result<std::vector<std::string>> copied_folders();
  // The bytes of its manifest; kNotFound if it was removed meanwhile.
  Result<Bytes> read_manifest(const ObjectStoreStep& step);
  Result<std::unique_ptr<Source>> open(const ObjectStoreStep& step,
                                       const std::string& file);
  // Names and sizes of its files as they are, whatever the manifest says.
  Result<std::map<std::string, int64_t>> files(const ObjectStoreStep& step);

  // The checkpoint is gone; its last data keys may stay if this fails or is killed.
  Result<void> remove(const ObjectStoreStep& step);
  // Drops an attempt that will not be committed.
  Result<void> discard(uint64_t attempt);
  // Removes the data of attempts without a manifest, and aborts uploads, where all of the
  // attempt is from before `before` (by the server's clock) and it is not in `live`.
  // `before` must be long ago enough for no other process to be still writing. Returns how
  // many keys and uploads went.
  Result<int64_t> sweep(WallTime before, const std::set<uint64_t>& live);

 private:
  ObjectStoreRun(ObjectStore& store, std::string prefix)
      : store_(&store), prefix_(std::move(prefix)) {}

  std::string data_prefix() const { return prefix_ + "data/"; }
  std::string attempt_prefix(uint64_t attempt) const;
  std::string manifest_key(const ObjectStoreStep& step) const;
  Result<std::string> file_key(uint64_t attempt, const std::string& file) const;
  Result<int64_t> remove_keys(const std::vector<std::string>& keys);

  ObjectStore* store_;
  std::string prefix_;  // with a slash at its end, or empty
};

}  // namespace holdfast
