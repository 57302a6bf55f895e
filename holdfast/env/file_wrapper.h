// A File that passes every call on to another File. Classes that change some calls derive
// from it and override just those.
#pragma once

#include <memory>
#include <utility>

#include "holdfast/env/file.h"

namespace holdfast {

// A class that overrides a transfer calls drain() in its destructor, as every File does:
// transfers that nobody waited for run there.
class FileWrapper : public File {
 public:
  explicit FileWrapper(std::unique_ptr<File> inner)
      : File(inner->path(), {.mode = inner->mode(), .direct = inner->direct()}),
        inner_(std::move(inner)) {}
  ~FileWrapper() override { (void)drain(); }

  Result<int64_t> size() override { return inner_->size(); }
  Result<WallTime> modified() override { return inner_->modified(); }
  Result<void> allocate(int64_t size) override { return inner_->allocate(size); }
  Result<void> truncate(int64_t size) override { return inner_->truncate(size); }
  Result<void> sync() override { return inner_->sync(); }
  Result<void> sync_data() override { return inner_->sync_data(); }
  Result<bool> try_lock(LockKind kind) override { return inner_->try_lock(kind); }

 protected:
  Result<size_t> read_some(int64_t offset, ByteSpan into) override {
    return inner_->read_at(offset, into);
  }
  Result<size_t> write_some(int64_t offset, ByteView bytes) override {
    HOLDFAST_TRY(inner_->write_at(offset, bytes));
    return bytes.size();
  }
  Result<size_t> append_some(ByteView bytes) override {
    HOLDFAST_TRY(inner_->append(bytes));
    return bytes.size();
  }
  Result<void> close_handle() override { return inner_->close(); }

  const std::unique_ptr<File> inner_;
};

}  // namespace holdfast
