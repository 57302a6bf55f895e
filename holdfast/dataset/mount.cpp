#define FUSE_USE_VERSION 31
#ifndef _FILE_OFFSET_BITS
#define _FILE_OFFSET_BITS 64  // libfuse asks for it on all machines
#endif

#include "holdfast/dataset/mount.h"

#include <fcntl.h>
#include <fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "holdfast/dataset/opened_file.h"
#include "holdfast/env/child.h"
#include "holdfast/env/errno_error.h"

namespace holdfast {
namespace {

// What the callbacks of libfuse get.
struct Mounted {
  const MountTree& tree;
  const MountOptions& options;
  time_t since = 0;
  Mutex mutex{};  // of options.report
};

Mounted& mounted() { return *static_cast<Mounted*>(fuse_get_context()->private_data); }

// The number for libfuse. What is no plain "no such file" is reported in words, because
// the reader only learns the number.
int failed(const Error& error) {
  if (error.code() == ErrorCode::kNotFound && error.message().ends_with("no such file")) {
    return -ENOENT;
  }
  Mounted& self = mounted();
  const MutexLock lock(self.mutex);
  if (self.options.report) self.options.report(error.message());
  return error.code() == ErrorCode::kNotFound ? -ENOENT : -EIO;
}

void fill(MountEntryKind kind, struct stat& into) {
  into = {};
  into.st_nlink = 1;
  into.st_blksize = 128 << 10;  // programs read so much at once, and lose little by a jump
  into.st_uid = ::getuid();
  into.st_gid = ::getgid();
  into.st_mtime = into.st_ctime = into.st_atime = mounted().since;
  switch (kind) {
    case MountEntryKind::kFolder: into.st_mode = S_IFDIR | 0555; break;
    case MountEntryKind::kLink: into.st_mode = S_IFLNK | 0777; break;
    case MountEntryKind::kFile: into.st_mode = S_IFREG | 0444; break;
  }
}

void* on_init(fuse_conn_info* connection, fuse_config* config) {
  // The files of a path never change, so the system may keep their names and bytes. A
  // link is not kept: its target is asked for each time.
  config->kernel_cache = 1;
  config->entry_timeout = 3600;
  config->attr_timeout = 3600;
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_READDIRPLUS);  // would ask for sizes
  connection->want |= connection->capable & FUSE_CAP_SPLICE_WRITE;  // for Pipe
  connection->max_read = static_cast<unsigned>(Pipe::most());
  return fuse_get_context()->private_data;
}

OpenedFile& opened(const fuse_file_info* info) {
  return *reinterpret_cast<OpenedFile*>(info->fh);
}

int on_getattr(const char* path, struct stat* into, fuse_file_info* info) {
  const auto has_size = [&](int64_t size) {
    fill(MountEntryKind::kFile, *into);
    into->st_size = size;
    return 0;
  };
  if (info != nullptr && info->fh != 0) return has_size(opened(info).size());
  const auto kind = mounted().tree.find(path);
  if (!kind.ok()) return failed(kind.error());
  fill(*kind, *into);
  if (*kind != MountEntryKind::kFile) return 0;
  const auto file = mounted().tree.open(path);
  return file.ok() ? has_size((*file)->size()) : failed(file.error());
}

int on_readlink(const char* path, char* into, size_t size) {
  const auto target = mounted().tree.target_of(path);
  if (!target.ok()) return failed(target.error());
  const size_t count = target->copy(into, size - 1);
  into[count] = '\0';
  return 0;
}

int on_readdir(const char* path, void* into, fuse_fill_dir_t add, off_t, fuse_file_info*,
               fuse_readdir_flags) {
  const auto entries = mounted().tree.list(path);
  if (!entries.ok()) return failed(entries.error());
  for (const char* name : {".", ".."}) add(into, name, nullptr, 0, fuse_fill_dir_flags{});
  for (const MountEntry& entry : *entries) {
    struct stat kind {};
    fill(entry.kind, kind);
    add(into, entry.name.c_str(), &kind, 0, fuse_fill_dir_flags{});
  }
  return 0;
}

int on_open(const char* path, fuse_file_info* info) {
  if ((info->flags & O_ACCMODE) != O_RDONLY) return -EROFS;
  auto file = mounted().tree.open(path);
  if (!file.ok()) return failed(file.error());
  const auto opened = new OpenedFile(mounted().tree, std::move(file).value());
  info->fh = reinterpret_cast<uint64_t>(opened);
  info->direct_io = !opened->is_kept();
  return 0;
}

// A reply of so many bytes. libfuse frees it with free(), and its memory.
fuse_bufvec* new_reply(size_t size) {
  auto* const reply = static_cast<fuse_bufvec*>(std::calloc(1, sizeof(fuse_bufvec)));
  if (reply == nullptr) return nullptr;
  reply->count = 1;
  reply->buf[0].size = size;
  return reply;
}

int on_read(const char*, fuse_bufvec** into, size_t size, off_t offset, fuse_file_info* info) {
  static thread_local Pipe pipe;  // this thread sends the reply before it takes another call
  OpenedFile& file = opened(info);
  const auto count = file.count_at(offset, size);
  if (!count.ok()) return failed(count.error());
  *into = new_reply(*count);
  if (*into == nullptr) return -ENOMEM;
  fuse_buf& reply = (*into)->buf[0];
  if (file.fill(pipe, offset, *count)) {
    reply.flags = static_cast<fuse_buf_flags>(FUSE_BUF_IS_FD | FUSE_BUF_FD_RETRY);
    reply.fd = pipe.out();
    return 0;
  }
  reply.mem = std::malloc(std::max<size_t>(*count, 1));
  if (reply.mem == nullptr) return -ENOMEM;
  const auto done = file.read(offset, {static_cast<std::byte*>(reply.mem), *count});
  return done.ok() ? 0 : failed(done.error());
}

int on_release(const char*, fuse_file_info* info) {
  delete &opened(info);
  return 0;
}

// The sentence that libfuse logged last. libfuse takes a function without context.
std::string& logged() {
  static std::string text;
  return text;
}

void keep_log(fuse_log_level, const char* format, va_list arguments) {
  char line[512];
  std::vsnprintf(line, sizeof line, format, arguments);
  logged() = line;
  while (logged().ends_with('\n')) logged().pop_back();
}

fuse_operations operations() {
  fuse_operations made{};
  made.init = on_init;
  made.getattr = on_getattr;
  made.readlink = on_readlink;
  made.readdir = on_readdir;
  made.open = on_open;
  made.read_buf = on_read;
  made.release = on_release;
  return made;
}

struct DestroyFuse {
  void operator()(fuse* mount) const { fuse_destroy(mount); }
};
using Fuse = std::unique_ptr<fuse, DestroyFuse>;

Error cannot_mount(const MountOptions& options) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) {
    return unsupported("{}: /dev/fuse cannot be opened ({}); expected a machine, or a "
                       "container, with FUSE",
                       options.at.native(), std::strerror(errno));
  }
  return io_error("{}: cannot be mounted: {}", options.at.native(), logged());
}

