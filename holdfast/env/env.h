// Env: the only way to files, the clock and random numbers. Nothing else opens a file
// or asks the time, so that a test can make any call fail, lose what was not synced,
// and control the clock.
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
// is taken, the folder is not empty), kNoSpace, kUnsupported (this file system cannot
// do it), kInvalid (a file where a folder is expected, or the other way round),
// kUnavailable (too many open files, no memory, busy, a stale handle), kDenied
// (permissions), kIo (all others, such as a broken disk).
//
// All calls are safe from several threads at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/result.h"

namespace holdfast {

class Condition;
class File;
class Mutex;
struct OpenOptions;

using Path = std::filesystem::path;

using Duration = std::chrono::nanoseconds;
// A time that never goes back, for deadlines and measuring. Meaningless outside this
// process.
using Instant = std::chrono::time_point<std::chrono::steady_clock, Duration>;
// The time since 1970 UTC, for people and for comparing machines. May jump.
using WallTime = std::chrono::sys_time<Duration>;

inline constexpr Instant kNoDeadline = Instant::max();

// What Env::info() says about a name. For a symbolic link it describes the link's
// target; for a link that leads nowhere, only `symlink` is set.
struct FileInfo {
  bool folder = false;
  bool symlink = false;
  int64_t size = 0;    // bytes; 0 for a folder
  int64_t links = 0;   // how many names the file has
  uint64_t inode = 0;  // equal exactly for the names of one file on one device
  uint64_t device = 0;
  WallTime modified{};  // when its contents last changed; 1970 where that is not known
};

// The most bytes that are read into memory at once unless the caller says otherwise.
inline constexpr int64_t kReadLimit = int64_t{1} << 30;

class Env {
 public:
  virtual ~Env() = default;
  Env() = default;
  Env(const Env&) = delete;
  Env& operator=(const Env&) = delete;

  // Files (file.h). Opening what is no regular file (a folder, a pipe, a device) is
  // kInvalid.
  virtual Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) = 0;
  virtual Result<FileInfo> info(const Path& path) = 0;
  virtual Result<void> remove_file(const Path& path) = 0;
  // A file replaces a file that has the name `to`; both names may belong to one file. A
  // folder replaces an empty folder, and is kConflict if that is not empty. kInvalid
  // for moving a folder into itself, and where one is a file and the other a folder.
  virtual Result<void> rename(const Path& from, const Path& to) = 0;
  // Renames a file or folder and replaces nothing: kConflict if `to` exists, kInvalid
  // for moving a folder into itself. Where the file system cannot do that in one step,
  // a crash may leave a file with both names, and a folder may replace an empty folder
  // that somebody creates at the same moment, but never one that is not empty. Where
  // the file system has no hard links either, `to` is an empty file for a moment, and a
  // crash may leave that empty file.
  virtual Result<void> rename_new(const Path& from, const Path& to) = 0;
  // Gives a file another name. kConflict if `to` exists; kUnsupported where the file
  // system has no hard links, or the two paths are on different file systems.
  virtual Result<void> link(const Path& from, const Path& to) = 0;

  // Creates a file to write, in the folder but without a name. Nobody else sees it, and
  // nothing of it is left if the process ends or is killed. kUnsupported where the file
  // system, or this Env, has no such files.
  virtual Result<std::unique_ptr<File>> create_unnamed(const Path& folder);
  // Gives a file from create_unnamed(), which must still be open, a name in its folder.
  // Replaces nothing: kConflict if `to` exists; kUnsupported where the file system has no
  // hard links. The name is durable after sync_folder.
  virtual Result<void> name_file(File& file, const Path& to);

  // Folders.
  virtual Result<void> create_folder(const Path& path) = 0;
  // kConflict unless the folder is empty.
  virtual Result<void> remove_folder(const Path& path) = 0;
  // Names in the folder, sorted bytewise, without "." and "..".
  virtual Result<std::vector<std::string>> list(const Path& folder) = 0;
  // Makes the names in the folder durable. kUnsupported where the file system does not
  // sync folders, or where the process may not read the folder.
  virtual Result<void> sync_folder(const Path& folder) = 0;
  // How many bytes an ordinary user can still write there; the greatest int64_t where
  // the file system does not say.
  virtual Result<int64_t> free_space(const Path& folder) = 0;

  // Clock and randomness.
  virtual Instant now() = 0;
  virtual WallTime wall_now() = 0;
  virtual void sleep_for(Duration duration) = 0;
  // Waits for the condition until `deadline`. The caller holds the mutex. The call may
  // return earlier for no reason, so callers check their own condition and now() in a
  // loop.
  virtual void wait_until(Condition& condition, Mutex& mutex, Instant deadline) = 0;
  virtual uint64_t random64() = 0;

  // The functions below are made of the calls above.

  // sync_folder(), but a file system that does not sync folders is no failure: names on
  // it cannot be made more durable.
  Result<void> sync_names(const Path& folder);
  // All bytes of a file, also of one that does not report its size, as in /proc.
  // kInvalid if there are more than `limit`.
  Result<Bytes> read_file(const Path& path, int64_t limit = kReadLimit);
  Result<std::string> read_text(const Path& path, int64_t limit = kReadLimit);
  // Writes the bytes to the file and syncs it. The file is written in place, so a crash
  // meanwhile may leave any part of the bytes. The name is durable after sync_folder.
  Result<void> write_file(const Path& path, ByteView bytes);
  // Replaces the contents of a file. A crash leaves the old contents or the new ones,
  // never a mixture. On return the new contents are durable, as far as sync_names() can
  // make them so. It writes a temporary file beside the old one and renames it; on
  // failure it tries to remove the temporary file.
  Result<void> replace_file(const Path& path, ByteView bytes);
  // Creates the folder and those above it, as far as they are missing. On return their
  // names are durable, as far as sync_names() can make them so, also if an earlier call
  // failed or was killed on the way.
  Result<void> create_folders(const Path& path);
  // Removes the file, or the folder with all that is in it. It succeeds if there is
  // nothing to remove, also if somebody else removes it at the same time. Symbolic
  // links are removed, not followed.
  Result<void> remove_all(const Path& path);

 private:
  Result<void> sync_name(const Path& folder);
  Result<void> remove_tree(const Path& path);
};

// The folder that the path's last name is in; "." for a name without a folder.
Path folder_of(const Path& path);

}  // namespace holdfast
