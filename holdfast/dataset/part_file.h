// Samples of a corpus as one file, one after the other.
#pragma once

#include <algorithm>

#include "holdfast/dataset/mount_tree.h"

namespace holdfast {

class PartFile : public MountedFile {
 public:
  // Adds up the sizes of the samples. The corpus must outlive the file.
  static Result<std::shared_ptr<const MountedFile>> create(const Corpus& corpus,
                                                           std::vector<int64_t> samples);

  int64_t size() const override;
  Result<size_t> read(int64_t offset, ByteSpan into) const override;
  bool is_scattered() const override { return is_scattered_; }

 private:
  PartFile(const Corpus& corpus, std::vector<int64_t> samples)
      : corpus_(corpus),
        samples_(std::move(samples)),
        is_scattered_(!std::ranges::is_sorted(samples_)) {}

  // Where the sample with this number in the part begins; for the number behind the last
  // one, where the part ends.
  int64_t begin_of(size_t number) const;
  // The number of the sample that this byte is in.
  size_t sample_at(int64_t offset) const;

  const Corpus& corpus_;
  const std::vector<int64_t> samples_;
  const bool is_scattered_;
  std::vector<int64_t> begins_;  // empty if all samples have the same size
};

}  // namespace holdfast
