// An open file of an Env.
//
// A call transfers all its bytes: a read ends early only at the end of the file, and a
// write is done in full or fails (some of its bytes may then be in the file). Where the
// system is interrupted or transfers only a part, the call goes on by itself.
//
// Written bytes are visible at once and survive a crash only after sync() or
// sync_data(); the file's *name* survives only after Env::sync_folder. A failed sync
// must not be repeated on the same file: the system may have dropped the bytes and
// would then report success. Write a new file instead.
//
// Threads: reads, writes, submits and waits may run at the same time; close() runs
// alone. A file must not outlive its Env. The destructor waits for submitted transfers,
// then closes the file and reports no errors.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "holdfast/base/bytes.h"
#include "holdfast/base/mutex.h"
#include "holdfast/base/result.h"
#include "holdfast/env/env.h"

namespace holdfast {

enum class OpenMode {
  kRead,      // an existing file, to read
  kCreate,    // a new file, to read and write; kConflict if the name is taken
  kTruncate,  // a new file or an existing one emptied, to read and write
  kUpdate,    // an existing file, to read and write
  kAppend,    // a new or existing file, to append() only
};

struct OpenOptions {
  OpenMode mode = OpenMode::kRead;
  // Transfers bypass the system's cache. Offsets, lengths and addresses of every
  // transfer must then be multiples of kDirectAlignment, else it is kInvalid; only the
  // end of the file may make a read shorter. Where the file system cannot do direct
  // transfers, opening fails with kUnsupported and creates or empties no file; some
  // file systems refuse only at the first transfer. Not for kAppend.
  bool direct = false;
};

// Any number of files may have the shared lock of one file at a time, or one of them its
// exclusive lock.
enum class LockKind { kShared, kExclusive };

// One submitted transfer of one file.
struct Ticket {
  uint64_t id = 0;
};

class File {
 public:
  virtual ~File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const Path& path() const { return path_; }
  OpenMode mode() const { return options_.mode; }
  bool direct() const { return options_.direct; }

  // Number of bytes read: fewer than asked only at the end of the file.
  Result<size_t> read_at(int64_t offset, ByteSpan into);
  // A write beyond the end makes the file longer; the gap reads as zeros.
  Result<void> write_at(int64_t offset, ByteView bytes);
  // Writes at the end that the file has at this moment. Only in mode kAppend.
  Result<void> append(ByteView bytes);

  // Transfers in the background. The memory must stay alive and, for writes, unchanged
  // until wait() has returned. Transfers run in any order, so ranges in flight must not
  // overlap. Errors come with wait(). May block while too many are in flight.
  virtual Ticket submit_read(int64_t offset, ByteSpan into);
  virtual Ticket submit_write(int64_t offset, ByteView bytes);
  // Waits for a submitted transfer and returns the number of its bytes, with the
  // promises of read_at and write_at. Call it once for each ticket, in any order. A
  // sync covers only those writes that were waited for.
  virtual Result<size_t> wait(Ticket ticket);

  virtual Result<int64_t> size() = 0;
  // When its contents last changed, as Env::info says it; 1970 where that is not known.
  virtual Result<WallTime> modified() { return WallTime{}; }
  // The number that the system gave the open file, for what an Env cannot do; -1 if there
  // is none, or if all reads must go through this class.
  virtual int descriptor() const { return -1; }
  // Reserves space for [0, size) and makes the file at least that long, with zeros at
  // the end. kNoSpace if there is not enough; kUnsupported where the file system cannot
  // reserve (the reservation is never emulated by writing).
  virtual Result<void> allocate(int64_t size) = 0;
  // Cuts the file, or lengthens it with zeros.
  virtual Result<void> truncate(int64_t size) = 0;
  // Both make the contents durable. sync_data() leaves out times and other attributes
  // that reading the contents does not need.
  virtual Result<void> sync() = 0;
  virtual Result<void> sync_data() = 0;
  // Takes the lock of the file, which others who ask for it respect. It ends when this
  // File is closed or the process ends. Returns false if another open file has a lock
  // that excludes it. kUnsupported where the file system, or this Env, has no locks.
  virtual Result<bool> try_lock(LockKind kind);
  // Waits for submitted transfers and closes the file. Reports the first failure of a
  // transfer that nobody waited for, or else the failure of closing. Does not sync. No
  // call may follow.
  Result<void> close();

 protected:
  // A whole transfer, or the wait for one that runs elsewhere.
  using Transfer = std::function<Result<size_t>()>;

  File(Path path, OpenOptions options) : path_(std::move(path)), options_(options) {}

  // One transfer of at least one byte; reading gives 0 at the end of the file.
  virtual Result<size_t> read_some(int64_t offset, ByteSpan into) = 0;
  virtual Result<size_t> write_some(int64_t offset, ByteView bytes) = 0;
  virtual Result<size_t> append_some(ByteView bytes) = 0;
  virtual Result<void> close_handle() = 0;
  // Ends every transfer that nobody waited for yet, in the order of submission, and
  // returns the first failure. Implementations call it in their destructors, because a
  // transfer uses the implementation.
  virtual Result<void> drain();

  // The same as write_at, but returns the number of bytes, as wait() does.
  Result<size_t> write_whole(int64_t offset, ByteView bytes);
  // Refuse what read_at and write_at refuse before they ask the system.
  Result<void> check_read(int64_t offset, ByteView memory) const;
  Result<void> check_write(int64_t offset, ByteView bytes) const;
  // A ticket whose wait() calls `transfer`, once, on the thread that waits.
  Ticket put_off(Transfer transfer);

 private:
  Result<void> check_transfer(const char* what, int64_t offset, ByteView memory) const;
  Transfer remove_transfer(Ticket ticket);
  std::map<uint64_t, Transfer> remove_all_transfers();

  const Path path_;
  const OpenOptions options_;

  // Transfers that nobody waited for yet. Unless an implementation starts them earlier,
  // they run in wait(). That is as late as the contract allows, so that tests find
  // callers that rely on a transfer before they have waited for it.
  Mutex mutex_;
  uint64_t last_id_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Transfer> submitted_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
