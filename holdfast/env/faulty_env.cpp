#include "holdfast/env/faulty_env.h"

#include <algorithm>

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

FaultyEnv::Plan FaultyEnv::enter(Op op, const Path& path) {
  Plan plan;
  {
    MutexLock lock(mutex_);
    log_.push_back({op, path});
    ++counts_[static_cast<size_t>(op)];
    ++counts_[static_cast<size_t>(Op::kAny)];
    for (const Fault& fault : faults_) {
      if (fault.op != op && fault.op != Op::kAny) continue;
      const int64_t count = counts_[static_cast<size_t>(fault.op)];
      const bool persists = fault.kind == Kind::kFailFrom && count > fault.at;
      if (count != fault.at && !persists) continue;
      if (fault.kind == Kind::kCrash) crashed_ = true;
      apply(fault,
            Error(fault.code, fmt::format("{}: {}: fault injected at call {}",
                                          path.native(), name_of(op), count)),
            plan);
    }
    for (BadFile& bad : bad_files_) {
      if (bad.op != op || bad.path != path || bad.times == 0) continue;
      --bad.times;
      plan.instead = Error(
          bad.code, fmt::format("{}: {}: fault injected", path.native(), name_of(op)));
    }
    if (crashed_)
      plan.instead = io_error("{}: {}: crashed", path.native(), name_of(op));
  }
  // The functions run outside the lock because they may use this Env.
  for (const auto& function : plan.functions) function();
  return plan;
}

void FaultyEnv::apply(const Fault& fault, Error error, Plan& plan) {
  switch (fault.kind) {
    case Kind::kFail:
    case Kind::kFailFrom:
      if (!plan.instead) plan.instead = std::move(error);
      return;
    case Kind::kFailAfter: plan.after = std::move(error); return;
    case Kind::kShorten: plan.most = std::min(plan.most, fault.bytes); return;
    case Kind::kHook: plan.functions.push_back(fault.function); return;
    case Kind::kCrash: return;
  }
}

template <typename Function>
auto FaultyEnv::run(Op op, const Path& path, Function call)
    -> decltype(call(size_t{})) {
  Plan plan = enter(op, path);
  if (plan.instead) return *std::move(plan.instead);
  auto result = call(plan.most);
  if (plan.after) return *std::move(plan.after);
  return result;
}

template <typename Function>
Result<void> FaultyEnv::run_sync(Op op, const Path& path, Identity identity,
                                 Function call) {
  Result<void> synced = run(op, path, [&](size_t) -> Result<void> {
    {
      MutexLock lock(mutex_);
      if (failed_syncs_.contains(identity)) return {};
    }
    return call();
  });
  MutexLock lock(mutex_);
  if (!synced.ok()) failed_syncs_.insert(identity);
  return synced;
}

FaultyEnv::Identity FaultyEnv::identity_of(const Path& path) {
  const Result<FileInfo> info = inner_.info(path);
  return info.ok() ? Identity(info->device, info->inode) : Identity();
}

void FaultyEnv::forget_failed_sync(Identity identity) {
  MutexLock lock(mutex_);
  failed_syncs_.erase(identity);
}

class FaultyEnv::OpenFile : public File {
 public:
  OpenFile(FaultyEnv& env, std::unique_ptr<File> inner, OpenOptions options)
      : File(inner->path(), options),
        env_(env),
        inner_(std::move(inner)),
        identity_(env.identity_of(path())) {
    if (mode() == OpenMode::kCreate) env_.forget_failed_sync(identity_);
  }
  ~OpenFile() override { (void)drain(); }

  Result<int64_t> size() override {
    return env_.run(Op::kInfo, path(), [&](size_t) { return inner_->size(); });
  }

  Result<WallTime> modified() override {
    return env_.run(Op::kInfo, path(), [&](size_t) { return inner_->modified(); });
  }

  Result<void> allocate(int64_t size) override {
    return env_.run(Op::kAllocate, path(),
                    [&](size_t) { return inner_->allocate(size); });
  }

  Result<void> truncate(int64_t size) override {
    return env_.run(Op::kTruncate, path(),
                    [&](size_t) { return inner_->truncate(size); });
  }

  Result<void> sync() override {
    return env_.run_sync(Op::kSync, path(), identity_, [&] { return inner_->sync(); });
  }

  Result<void> sync_data() override {
    return env_.run_sync(Op::kSync, path(), identity_,
                         [&] { return inner_->sync_data(); });
  }

 protected:
  Result<size_t> read_some(int64_t offset, ByteSpan into) override {
    return env_.run(Op::kRead, path(), [&](size_t most) {
      return env_.count_bytes(
          Op::kRead, inner_->read_at(offset, into.first(std::min(most, into.size()))));
    });
  }

  Result<size_t> write_some(int64_t offset, ByteView bytes) override {
    return env_.run(Op::kWrite, path(), [&](size_t most) -> Result<size_t> {
      const ByteView part = bytes.first(std::min(most, bytes.size()));
      HOLDFAST_TRY(inner_->write_at(offset, part));
      return env_.count_bytes(Op::kWrite, part.size());
    });
  }

