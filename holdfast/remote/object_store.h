// ObjectStore: named objects in a bucket, written whole or not at all, read by range.
//
// Object stores have no folders, no rename and perhaps no conditional put. What is
// promised here is what all of them keep: an object appears whole when put() or
// Upload::finish() succeeds and is never seen in part; a listing shows what was finished
// before it began. After an error with kUnavailable or kTimeout a put, a finish or a
// removal may have happened or not: make it again, or look.
//
// An ETag is no digest: nothing here checks contents. Digests belong to the caller.
//
// Errors name the object as "s3://bucket/key". Codes: kInvalid (a key, size or setting
// that cannot be, access denied, an object longer than the limit), kNotFound (no such
// object or bucket), kUnavailable (no connection, an answer of 5xx, or one that makes no
// sense, after all retries), kTimeout (no answer in time, after all retries), kNoSpace (a
// quota is used up), kUnsupported (the server does not know this call).
//
// All calls of a store are safe from several threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/base/clock.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

struct ObjectInfo {
  std::string key;
  int64_t size = 0;
  WallTime modified;  // by the server's clock
  friend bool operator==(const ObjectInfo&, const ObjectInfo&) = default;
};

// An upload that was begun and neither finished nor aborted.
struct PendingUpload {
  std::string key;
  std::string id;
  WallTime started;  // by the server's clock
  friend bool operator==(const PendingUpload&, const PendingUpload&) = default;
};

// An object that is being written. The bytes of append() may be on their way when it
// returns; a failure shows at a later call, and all calls after that repeat it. One
// thread at a time; the store must outlive it. Destroyed unfinished, it tries once to
// abort, which waits for what is on its way.
class Upload : public Sink {
 public:
  // The object is there, durable, with exactly the bytes appended. kInvalid unless they
  // are as many as begin_upload was told. No call may follow but the destructor.
  virtual Result<void> finish() = 0;
  // Nothing stays at the server. No call may follow but the destructor.
  virtual Result<void> abort() = 0;
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;
  ObjectStore() = default;
  ObjectStore(const ObjectStore&) = delete;
  ObjectStore& operator=(const ObjectStore&) = delete;

  // For messages: "s3://bucket".
  virtual const std::string& name() const = 0;

  // Replaces what is there.
  virtual Result<void> put(const std::string& key, ByteView bytes) = 0;
  // An object of `size` bytes that is streamed: large ones go in parts, with bounded
  // memory.
  virtual Result<std::unique_ptr<Upload>> begin_upload(const std::string& key,
                                                       int64_t size) = 0;
  // kInvalid if the object has more than `limit` bytes.
  virtual Result<Bytes> get(const std::string& key, int64_t limit = kReadLimit) = 0;
  // Each read of the source is one request; the store must outlive it. An object that
  // was replaced by one of another size is kCorrupt.
  virtual Result<std::unique_ptr<Source>> open(const std::string& key) = 0;
  // All objects whose key begins with `prefix`, sorted bytewise by key.
  virtual Result<std::vector<ObjectInfo>> list(const std::string& prefix) = 0;
  // Nothing to remove is success.
  virtual Result<void> remove(const std::string& key) = 0;

  // Uploads in parts under `prefix` that somebody began. kUnsupported where the server
  // does not tell.
  virtual Result<std::vector<PendingUpload>> list_uploads(
      const std::string& prefix) = 0;
  // Nothing to abort is success.
  virtual Result<void> abort_upload(const PendingUpload& upload) = 0;
};

// Opens the store of a bucket; shared by all that is open in it.
using OpenBucket =
    std::function<Result<std::shared_ptr<ObjectStore>>(const std::string& bucket)>;

// kInvalid unless all servers can hold it under this very name: 1 to 1024 bytes, without
// control characters and without empty, "." or ".." segments.
Result<void> check_object_key(const std::string& store, const std::string& key);

// Aborts uploads under `prefix` that were begun before `before`: a crash leaves them, and
// they cost space unseen. Returns how many; 0 where the server does not list uploads.
Result<int64_t> abort_orphans(ObjectStore& store, const std::string& prefix,
                              WallTime before);

}  // namespace holdfast
