// For tests of patches: random flips, the bytes of all files under a path, and large
// sparse files of any format.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "holdfast/contents/contents_testing.h"
#include "holdfast/formats/format.h"

namespace holdfast::tests {

// The bytes of a file, or of all files in a folder, by path. Journals are left out.
using Snapshot = std::map<std::string, Bytes>;

inline Snapshot files_under(Env& env, const Path& path) {
  Snapshot files;
  if (!env.info(path).value().folder) {
    files[path.native()] = env.read_file(path).value();
    return files;
  }
  for (const std::string& name : env.list(path).value()) {
    if (name.starts_with(".holdfast-patch")) continue;
    files.merge(files_under(env, path / name));
  }
  return files;
}

// How many bytes differ, counting those that only one of them has.
inline int64_t changed_bytes(const Bytes& a, const Bytes& b) {
  int64_t count = std::abs(std::ssize(a) - std::ssize(b));
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) count += a[i] != b[i];
  return count;
}

inline int64_t changed_bytes(const Snapshot& a, const Snapshot& b) {
  int64_t count = 0;
  for (const auto& [path, bytes] : a) count += changed_bytes(bytes, b.at(path));
  return count;
}

inline int64_t predicted_bytes(const Patch& patch) {
  int64_t count = 0;
  for (const FilePatch& file : patch.files) {
    for (const Change& change : file.changes) {
      count += changed_bytes(change.before, change.after);
    }
  }
  return count;
}

// Flips of one or several bits in random elements.
inline std::vector<Flip> random_flips(Dice& dice, const Contents& contents, int count) {
  std::vector<Flip> flips;
  while (std::ssize(flips) < count) {
    const auto& tensors = contents.collection.tensors();
    const Tensor& tensor =
        tensors[static_cast<size_t>(dice.below(std::ssize(tensors)))];
    if (tensor.shape.elements() == 0) continue;
    Flip flip{.tensor = tensor.name, .element = dice.below(tensor.shape.elements())};
    const int64_t bits = 8 * bytes_of(tensor.dtype);
    for (int64_t left = 1 + dice.below(3); left > 0; --left) {
      const int64_t bit = dice.below(bits);
      flip.mask[static_cast<size_t>(bit / 8)] ^= static_cast<std::byte>(1 << (bit % 8));
    }
    flips.push_back(std::move(flip));
  }
  return flips;
}

// Applies flips to the canonical bytes of tensors, by name.
inline void apply_flips(const Contents& contents, std::span<const Flip> flips,
                        std::map<std::string, Bytes>& values) {
  for (const Flip& flip : flips) {
    const TensorId t = contents.collection.find(flip.tensor).value();
    const auto size =
        static_cast<size_t>(bytes_of(contents.collection.tensor(t).dtype));
    Bytes& bytes = values.at(contents.collection.tensor(t).name);
    for (size_t i = 0; i < size; ++i) {
      bytes[static_cast<size_t>(flip.element) * size + i] ^= flip.mask[i];
    }
  }
}

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

// Writes a file with holes where long runs of zeros are.
class SparseSink : public Sink {
 public:
  explicit SparseSink(std::unique_ptr<File> file) : file_(std::move(file)) {}

  Result<void> append(ByteView bytes) override {
    const bool zeros =
        bytes.size() >= 4096 &&
        std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0 &&
        bytes[0] == std::byte{0};
    if (!zeros) HOLDFAST_TRY(file_->write_at(size_, bytes));
    size_ += std::ssize(bytes);
    return {};
  }
  int64_t size() const override { return size_; }
  Result<void> finish() { return file_->truncate(size_); }

 private:
  const std::unique_ptr<File> file_;
  int64_t size_ = 0;
};

// Writes a file with the tensor "large", F32 zeros, that takes little space on the disk.
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
  SparseSink sink(HOLDFAST_TRY(env.open(path, {.mode = OpenMode::kCreate})));
  HOLDFAST_TRY(format.stream(sink, contents));
  return sink.finish();
}

}  // namespace holdfast::tests
