// A file as memory of this process, without a copy.
#pragma once

#include "holdfast/base/bytes.h"
#include "holdfast/env/env.h"

namespace holdfast {

// The memory can be read only. It stays when the file is removed.
class MappedFile {
 public:
  // Fails with kCorrupt if the file has another size, and does not follow links.
  static Result<MappedFile> open(const Path& path, int64_t bytes);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  ByteSpan memory() const { return memory_; }

 private:
  explicit MappedFile(ByteSpan memory) : memory_(memory) {}

  ByteSpan memory_;
};

}  // namespace holdfast
