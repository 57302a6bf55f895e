#include "holdfast/contents/patched_env.h"

#include <algorithm>

#include "holdfast/env/file_wrapper.h"

namespace holdfast {
namespace {

// Puts the part of a change that lies in the bytes from `offset` on into them.
void show(const Change& change, int64_t offset, ByteSpan bytes) {
  const int64_t first = std::max(change.offset, offset);
  const int64_t last = std::min(change.offset + std::ssize(change.after),
                                offset + std::ssize(bytes));
  if (first >= last) return;
  std::copy_n(change.after.begin() + (first - change.offset), last - first,
              bytes.begin() + (first - offset));
}

}  // namespace

// A file opened to read.
class PatchedEnv::OpenFile : public FileWrapper {
 public:
  OpenFile(std::unique_ptr<File> inner, const FilePatch& patch)
      : FileWrapper(std::move(inner)), patch_(patch) {}
  ~OpenFile() override { static_cast<void>(drain()); }

  Result<int64_t> size() override { return patch_.size_after; }

 protected:
  // What lies behind the end of the old file is in the last change.
  Result<size_t> read_some(int64_t offset, ByteSpan into) override {
    HOLDFAST_TRY(inner_->read_at(offset, into));
    const int64_t there =
        std::clamp<int64_t>(patch_.size_after - offset, 0, std::ssize(into));
    const ByteSpan shown = into.first(static_cast<size_t>(there));
    for (const Change& change : patch_.changes) show(change, offset, shown);
    return shown.size();
  }

 private:
  const FilePatch& patch_;
};

const FilePatch* PatchedEnv::patch_of(const Path& path) const {
  for (const FilePatch& file : patch_.files) {
    if (file.file.lexically_normal() == path.lexically_normal()) return &file;
  }
  return nullptr;
}

Result<std::unique_ptr<File>> PatchedEnv::open(const Path& path, OpenOptions options) {
  auto file = HOLDFAST_TRY(inner_.open(path, options));
  const FilePatch* const patch = patch_of(path);
  if (options.mode != OpenMode::kRead || patch == nullptr) return file;
  return std::unique_ptr<File>(std::make_unique<OpenFile>(std::move(file), *patch));
}

Result<FileInfo> PatchedEnv::info(const Path& path) {
  FileInfo info = HOLDFAST_TRY(inner_.info(path));
  if (const FilePatch* const patch = patch_of(path)) info.size = patch->size_after;
  return info;
}

}  // namespace holdfast
