// ObjectStore: named objects in a bucket of an object store. An object is written whole
// or not at all, and can be read in ranges.
//
// Object stores have no folders, no rename and perhaps no conditional put. This
// interface promises only what all of them do: an object appears whole when put() or
// Upload::finish() succeeds, and nobody ever sees a part of it; a listing shows all
// objects that were finished before the listing began. If put(), finish() or remove()
// fails with kUnavailable or kTimeout, the server may have done it or not: repeat the
// call, or look.
//
// Nothing here checks the contents of objects, because an ETag is not always a digest.
// The caller keeps digests of its own.
//
// Errors name the object as "s3://bucket/key". Codes: kInvalid (an impossible key, size
// or option; access denied; an object longer than the limit), kNotFound (no such object
// or bucket), kUnavailable (no connection, status 5xx, or an answer that makes no
// sense, after all attempts), kTimeout (no answer in time, after all attempts),
// kNoSpace (a quota is used up), kConflict (another request changes the object),
// kCorrupt (the object was replaced while it was read), kUnsupported (the server does
// not know this call).
//
// All calls of a store are safe from several threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/env/env.h"
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

// An object that is being written. append() may return before its bytes are sent; if
// sending fails, a later call and all calls after that return the error. Used by one
// thread at a time. The store must outlive the upload. The destructor of an unfinished
// upload waits for the parts that are being sent, and then tries once to abort it.
class Upload : public Sink {
 public:
  // Makes the object appear, durable, with exactly the appended bytes. Fails with
  // kInvalid if they are not as many as begin_upload() was told. Only the destructor
  // may follow.
  virtual Result<void> finish() = 0;
  // Removes the parts that the server has. Only the destructor may follow.
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

  // Writes an object. Replaces an object of the same key.
  virtual Result<void> put(const std::string& key, ByteView bytes) = 0;
  // Begins to write an object of `size` bytes that are appended bit by bit. Large
  // objects are sent in parts, so that the memory used is bounded.
  virtual Result<std::unique_ptr<Upload>> begin_upload(const std::string& key,
                                                       int64_t size) = 0;
  // Reads a whole object. Fails with kInvalid if it has more than `limit` bytes.
  virtual Result<Bytes> get(const std::string& key, int64_t limit = kReadLimit) = 0;
  // Each read of the source is one request. The store must outlive the source. A read
  // fails with kCorrupt if the object was replaced by one of another size.
  virtual Result<std::unique_ptr<Source>> open(const std::string& key) = 0;
  // All objects whose key begins with `prefix`, sorted bytewise by key.
  virtual Result<std::vector<ObjectInfo>> list(const std::string& prefix) = 0;
  // Succeeds if there is no such object.
  virtual Result<void> remove(const std::string& key) = 0;

  // Unfinished uploads in parts, of any process, whose key begins with `prefix`. Fails
  // with kUnsupported if the server cannot list uploads.
  virtual Result<std::vector<PendingUpload>> list_uploads(
      const std::string& prefix) = 0;
  // Succeeds if there is no such upload.
  virtual Result<void> abort_upload(const PendingUpload& upload) = 0;
};

// Fails with kInvalid unless the key works unchanged on all servers: 1 to 1024 bytes,
// without control characters and without empty, "." or ".." segments. `store` is for
// the message.
Result<void> check_object_key(const std::string& store, const std::string& key);

}  // namespace holdfast
