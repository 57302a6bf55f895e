#include "holdfast/env/memory_env.h"

#include <algorithm>
#include <cerrno>

#include "holdfast/base/checked.h"
#include "holdfast/env/errno_error.h"
#include "holdfast/env/memory_disk_internal.h"

namespace holdfast {
namespace {

using Node = MemoryDisk::Node;
using NodePtr = MemoryDisk::NodePtr;

// An entry of a folder, whether it exists or not.
struct Place {
  NodePtr folder;
  std::string name;
  NodePtr node;  // null if the entry does not exist
};

std::vector<std::string> parts_of(const Path& path) {
  std::vector<std::string> parts;
  for (const Path& part : path.lexically_normal()) {
    const std::string& name = part.native();
    if (!name.empty() && name != "/" && name != ".") parts.push_back(name);
  }
  return parts;
}

bool is_below(const Path& path, const Path& folder) {
  const auto inner = parts_of(path);
  const auto outer = parts_of(folder);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first ==
         outer.end();
}

// The error number that says why `source` may not replace `target`; 0 if it may.
int replacing_error(const Place& source, const Place& target) {
  if (!target.node) return 0;
  if (target.node->folder && !source.node->folder) return EISDIR;
  if (!target.node->folder && source.node->folder) return ENOTDIR;
  return target.node->entries.empty() ? 0 : ENOTEMPTY;
}

}  // namespace

struct MemoryEnv::State {
  Mutex mutex;
  std::unique_ptr<MemoryDisk> disk HOLDFAST_GUARDED_BY(mutex);
  int64_t capacity HOLDFAST_GUARDED_BY(mutex) = std::numeric_limits<int64_t>::max();
  Duration time HOLDFAST_GUARDED_BY(mutex) = std::chrono::seconds(1'000'000'000);
  Random64 random HOLDFAST_GUARDED_BY(mutex){0};

  // The place of a path. Its folder must exist. The root has no name and no folder.
  Result<Place> find(const Path& path, const char* what) HOLDFAST_REQUIRES(mutex) {
    Place place{.folder = nullptr, .name = "", .node = disk->root()};
    for (std::string& name : parts_of(path)) {
      if (!place.node) return errno_error(ENOENT, what, path);
      if (!place.node->folder) return errno_error(ENOTDIR, what, path);
      place.folder = place.node;
      const auto entry = place.folder->entries.find(name);
      place.node = entry == place.folder->entries.end() ? nullptr : entry->second;
      place.name = std::move(name);
    }
    return place;
  }

  Result<Place> find_existing(const Path& path, const char* what)
      HOLDFAST_REQUIRES(mutex) {
    Place place = HOLDFAST_TRY(find(path, what));
    if (!place.node) return errno_error(ENOENT, what, path);
    return place;
  }

  Result<NodePtr> find_folder(const Path& path, const char* what)
      HOLDFAST_REQUIRES(mutex) {
    const Place place = HOLDFAST_TRY(find_existing(path, what));
    if (!place.node->folder) return errno_error(ENOTDIR, what, path);
    return place.node;
  }

  void set(const Place& place, NodePtr node) HOLDFAST_REQUIRES(mutex) {
    disk->change_entries({{place.folder, place.name, std::move(node)}});
  }

  Result<NodePtr> open(const Path& path, OpenMode mode) HOLDFAST_REQUIRES(mutex);
  Result<void> move(const Path& from, const Path& to, bool replace)
      HOLDFAST_REQUIRES(mutex);
};

Result<NodePtr> MemoryEnv::State::open(const Path& path, OpenMode mode) {
  const Place place = HOLDFAST_TRY(find(path, "open"));
  if (!place.node) {
    if (mode == OpenMode::kRead || mode == OpenMode::kUpdate) {
      return errno_error(ENOENT, "open", path);
    }
    NodePtr file = disk->new_node(false);
    file->modified = time;
    set(place, file);
    return file;
  }
  if (mode == OpenMode::kCreate) return errno_error(EEXIST, "open", path);
  if (place.node->folder) return errno_error(EISDIR, "open", path);
  if (mode == OpenMode::kTruncate) disk->resize(*place.node, 0);
  return place.node;
}

Result<void> MemoryEnv::State::move(const Path& from, const Path& to, bool replace) {
  const Place source = HOLDFAST_TRY(find(from, "rename"));
  const Place target = HOLDFAST_TRY(find(to, "rename"));
  if (!source.node) return errno_error(ENOENT, "rename", from);
  if (target.node && !replace) return errno_error(EEXIST, "rename to new", to);
  if (!source.folder || !target.folder) return errno_error(EBUSY, "rename", from);
  // POSIX does nothing if both are names of one file.
  if (target.node == source.node) return {};
  if (is_below(to, from)) return errno_error(EINVAL, "rename into itself", from);
  if (is_below(from, to)) return errno_error(ENOTEMPTY, "rename to its folder", from);
  if (const int number = replacing_error(source, target)) {
    return errno_error(number, "rename", to);
  }
  disk->change_entries({{target.folder, target.name, source.node},
                        {source.folder, source.name, nullptr}});
  return {};
}

class MemoryEnv::OpenFile : public File {
 public:
  OpenFile(Path path, OpenOptions options, State& state, NodePtr node)
      : File(std::move(path), options), state_(state), node_(std::move(node)) {}
  ~OpenFile() override { (void)drain(); }

