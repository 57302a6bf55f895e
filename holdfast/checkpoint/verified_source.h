// A shard as a Source that checks what it reads. To read a range it reads the whole
// chunks that the range touches, decompresses them if the shard is compressed, and
// checks the digest of each.
#pragma once

#include <memory>

#include "holdfast/base/mutex.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/shard/shard_index.h"

namespace holdfast {

class VerifiedSource : public Source {
 public:
  // kCorrupt if the size of the file is not the one that the index names.
  static Result<std::shared_ptr<VerifiedSource>> open(Env& env, const Path& path,
                                                      ShardFile file);

  const std::string& name() const override { return source_->name(); }
  int64_t size() const override { return file_.content_bytes(); }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override;

 private:
  VerifiedSource(std::unique_ptr<FileSource> source, ShardFile file)
      : source_(std::move(source)), file_(std::move(file)) {}

  Result<void> load(size_t chunk) const HOLDFAST_REQUIRES(mutex_);
  // Reads a chunk that is not compressed to where the caller wants it, so that several
  // threads can read at once.
  Result<void> read_whole(size_t chunk, ByteSpan into) const;

  const std::unique_ptr<FileSource> source_;
  const ShardFile file_;
  // The chunk that was read last. It is kept because a caller that reads in order with
  // a small buffer needs each chunk many times.
  mutable Mutex mutex_;
  mutable size_t number_ HOLDFAST_GUARDED_BY(mutex_) = SIZE_MAX;
  mutable Bytes chunk_ HOLDFAST_GUARDED_BY(mutex_);
  mutable Bytes stored_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
