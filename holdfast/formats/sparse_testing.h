// For tests and benchmarks: large files of any format that take little space on the disk.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/env/env_wrapper.h"
#include "holdfast/env/file_wrapper.h"
#include "holdfast/formats/format.h"

namespace holdfast::tests {

// A source of zeros.
class ZeroSource : public Source {
 public:
  explicit ZeroSource(int64_t size) : size_(size) {}
  const std::string& name() const override { return name_; }
  int64_t size() const override { return size_; }

 protected:
  Result<void> read_inside(int64_t, ByteSpan into) const override {
    std::memset(into.data(), 0, into.size());
    return {};
  }

 private:
  const std::string name_ = "zeros";
  const int64_t size_;
};

// Leaves holes where long runs of zeros are written.
class SparseFile : public FileWrapper {
 public:
  using FileWrapper::FileWrapper;
  ~SparseFile() override { (void)drain(); }

  Result<void> allocate(int64_t) override { return {}; }

 protected:
  Result<size_t> write_some(int64_t offset, ByteView bytes) override {
    const bool zeros =
        bytes.size() >= 4096 && bytes[0] == std::byte{0} &&
        std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
    HOLDFAST_TRY(zeros ? inner_->truncate(offset + std::ssize(bytes))
                       : inner_->write_at(offset, bytes));
    return bytes.size();
  }
};

// New files that are written from front to back are sparse.
class SparseEnv : public EnvWrapper {
 public:
  using EnvWrapper::EnvWrapper;
  Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) override {
    auto file = HOLDFAST_TRY(inner_.open(path, options));
    if (options.mode != OpenMode::kCreate) return file;
    return std::unique_ptr<File>(std::make_unique<SparseFile>(std::move(file)));
  }
};

// Writes a file or folder with the tensor "large", F32 zeros, that takes little space on
// the disk.
inline Result<void> write_sparse(Env& env, const Path& path, const Format& format,
                                 int64_t bytes) {
  std::vector<Tensor> tensors{
      {.name = "large", .dtype = Dtype::kF32, .shape = {bytes / 4}}};
  LayoutBuilder builder(tensors, {{.name = "zeros", .kind = HolderKind::kFile}});
  builder.add(0, Box::whole(tensors[0].shape), 0, 0);
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  const Contents contents{
      .collection = Collection::create(std::move(tensors), layout).value(),
      .sources = {std::make_shared<ZeroSource>(bytes)},
      .objects = {},
      .metadata = {}};
  SparseEnv sparse(env);
  return format.write(sparse, path, contents);
}

}  // namespace holdfast::tests
