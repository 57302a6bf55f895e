#include "holdfast/env/flipped_env.h"

#include "holdfast/env/file_wrapper.h"

namespace holdfast {

// A file opened to read.
class FlippedEnv::OpenFile : public FileWrapper {
 public:
  OpenFile(FlippedEnv& env, std::unique_ptr<File> inner)
      : FileWrapper(std::move(inner)), env_(env) {}
  ~OpenFile() override { static_cast<void>(drain()); }

 protected:
  Result<size_t> read_some(int64_t offset, ByteSpan into) override {
    const size_t count = HOLDFAST_TRY(inner_->read_at(offset, into));
    const int64_t at = env_.byte_.offset - offset;
    if (at >= 0 && at < static_cast<int64_t>(count) && env_.left_.fetch_sub(1) > 0) {
      into[static_cast<size_t>(at)] ^= env_.byte_.mask;
    }
    return count;
  }

 private:
  FlippedEnv& env_;
};

Result<std::unique_ptr<File>> FlippedEnv::open(const Path& path, OpenOptions options) {
  auto file = HOLDFAST_TRY(inner_.open(path, options));
  if (options.mode != OpenMode::kRead || path != byte_.path) return file;
  return std::unique_ptr<File>(std::make_unique<OpenFile>(*this, std::move(file)));
}

}  // namespace holdfast
