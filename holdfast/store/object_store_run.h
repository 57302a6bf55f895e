// Checkpoints in an object store. An object store has no rename and perhaps no
// conditional put, so each checkpoint is committed by a manifest under a name of its
// own:
//
//   <prefix>/data/<attempt>/<file>                       written once, never again
//   <prefix>/manifest-<epoch>-<sequence>-<attempt>.json  commits by its presence
//
// Commit:
//   1. All ranks upload their files under keys of this attempt.
//   2. One process checks that every file of the manifest is there with its size.
//   3. That process puts the manifest.                   <- the commit point
// Removal:
//   1. The manifest is removed.                          <- the point of no return
//   2. The data keys are removed.
//
// A crash before step 3 of a commit, or during a removal, leaves data without a
// manifest. No reader looks at such data, and sweep() removes it. No two attempts write
// the same key, so nothing that a late or dead process does can change a committed
// checkpoint.
//
// Numbers in names are padded with zeros, so that a listing is sorted by age: the
// newest checkpoint has the greatest (epoch, sequence). This class handles manifests as
// bytes. The caller checks their digest and the digests of the files (manifest.h): an
// ETag is not a digest.
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

// A committed checkpoint, identified by the name of its manifest. The order is by age.
struct ObjectStoreStep {
  int64_t epoch = 0;
  int64_t sequence = 0;
  uint64_t attempt = 0;
  friend auto operator<=>(const ObjectStoreStep&, const ObjectStoreStep&) = default;
};

// The name of a step's manifest: "manifest-<epoch>-<sequence>-<attempt>.json".
std::string manifest_name(const ObjectStoreStep& step);
bool is_manifest_name(std::string_view name);

// Upper limit for reading a manifest from the store.
inline constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;

// One run in an object store. All calls are safe from several threads and processes at
// once. This class does not check who may commit and remove: that is the owner's right
// (owner.h). Errors are those of object_store.h.
class ObjectStoreRun {
 public:
  // An empty prefix means the whole bucket. The store must outlive the returned object.
  static Result<ObjectStoreRun> create(ObjectStore& store, std::string prefix);

  // The name for messages: "s3://bucket/prefix".
  std::string name() const;

  // Begins the upload of one file of an attempt. Fails with kInvalid if the name has a
  // slash.
  Result<std::unique_ptr<Upload>> create_file(uint64_t attempt, const std::string& file,
                                              int64_t size);
  // Carries out steps 2 and 3 of the commit above. Fails with kConflict, and commits
  // nothing, if a file is missing or has another size. After kUnavailable or kTimeout
  // the outcome is unknown; steps() tells it.
  Result<void> commit(const ObjectStoreStep& step, ByteView manifest,
                      std::span<const ManifestFile> files);

  // Committed checkpoints, newest first. Ignores keys that are not the name of a
  // manifest.
  Result<std::vector<ObjectStoreStep>> steps();
  // Names of step folders that somebody has copied below the prefix with another tool.
  // They are not checkpoints of an object store, but they show that the prefix holds a
  // run.
  Result<std::vector<std::string>> copied_folders();
  // The bytes of the step's manifest. Fails with kNotFound if it was removed meanwhile.
  Result<Bytes> read_manifest(const ObjectStoreStep& step);
  Result<std::unique_ptr<Source>> open(const ObjectStoreStep& step,
                                       const std::string& file);
  // Names and sizes of the step's files as the store lists them, whatever the manifest
  // says.
  Result<std::map<std::string, int64_t>> files(const ObjectStoreStep& step);

  // Removes the checkpoint. If this fails or is killed after the manifest is gone, the
  // checkpoint is gone too, but data keys may stay until sweep().
  Result<void> remove(const ObjectStoreStep& step);
  // Removes the data of an attempt that will not be committed. Fails with kInvalid if
  // the attempt is committed.
  Result<void> discard(uint64_t attempt);
  // Removes the data and aborts the uploads of attempts that have no manifest, are not
  // in `live`, and have nothing newer than `before` (by the server's clock). `before`
  // must lie so far back that no other process can still be writing such an attempt.
  // Returns how many keys and uploads were removed.
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
  // Ends with a slash, or is empty.
  std::string prefix_;
};

}  // namespace holdfast
