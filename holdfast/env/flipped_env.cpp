#include "holdfast/env/flipped_env.h"

namespace holdfast {

// A file opened to read.
class FlippedEnv::OpenFile : public File {
 public:
  OpenFile(FlippedEnv& env, OpenOptions options, std::unique_ptr<File> inner)
      : File(inner->path(), options), env_(env), inner_(std::move(inner)) {}
  ~OpenFile() override { static_cast<void>(drain()); }

  Result<int64_t> size() override { return inner_->size(); }
  Result<void> allocate(int64_t) override { return refuse(); }
  Result<void> truncate(int64_t) override { return refuse(); }
  Result<void> sync() override { return inner_->sync(); }
  Result<void> sync_data() override { return inner_->sync_data(); }

 protected:
  Result<size_t> read_some(int64_t offset, ByteSpan into) override {
    const size_t count = HOLDFAST_TRY(inner_->read_at(offset, into));
    const int64_t at = env_.byte_.offset - offset;
    if (at >= 0 && at < static_cast<int64_t>(count) && env_.left_.fetch_sub(1) > 0) {
      into[static_cast<size_t>(at)] ^= env_.byte_.mask;
    }
    return count;
  }
  Result<size_t> write_some(int64_t, ByteView) override { return refuse(); }
  Result<size_t> append_some(ByteView) override { return refuse(); }
  Result<void> close_handle() override { return inner_->close(); }

 private:
  Error refuse() const { return invalid("{}: opened to read only", path().native()); }

  FlippedEnv& env_;
  const std::unique_ptr<File> inner_;
};

Result<std::unique_ptr<File>> FlippedEnv::open(const Path& path, OpenOptions options) {
  auto file = HOLDFAST_TRY(inner_.open(path, options));
  if (options.mode != OpenMode::kRead || path != byte_.path) return file;
  return std::unique_ptr<File>(
      std::make_unique<OpenFile>(*this, options, std::move(file)));
}

}  // namespace holdfast
