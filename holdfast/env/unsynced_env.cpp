#include "holdfast/env/unsynced_env.h"

namespace holdfast {
namespace {

// Passes everything on, except for syncs.
class UnsyncedFile : public File {
 public:
  UnsyncedFile(std::unique_ptr<File> inner, OpenOptions options)
      : File(inner->path(), options), inner_(std::move(inner)) {}
  ~UnsyncedFile() override { (void)drain(); }

  Result<int64_t> size() override { return inner_->size(); }
  Result<void> allocate(int64_t size) override { return inner_->allocate(size); }
  Result<void> truncate(int64_t size) override { return inner_->truncate(size); }
  Result<void> sync() override { return {}; }
  Result<void> sync_data() override { return {}; }

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

 private:
  const std::unique_ptr<File> inner_;
};

}  // namespace

Result<std::unique_ptr<File>> UnsyncedEnv::open(const Path& path, OpenOptions options) {
  return std::unique_ptr<File>(std::make_unique<UnsyncedFile>(
      HOLDFAST_TRY(inner_.open(path, options)), options));
}

Result<void> UnsyncedEnv::sync_folder(const Path& folder) {
  if (HOLDFAST_TRY(inner_.info(folder)).folder) return {};
  return invalid("{}: is a file; expected a folder", folder.native());
}

}  // namespace holdfast