  Result<int64_t> size() override {
    MutexLock lock(state_.mutex);
    return static_cast<int64_t>(node_->content.size());
  }

  Result<WallTime> modified() override {
    MutexLock lock(state_.mutex);
    return WallTime(node_->modified);
  }

  Result<void> allocate(int64_t size) override {
    MutexLock lock(state_.mutex);
    if (size < 0) return errno_error(EINVAL, "allocate", path());
    HOLDFAST_TRY(check_room(size, "allocate"));
    if (size > length()) state_.disk->resize(*node_, size);
    return {};
  }

  Result<void> truncate(int64_t size) override {
    MutexLock lock(state_.mutex);
    if (size < 0) return errno_error(EINVAL, "truncate", path());
    HOLDFAST_TRY(check_room(size, "truncate"));
    state_.disk->resize(*node_, size);
    return {};
  }

  Result<void> sync() override {
    MutexLock lock(state_.mutex);
    state_.disk->sync_file(*node_);
    return {};
  }

  Result<void> sync_data() override { return sync(); }

 protected:
  Result<size_t> read_some(int64_t offset, ByteSpan into) override {
    MutexLock lock(state_.mutex);
    if (offset >= length()) return size_t{0};
    const auto rest = ByteView(node_->content).subspan(static_cast<size_t>(offset));
    const size_t count = std::min(rest.size(), into.size());
    std::copy_n(rest.begin(), count, into.begin());
    return count;
  }

  Result<size_t> write_some(int64_t offset, ByteView bytes) override {
    MutexLock lock(state_.mutex);
    return put(offset, bytes);
  }

  Result<size_t> append_some(ByteView bytes) override {
    MutexLock lock(state_.mutex);
    return put(length(), bytes);
  }

  Result<void> close_handle() override { return {}; }

 private:
  int64_t length() const { return static_cast<int64_t>(node_->content.size()); }

  Result<size_t> put(int64_t offset, ByteView bytes) HOLDFAST_REQUIRES(state_.mutex) {
    const auto end = checked_add(offset, static_cast<int64_t>(bytes.size()));
    if (!end) return errno_error(EFBIG, "write", path());
    HOLDFAST_TRY(check_room(*end, "write"));
    state_.disk->write(*node_, offset, bytes);
    node_->modified = state_.time;
    return bytes.size();
  }

  // Fails unless the disk has room for a file of this size.
  Result<void> check_room(int64_t size, const char* what) const
      HOLDFAST_REQUIRES(state_.mutex) {
    const int64_t more = size - length();
    if (more > 0 && more > state_.capacity - state_.disk->used()) {
      return errno_error(ENOSPC, what, path());
    }
    return {};
  }

