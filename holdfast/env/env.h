// Env: the one door to files, clock and randomness. Nothing else opens a file or asks
// the time, so that a test can make any call fail, lose what was not synced, and own
// the clock.
//
//   make_posix_env()  the machine (posix_env.h)
//   MemoryEnv         a disk in memory that can lose power (memory_env.h)
//   FaultyEnv         fails, shortens or crashes at the k-th call (faulty_env.h)
//
// Durability has two halves. Contents survive a crash after File::sync. A name that was
// created, renamed, linked or removed survives (or stays away) after sync_folder of the
// folder that it is in. Renaming is atomic: a crash leaves the old name or the new one.
//
// Errors name the path. Codes: kNotFound (no such file or folder), kConflict (the name
// is taken, the folder is not empty), kNoSpace, kUnsupported (this file system cannot),
// kInvalid (a file where a folder is wanted, and the other way round), kUnavailable
// (too many open files, no memory, busy, a stale handle), kDenied (permissions), kIo (the
// rest: broken disks).
//
// All calls are safe from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/base/clock.h"
#include "holdfast/env/file.h"

namespace holdfast {

// Of what a symbolic link points to, where the name is one; a link that leads nowhere
// has only `symlink` set.
struct FileInfo {
  bool folder = false;
  bool symlink = false;
  int64_t size = 0;    // bytes; 0 for a folder
  int64_t links = 0;   // names of the file
  uint64_t inode = 0;  // equal exactly for the names of one file of a device
  uint64_t device = 0;
  WallTime modified{};  // when its contents last changed; 1970 where that is not known
};

// The most that is read into memory at once unless the caller says otherwise.
inline constexpr int64_t kReadLimit = int64_t{1} << 30;

class Env {
 public:
  virtual ~Env() = default;
  Env() = default;
  Env(const Env&) = delete;
  Env& operator=(const Env&) = delete;

  // Files. What is no regular file (a folder, a pipe, a device) does not open: kInvalid.
  virtual Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) = 0;
  virtual Result<FileInfo> info(const Path& path) = 0;
  virtual Result<void> remove_file(const Path& path) = 0;
  // A file replaces a file of the name `to` (both names may be the same file's), a folder
  // an empty folder: kConflict if it is not empty. kInvalid for a folder into itself and
  // where one is a file and the other a folder.
  virtual Result<void> rename(const Path& from, const Path& to) = 0;
  // Replaces nothing: kConflict if `to` exists. For files and folders; kInvalid for a
  // folder into itself. Where the file system cannot do that in one step, a crash may
  // leave a file with both names, and a folder may replace an empty one that somebody
  // makes at the same moment; never one that is not empty. Where it has no hard links
  // either, `to` is an empty file for a moment, and a crash may leave that.
  virtual Result<void> rename_new(const Path& from, const Path& to) = 0;
  // Another name for a file. kConflict if `to` exists, kUnsupported where there are no
  // hard links or not between these places.
  virtual Result<void> link(const Path& from, const Path& to) = 0;

  // A new file to write, in the folder but without a name, so that nobody sees it and
  // nothing is left when the process ends, however it does. kUnsupported where the file
  // system, or this Env, has no such files.
  virtual Result<std::unique_ptr<File>> create_unnamed(const Path& folder);
  // Gives such a file, still open, a name in its folder. Replaces nothing: kConflict if
  // `to` exists. The name is durable after sync_folder.
  virtual Result<void> name_file(File& file, const Path& to);

  // Folders.
  virtual Result<void> create_folder(const Path& path) = 0;
  // kConflict unless it is empty.
  virtual Result<void> remove_folder(const Path& path) = 0;
  // Names in the folder, sorted bytewise, without "." and "..".
  virtual Result<std::vector<std::string>> list(const Path& folder) = 0;
  // kUnsupported where the file system does not sync folders, or the folder may not be
  // read.
  virtual Result<void> sync_folder(const Path& folder) = 0;
  // Bytes that an ordinary user can still write there; the greatest number where the file
  // system does not say.
  virtual Result<int64_t> free_space(const Path& folder) = 0;

  // Clock and randomness.
  virtual Instant now() = 0;
  virtual WallTime wall_now() = 0;
  virtual void sleep_for(Duration duration) = 0;
  // Waits for the condition until `deadline`; may return earlier for no reason, so
  // callers loop over their predicate and now().
  virtual void wait_until(Condition& condition, Mutex& mutex, Instant deadline)
      HOLDFAST_REQUIRES(mutex) = 0;
  virtual uint64_t random64() = 0;

  // Made of the calls above.

  // sync_folder() as far as the file system can: one that does not sync folders is no
  // failure, for names there are as durable as they get.
  Result<void> sync_names(const Path& folder);
  // All bytes of a file, also of one that does not know its size; kInvalid if there are
  // more than `limit`.
  Result<Bytes> read_file(const Path& path, int64_t limit = kReadLimit);
  Result<std::string> read_text(const Path& path, int64_t limit = kReadLimit);
  // The file with these bytes, synced. In place: a crash meanwhile leaves any part of
  // them. The name is durable after sync_folder.
  Result<void> write_file(const Path& path, ByteView bytes);
  // Old contents or new ones, never a mixture, whatever happens; durable on return, as far
  // as sync_names() goes.
  // Writes a file of another name beside it, and tries to remove that if it fails.
  Result<void> replace_file(const Path& path, ByteView bytes);
  // The folder and those above it, as far as they are missing; their names are durable, as
  // far as sync_names() goes, also after a call that failed or was killed and is made again.
  Result<void> create_folders(const Path& path);
  // The file, or the folder with all in it; nothing to remove is success, also where
  // somebody else removes at the same time. Symbolic links are removed, not followed.
  Result<void> remove_all(const Path& path);

 private:
  Result<void> sync_name(const Path& folder);
  Result<void> remove_tree(const Path& path);
};

// The folder that holds the name: "." for a name without a folder.
Path folder_of(const Path& path);

}  // namespace holdfast
