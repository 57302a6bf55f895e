// Reads a file once from its beginning to its end, and computes its digest on the way.
#pragma once

#include "holdfast/base/xxh3.h"
#include "holdfast/contents/contents.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

// Not thread safe. The source must outlive it.
class ScannedFile {
 public:
  // `progress` may be empty; it is told about every block.
  ScannedFile(const Source& source, Progress progress);

  const std::string& name() const { return source_.name(); }
  int64_t size() const { return source_.size(); }
  // The offset of the next byte.
  int64_t at() const { return block_at_ + used_; }

  // The next bytes, at least one and at most `most`; none at the end of the file. They
  // are valid until the next call.
  Result<ByteView> some(int64_t most = INT64_MAX);
  // The next `count` bytes. Fails with kCorrupt if the file ends before.
  Result<Bytes> exactly(int64_t count);
  Result<void> skip(int64_t count);

  // The digest of all bytes of the file. Reads what has not been read yet.
  Result<Digest128> finish();

 private:
  const Source& source_;
  const Progress progress_;
  Xxh3Stream digest_;
  Bytes block_;
  int64_t block_at_ = 0;
  int64_t filled_ = 0;  // bytes of the block
  int64_t used_ = 0;    // of those, the bytes that were given out
};

}  // namespace holdfast
