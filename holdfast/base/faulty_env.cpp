#include "holdfast/base/faulty_env.h"

#include <algorithm>
#include <limits>

namespace holdfast {

std::string_view name_of(Op op) {
  switch (op) {
    case Op::kOpen: return "open";
    case Op::kRead: return "read";
    case Op::kWrite: return "write";
    case Op::kAllocate: return "allocate";
    case Op::kTruncate: return "truncate";
    case Op::kSync: return "sync";
    case Op::kClose: return "close";
    case Op::kInfo: return "info";
    case Op::kList: return "list";
    case Op::kRemove: return "remove";
    case Op::kRename: return "rename";
    case Op::kLink: return "link";
    case Op::kCreateFolder: return "create_folder";
    case Op::kSyncFolder: return "sync_folder";
    case Op::kFreeSpace: return "free_space";
    case Op::kAny: return "any";
  }
  HOLDFAST_CHECK(false, "op {}", static_cast<int>(op));
}

class FaultyEnv::OpenFile : public File {
 public:
  OpenFile(FaultyEnv& env, std::unique_ptr<File> inner, OpenOptions options)
      : File(inner->path(), options), env_(env), inner_(std::move(inner)) {}
  ~OpenFile() override { (void)drain(); }

  Result<int64_t> size() override {
    HOLDFAST_TRY(env_.enter(Op::kInfo, path()));
    return inner_->size();
  }

  Result<void> allocate(int64_t size) override {
    HOLDFAST_TRY(env_.enter(Op::kAllocate, path()));
    return inner_->allocate(size);
  }

  Result<void> truncate(int64_t size) override {
    HOLDFAST_TRY(env_.enter(Op::kTruncate, path()));
    return inner_->truncate(size);
  }

  Result<void> sync() override {
    const bool go_on = HOLDFAST_TRY(enter_sync());
    return go_on ? inner_->sync() : Result<void>();
  }

  Result<void> sync_data() override {
    const bool go_on = HOLDFAST_TRY(enter_sync());
    return go_on ? inner_->sync_data() : Result<void>();
  }

 protected:
  Result<size_t> read_some(int64_t offset, ByteSpan into) override {
    const size_t most = HOLDFAST_TRY(env_.enter(Op::kRead, path()));
    return inner_->read_at(offset, into.first(std::min(most, into.size())));
  }

  Result<size_t> write_some(int64_t offset, ByteView bytes) override {
    const size_t most = HOLDFAST_TRY(env_.enter(Op::kWrite, path()));
    const ByteView part = bytes.first(std::min(most, bytes.size()));
    HOLDFAST_TRY(inner_->write_at(offset, part));
    return part.size();
  }

  Result<size_t> append_some(ByteView bytes) override {
    const size_t most = HOLDFAST_TRY(env_.enter(Op::kWrite, path()));
    const ByteView part = bytes.first(std::min(most, bytes.size()));
    HOLDFAST_TRY(inner_->append(part));
    return part.size();
  }

  Result<void> close_handle() override {
    HOLDFAST_TRY(env_.enter(Op::kClose, path()));
    return inner_->close();
  }

 private:
  // Whether the sync shall be passed on.
  Result<bool> enter_sync() {
    const Result<size_t> entered = env_.enter(Op::kSync, path());
    MutexLock lock(mutex_);
    if (!entered.ok()) {
      sync_failed_ = true;
      return entered.error();
    }
    return !sync_failed_;
  }

