// Samples of a corpus as one file, one after the other.
#pragma once

#include <vector>

#include "holdfast/dataset/mount_tree.h"

namespace holdfast {

class PartFile : public MountedFile {
 public:
  // Looks up all samples, so that a read needs no index. The corpus must outlive the file.
  static Result<std::shared_ptr<const MountedFile>> create(const Corpus& corpus,
                                                           std::span<const int64_t> samples);

  int64_t size() const override { return pieces_.back().begin + std::ssize(corpus_.trailer()); }
  Result<size_t> read(int64_t offset, ByteSpan into) const override;
  bool is_scattered() const override { return is_scattered_; }
  bool is_mapped() const override { return corpus_.dtype().has_value(); }
  std::optional<FileRange> place_of(int64_t offset, size_t count) const override;

 private:
  // Samples that follow each other in the corpus's file, too, with what separates them: that
  // is the same byte. Byte `begin` of the part is byte `from` of the file. The part has one
  // separator more, which belongs to the piece.
  struct Piece {
    int64_t begin = 0;
    int64_t from = 0;
    size_t file = 0;
  };

  PartFile(const Corpus& corpus, bool is_scattered)
      : corpus_(corpus), is_scattered_(is_scattered) {}

  // The piece that has the byte: it is one of the samples or what separates them.
  std::vector<Piece>::const_iterator piece_with(int64_t offset) const;
  // Where the piece ends, without the separator behind it.
  int64_t end_of(std::vector<Piece>::const_iterator piece) const {
    return piece[1].begin - std::ssize(corpus_.separator());
  }

  const Corpus& corpus_;
  const bool is_scattered_;
  std::vector<Piece> pieces_;  // then one without bytes, which begins where the samples end
};

}  // namespace holdfast