  State& state_;
  const NodePtr node_;
};

MemoryEnv::MemoryEnv(uint64_t seed) : state_(std::make_unique<State>()) {
  MutexLock lock(state_->mutex);
  state_->disk = std::make_unique<MemoryDisk>();
  state_->random = Random64(seed);
}

MemoryEnv::MemoryEnv(std::unique_ptr<State> state) : state_(std::move(state)) {}
MemoryEnv::~MemoryEnv() = default;

std::unique_ptr<MemoryEnv> MemoryEnv::after_crash(CrashPolicy policy) const {
  auto after = std::make_unique<State>();
  MutexLock lock(state_->mutex);
  MutexLock lock_after(after->mutex);
  after->disk = state_->disk->after_crash(policy);
  after->capacity = state_->capacity;
  after->time = state_->time;
  after->random = state_->random;
  return std::unique_ptr<MemoryEnv>(new MemoryEnv(std::move(after)));
}

void MemoryEnv::set_capacity(int64_t bytes) {
  MutexLock lock(state_->mutex);
  state_->capacity = bytes;
}

void MemoryEnv::advance(Duration duration) {
  MutexLock lock(state_->mutex);
  state_->time += duration;
}

Result<std::unique_ptr<File>> MemoryEnv::open(const Path& path, OpenOptions options) {
  HOLDFAST_CHECK(!(options.direct && options.mode == OpenMode::kAppend),
                 "{}: direct append", path.native());
  MutexLock lock(state_->mutex);
  NodePtr node = HOLDFAST_TRY(state_->open(path, options.mode));
  return std::unique_ptr<File>(
      std::make_unique<OpenFile>(path, options, *state_, std::move(node)));
}

Result<FileInfo> MemoryEnv::info(const Path& path) {
  MutexLock lock(state_->mutex);
  const Place place = HOLDFAST_TRY(state_->find_existing(path, "info"));
  return FileInfo{.folder = place.node->folder,
                  .symlink = false,
                  .size = static_cast<int64_t>(place.node->content.size()),
                  .links = place.node->links,
                  .inode = place.node->id,
                  .device = 1,
                  .modified = WallTime(place.node->modified)};
}

Result<void> MemoryEnv::remove_file(const Path& path) {
  MutexLock lock(state_->mutex);
  const Place place = HOLDFAST_TRY(state_->find_existing(path, "remove"));
  if (place.node->folder) return errno_error(EISDIR, "remove", path);
  state_->set(place, nullptr);
  return {};
}

Result<void> MemoryEnv::rename(const Path& from, const Path& to) {
  MutexLock lock(state_->mutex);
  return state_->move(from, to, true);
}

Result<void> MemoryEnv::rename_new(const Path& from, const Path& to) {
  MutexLock lock(state_->mutex);
  return state_->move(from, to, false);
}

Result<void> MemoryEnv::link(const Path& from, const Path& to) {
  MutexLock lock(state_->mutex);
  const Place source = HOLDFAST_TRY(state_->find_existing(from, "link"));
  const Place target = HOLDFAST_TRY(state_->find(to, "link"));
  if (target.node) return errno_error(EEXIST, "link", to);
  if (source.node->folder) return errno_error(EOPNOTSUPP, "link", from);
  state_->set(target, source.node);
  return {};
}

Result<void> MemoryEnv::create_folder(const Path& path) {
  MutexLock lock(state_->mutex);
  const Place place = HOLDFAST_TRY(state_->find(path, "create folder"));
  if (place.node) return errno_error(EEXIST, "create folder", path);
  state_->set(place, state_->disk->new_node(true));
  return {};
}

Result<void> MemoryEnv::remove_folder(const Path& path) {
  MutexLock lock(state_->mutex);
  const Place place = HOLDFAST_TRY(state_->find_existing(path, "remove folder"));
  if (!place.node->folder) return errno_error(ENOTDIR, "remove folder", path);
  if (!place.folder) return errno_error(EBUSY, "remove folder", path);
  if (!place.node->entries.empty())
    return errno_error(ENOTEMPTY, "remove folder", path);
  state_->set(place, nullptr);
  return {};
}

Result<std::vector<std::string>> MemoryEnv::list(const Path& folder) {
  MutexLock lock(state_->mutex);
  const NodePtr node = HOLDFAST_TRY(state_->find_folder(folder, "list"));
  std::vector<std::string> names;
  for (const auto& [name, entry] : node->entries) names.push_back(name);
  return names;
}

Result<void> MemoryEnv::sync_folder(const Path& folder) {
  MutexLock lock(state_->mutex);
  const NodePtr node = HOLDFAST_TRY(state_->find_folder(folder, "sync folder"));
  state_->disk->sync_folder(*node);
  return {};
}

Result<int64_t> MemoryEnv::free_space(const Path& folder) {
  MutexLock lock(state_->mutex);
  HOLDFAST_TRY(state_->find_folder(folder, "free space"));
  return std::max<int64_t>(0, state_->capacity - state_->disk->used());
}

Instant MemoryEnv::now() {
  MutexLock lock(state_->mutex);
  return Instant(state_->time);
}

WallTime MemoryEnv::wall_now() {
  MutexLock lock(state_->mutex);
  return WallTime(state_->time);
}

void MemoryEnv::sleep_for(Duration duration) { advance(duration); }

void MemoryEnv::wait_until(Condition& condition, Mutex& mutex, Instant deadline) {
  // A test may move the clock without notifying the condition, so the caller looks
  // again soon.
  if (now() < deadline) condition.wait_for(mutex, std::chrono::milliseconds(1));
}

uint64_t MemoryEnv::random64() {
  MutexLock lock(state_->mutex);
  return state_->random.next();
}

}  // namespace holdfast