  FaultyEnv& env_;
  const std::unique_ptr<File> inner_;
  Mutex mutex_;
  bool sync_failed_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

void FaultyEnv::add(Op op, int64_t k, Fault fault) {
  HOLDFAST_CHECK(k >= 1, "call {} from now", k);
  MutexLock lock(mutex_);
  fault.op = op;
  fault.at = counts_[static_cast<size_t>(op)] + k;
  faults_.push_back(fault);
}

void FaultyEnv::fail_at(Op op, int64_t k, ErrorCode code) {
  add(op, k, {.kind = Kind::kFail, .op = op, .at = 0, .code = code, .bytes = 0});
}

void FaultyEnv::shorten_at(Op op, int64_t k, size_t bytes) {
  HOLDFAST_CHECK(op == Op::kRead || (op == Op::kWrite && bytes > 0),
                 "{} shortened to {} bytes", name_of(op), bytes);
  add(op, k,
      {.kind = Kind::kShorten,
       .op = op,
       .at = 0,
       .code = ErrorCode::kIo,
       .bytes = bytes});
}

void FaultyEnv::crash_at(Op op, int64_t k) {
  add(op, k,
      {.kind = Kind::kCrash, .op = op, .at = 0, .code = ErrorCode::kIo, .bytes = 0});
}

bool FaultyEnv::crashed() const {
  MutexLock lock(mutex_);
  return crashed_;
}

int64_t FaultyEnv::calls(Op op) const {
  MutexLock lock(mutex_);
  return counts_[static_cast<size_t>(op)];
}

std::vector<Call> FaultyEnv::log() const {
  MutexLock lock(mutex_);
  return log_;
}

Result<size_t> FaultyEnv::enter(Op op, const Path& path) {
  MutexLock lock(mutex_);
  log_.push_back({op, path});
  ++counts_[static_cast<size_t>(op)];
  ++counts_[static_cast<size_t>(Op::kAny)];
  size_t most = std::numeric_limits<size_t>::max();
  for (const Fault& fault : faults_) {
    const bool now = (fault.op == op || fault.op == Op::kAny) &&
                     fault.at == counts_[static_cast<size_t>(fault.op)];
    if (!now) continue;
    if (fault.kind == Kind::kShorten) most = std::min(most, fault.bytes);
    if (fault.kind == Kind::kCrash) crashed_ = true;
    if (fault.kind == Kind::kFail && !crashed_) {
      return Error(fault.code, fmt::format("{}: {}: fault injected at call {}",
                                           path.native(), name_of(op), fault.at));
    }
  }
  if (crashed_) return io_error("{}: {}: crashed", path.native(), name_of(op));
  return most;
}

Result<std::unique_ptr<File>> FaultyEnv::open(const Path& path, OpenOptions options) {
  HOLDFAST_TRY(enter(Op::kOpen, path));
  auto file = HOLDFAST_TRY(inner_.open(path, options));
  return std::unique_ptr<File>(
      std::make_unique<OpenFile>(*this, std::move(file), options));
}

Result<FileInfo> FaultyEnv::info(const Path& path) {
  HOLDFAST_TRY(enter(Op::kInfo, path));
  return inner_.info(path);
}

Result<void> FaultyEnv::remove_file(const Path& path) {
  HOLDFAST_TRY(enter(Op::kRemove, path));
  return inner_.remove_file(path);
}

Result<void> FaultyEnv::rename(const Path& from, const Path& to) {
  HOLDFAST_TRY(enter(Op::kRename, from));
  return inner_.rename(from, to);
}

Result<void> FaultyEnv::rename_new(const Path& from, const Path& to) {
  HOLDFAST_TRY(enter(Op::kRename, from));
  return inner_.rename_new(from, to);
}

Result<void> FaultyEnv::link(const Path& from, const Path& to) {
  HOLDFAST_TRY(enter(Op::kLink, from));
  return inner_.link(from, to);
}

Result<void> FaultyEnv::create_folder(const Path& path) {
  HOLDFAST_TRY(enter(Op::kCreateFolder, path));
  return inner_.create_folder(path);
}

Result<void> FaultyEnv::remove_folder(const Path& path) {
  HOLDFAST_TRY(enter(Op::kRemove, path));
  return inner_.remove_folder(path);
}

Result<std::vector<std::string>> FaultyEnv::list(const Path& folder) {
  HOLDFAST_TRY(enter(Op::kList, folder));
  return inner_.list(folder);
}

Result<void> FaultyEnv::sync_folder(const Path& folder) {
  HOLDFAST_TRY(enter(Op::kSyncFolder, folder));
  return inner_.sync_folder(folder);
}

Result<int64_t> FaultyEnv::free_space(const Path& folder) {
  HOLDFAST_TRY(enter(Op::kFreeSpace, folder));
  return inner_.free_space(folder);
}

}  // namespace holdfast
