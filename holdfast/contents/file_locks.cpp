#include "holdfast/contents/file_locks.h"

#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <sstream>

namespace holdfast {
namespace {

// The process that a line of /proc/locks names, if the line is a lock of this file:
// "1: FLOCK  ADVISORY  WRITE 4711 fe:00:131074 0 EOF". On some file systems the device
// there is not the one that the file reports. So a line with the same inode on another
// device counts, too, unless there is one on the same device.
struct LockLine {
  int64_t pid = 0;
  bool same_device = false;
};

std::optional<LockLine> parse_lock(const std::string& line, const FileInfo& info) {
  std::istringstream words(line);
  std::string number, kind, advisory, mode, where;
  LockLine lock;
  // A waiting process has "->" behind the number, which puts the kind out of its place.
  words >> number >> kind >> advisory >> mode >> lock.pid >> where;
  if (!words || kind != "FLOCK" || lock.pid <= 0) return std::nullopt;
  const size_t colon = where.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  if (where.substr(colon + 1) != std::to_string(info.inode)) return std::nullopt;
  const auto device = static_cast<dev_t>(info.device);
  lock.same_device = where.substr(0, colon) ==
                     fmt::format("{:02x}:{:02x}", major(device), minor(device));
  return lock;
}

std::string describe_process(Env& env, int64_t pid) {
  if (pid == ::getpid()) return "this process";
  Result<std::string> name = env.read_text(fmt::format("/proc/{}/comm", pid));
  if (!name.ok()) return fmt::format("process {}", pid);
  std::erase(*name, '\n');
  return fmt::format("process {} ({})", pid, *name);
}

// Opens a file to lock it. An exclusive lock on NFS needs a file that is open to write.
Result<std::unique_ptr<File>> open_to_lock(Env& env, const Path& file, LockKind kind) {
  if (kind == LockKind::kShared) return env.open(file, {.mode = OpenMode::kRead});
  auto opened = env.open(file, {.mode = OpenMode::kUpdate});
  const bool read_only = !opened.ok() && (opened.error().code() == ErrorCode::kDenied ||
                                          opened.error().code() == ErrorCode::kIo);
  return read_only ? env.open(file, {.mode = OpenMode::kRead}) : std::move(opened);
}

}  // namespace

Result<void> FileLocks::add(Env& env, const Path& file, LockKind kind) {
  const FileInfo info = HOLDFAST_TRY(env.info(file));
  const bool has = std::ranges::any_of(locked_, [&](const Locked& one) {
    return one.device == info.device && one.inode == info.inode;
  });
  if (has) return {};
  auto opened = HOLDFAST_TRY(open_to_lock(env, file, kind));
  const Result<bool> taken = opened->try_lock(kind);
  if (!taken.ok() && taken.error().code() != ErrorCode::kUnsupported) {
    return taken.error();
  }
  if (taken.ok() && !*taken) {
    return conflict(
        "{}: {} changes or reads it at this moment; expected nobody else, so try again "
        "when that has ended",
        file.native(), who_locks(env, file).value_or("another process"));
  }
  locked_.push_back(
      {info.device, info.inode, taken.ok() ? std::move(opened) : nullptr});
  return {};
}

std::optional<std::string> who_locks(Env& env, const Path& file) {
  const Result<FileInfo> info = env.info(file);
  const Result<std::string> locks = env.read_text("/proc/locks");
  if (!info.ok() || !locks.ok()) return std::nullopt;
  std::optional<LockLine> best;
  std::istringstream lines(*locks);
  for (std::string line; std::getline(lines, line);) {
    const auto lock = parse_lock(line, *info);
    if (lock && (!best || lock->same_device)) best = lock;
  }
  if (!best) return std::nullopt;
  return describe_process(env, best->pid);
}

}  // namespace holdfast