Result<void> serve(fuse& mount, const MountOptions& options) {
  fuse_session* const session = fuse_get_session(&mount);
  if (fuse_set_signal_handlers(session) != 0) {
    return io_error("{}: {}", options.at.native(), logged());
  }
  if (options.ready) options.ready();
  const int ended = fuse_loop_mt(&mount, 0);
  fuse_remove_signal_handlers(session);
  if (ended >= 0) return {};  // unmounted, or a signal
  return errno_error(-ended, "mount", options.at);
}

}  // namespace

Result<void> mount_tree(const MountTree& tree, const MountOptions& options) {
  fuse_set_log_func(keep_log);
  Mounted self{.tree = tree, .options = options, .since = std::time(nullptr)};
  std::string name = "holdfast";
  std::string option = fmt::format("-oro,fsname=holdfast,subtype=holdfast,max_read={}", Pipe::most());
  char* words[] = {name.data(), option.data(), nullptr};
  fuse_args arguments{.argc = 2, .argv = words, .allocated = 0};
  const fuse_operations calls = operations();
  const Fuse mount(fuse_new(&arguments, &calls, sizeof calls, &self));
  fuse_opt_free_args(&arguments);
  if (mount == nullptr) return cannot_mount(options);
  if (fuse_mount(mount.get(), options.at.c_str()) != 0) return cannot_mount(options);
  const auto served = serve(*mount, options);
  fuse_unmount(mount.get());
  return served;
}

Result<bool> remove_dead_mount(const Path& at) {
  struct stat info {};
  if (::stat(at.c_str(), &info) == 0 || errno != ENOTCONN) return false;
  if (::umount2(at.c_str(), MNT_DETACH) == 0) return true;
  auto unmount = HOLDFAST_TRY(Child::start({.command = {"fusermount3", "-uz", at.native()}}));
  const auto end = unmount.wait(std::chrono::seconds(10));
  if (end && end->succeeded()) return true;
  return io_error("{}: a mount whose program is gone lies there; expected that `fusermount3 "
                  "-uz` removes it",
                  at.native());
}

}  // namespace holdfast