  Result<size_t> append_some(ByteView bytes) override {
    return env_.run(Op::kWrite, path(), [&](size_t most) -> Result<size_t> {
      const ByteView part = bytes.first(std::min(most, bytes.size()));
      HOLDFAST_TRY(inner_->append(part));
      return env_.count_bytes(Op::kWrite, part.size());
    });
  }

  Result<void> close_handle() override {
    return env_.run(Op::kClose, path(), [&](size_t) { return inner_->close(); });
  }

 private:
  FaultyEnv& env_;
  const std::unique_ptr<File> inner_;
  const Identity identity_;
};

Result<size_t> FaultyEnv::count_bytes(Op op, Result<size_t> moved) {
  MutexLock lock(mutex_);
  if (moved.ok()) bytes_[static_cast<size_t>(op)] += static_cast<int64_t>(*moved);
  return moved;
}

int64_t FaultyEnv::bytes(Op op) const {
  MutexLock lock(mutex_);
  return bytes_[static_cast<size_t>(op)];
}

void FaultyEnv::add(int64_t k, Fault fault) {
  HOLDFAST_CHECK(k >= 1, "call {} from now", k);
  MutexLock lock(mutex_);
  fault.at = counts_[static_cast<size_t>(fault.op)] + k;
  faults_.push_back(std::move(fault));
}

void FaultyEnv::fail_at(Op op, int64_t k, ErrorCode code) {
  add(k, {.kind = Kind::kFail, .op = op, .code = code});
}

void FaultyEnv::fail_from(Op op, int64_t k, ErrorCode code) {
  add(k, {.kind = Kind::kFailFrom, .op = op, .code = code});
}

void FaultyEnv::fail_file(Op op, Path path, ErrorCode code, int64_t times) {
  MutexLock lock(mutex_);
  bad_files_.push_back({op, std::move(path), code, times});
}

void FaultyEnv::fail_after(Op op, int64_t k, ErrorCode code) {
  add(k, {.kind = Kind::kFailAfter, .op = op, .code = code});
}

void FaultyEnv::shorten_at(Op op, int64_t k, size_t bytes) {
  HOLDFAST_CHECK(op == Op::kRead || (op == Op::kWrite && bytes > 0),
                 "{} shortened to {} bytes", name_of(op), bytes);
  add(k, {.kind = Kind::kShorten, .op = op, .bytes = bytes});
}

void FaultyEnv::crash_at(Op op, int64_t k) { add(k, {.kind = Kind::kCrash, .op = op}); }

void FaultyEnv::before(Op op, int64_t k, std::function<void()> function) {
  add(k, {.kind = Kind::kHook, .op = op, .function = std::move(function)});
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

Result<std::unique_ptr<File>> FaultyEnv::open(const Path& path, OpenOptions options) {
  return run(Op::kOpen, path, [&](size_t) -> Result<std::unique_ptr<File>> {
    auto file = HOLDFAST_TRY(inner_.open(path, options));
    return std::unique_ptr<File>(
        std::make_unique<OpenFile>(*this, std::move(file), options));
  });
}

Result<FileInfo> FaultyEnv::info(const Path& path) {
  return run(Op::kInfo, path, [&](size_t) { return inner_.info(path); });
}

Result<void> FaultyEnv::remove_file(const Path& path) {
  return run(Op::kRemove, path, [&](size_t) { return inner_.remove_file(path); });
}

Result<void> FaultyEnv::rename(const Path& from, const Path& to) {
  return run(Op::kRename, from, [&](size_t) { return inner_.rename(from, to); });
}

Result<void> FaultyEnv::rename_new(const Path& from, const Path& to) {
  return run(Op::kRename, from, [&](size_t) { return inner_.rename_new(from, to); });
}

Result<void> FaultyEnv::link(const Path& from, const Path& to) {
  return run(Op::kLink, from, [&](size_t) { return inner_.link(from, to); });
}

Result<void> FaultyEnv::create_folder(const Path& path) {
  return run(Op::kCreateFolder, path, [&](size_t) -> Result<void> {
    HOLDFAST_TRY(inner_.create_folder(path));
    forget_failed_sync(identity_of(path));
    return {};
  });
}

Result<void> FaultyEnv::remove_folder(const Path& path) {
  return run(Op::kRemove, path, [&](size_t) { return inner_.remove_folder(path); });
}

Result<std::vector<std::string>> FaultyEnv::list(const Path& folder) {
  return run(Op::kList, folder, [&](size_t) { return inner_.list(folder); });
}

Result<void> FaultyEnv::sync_folder(const Path& folder) {
  return run_sync(Op::kSyncFolder, folder, identity_of(folder),
                  [&] { return inner_.sync_folder(folder); });
}

Result<int64_t> FaultyEnv::free_space(const Path& folder) {
  return run(Op::kFreeSpace, folder, [&](size_t) { return inner_.free_space(folder); });
}

}  // namespace holdfast
