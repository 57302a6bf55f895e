// A file of tensors, opened: whatever its format, it is a collection over files.
//
// Each tensor's boxes lie at byte offsets of its holders, which are files, so that any
// box is read by range without reading the rest. What reads a Contents does not know the
// format: converting, comparing and restoring are written once.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/env/source_sink.h"
#include "holdfast/state/collection.h"
#include "holdfast/state/object.h"

namespace holdfast {

// Checks digests that cover more than a reader may have asked for: those of whole records
// of a file.
class DigestCheck {
 public:
  virtual ~DigestCheck() = default;
  // Called after bytes of the record at this offset of the file were read; reads what is
  // left of it. kCorrupt if its digest is wrong. Unless `whole`, which says that the caller
  // has used all of a tensor, the rest of a large record is not read, and what the caller
  // has is then unchecked.
  virtual Result<void> check_record(int64_t offset, bool whole) const = 0;
};

struct Contents {
  // Its holders are files. One file may serve as several holders, where tensors of a
  // format share bytes in ways that a layout does not (overlapping views).
  Collection collection;
  // One a holder, in order. Shared, because several holders may be one file.
  std::vector<std::shared_ptr<const Source>> sources;
  // What is no tensor, with the tensors as leaves where the format nests them (torch),
  // which then names them by their paths: "model.fc.weight". None where it knows only
  // names.
  Object objects;
  // What safetensors keeps under __metadata__.
  std::map<std::string, std::string> metadata;
  // Null where the format has no digests, or reading from the sources checks them. Shared
  // with a source.
  std::shared_ptr<const DigestCheck> digests{};
  // Objects of other kinds than Object has, which became plain data: "args: an
  // argparse.Namespace".
  std::vector<std::string> simplified{};
};

// Reads a box of a tensor, from as many pieces as hold it, into `memory` through `into`
// (a map relative to memory.data(), which must stay inside). Bytes that lie scattered are
// read through a window of a few MiB, so that small rows are not single reads. kInvalid
// for a box outside the tensor, kNotFound, naming it, for a part that nothing holds,
// kCorrupt where a digest is wrong, and what reading the sources gives. A format whose
// digests cover whole records (torch) leaves a part of a large tensor unchecked.
Result<void> read_box(const Contents& contents, TensorId tensor, const Box& box,
                      const Map& into, ByteSpan memory);

// Reads the canonical bytes [offset, offset + into.size()) of a tensor: row-major,
// little-endian, unpadded. Digests of whole records are not looked at: who reads all of a
// tensor in parts takes CanonicalStream.
Result<void> read_canonical(const Contents& contents, TensorId tensor, int64_t offset,
                            ByteSpan into);

// The same bytes from front to back, for what streams; the last read checks the digest of
// the whole, where the format has one. A tensor that does not lie row-major
// in its file (transposed) is read ahead in large parts, for every part goes over all of
// the file's bytes.
class CanonicalStream {
 public:
  // `contents` must outlive it.
  CanonicalStream(const Contents& contents, TensorId tensor);

  // The next bytes; kInvalid beyond the tensor's last.
  Result<void> read(ByteSpan into);

 private:
  Result<void> check_at_end() const;

  const Contents& contents_;
  const TensorId tensor_;
  const bool ahead_;
  int64_t at_ = 0;          // of the tensor
  Bytes part_;              // what was read ahead
  int64_t part_begin_ = 0;  // of it in the tensor
};

}  // namespace holdfast
