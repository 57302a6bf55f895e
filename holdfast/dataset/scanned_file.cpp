#include "holdfast/dataset/scanned_file.h"

#include <algorithm>

namespace holdfast {
namespace {

// Small enough to stay in the cache between the digest and the scan, and large enough
// that a disk reads at its full speed.
constexpr int64_t kBlock = int64_t{1} << 20;

}  // namespace

ScannedFile::ScannedFile(const Source& source, Progress progress)
    : source_(source), progress_(std::move(progress)) {
  block_.resize(static_cast<size_t>(std::clamp<int64_t>(source.size(), 1, kBlock)));
}

Result<ByteView> ScannedFile::some(int64_t most) {
  if (used_ == filled_) {
    block_at_ += filled_;
    used_ = 0;
    filled_ = std::min(kBlock, source_.size() - block_at_);
    const ByteSpan into = ByteSpan(block_).first(static_cast<size_t>(filled_));
    HOLDFAST_TRY(source_.read(block_at_, into));
    digest_.append(into);
    if (progress_ && filled_ > 0) progress_(block_at_ + filled_, source_.size());
  }
  const int64_t count = std::min(most, filled_ - used_);
  const int64_t from = std::exchange(used_, used_ + count);
  return ByteView(block_).subspan(static_cast<size_t>(from), static_cast<size_t>(count));
}

Result<Bytes> ScannedFile::exactly(int64_t count) {
  if (count > size() - at()) {
    return corrupt("{}: the file ends at byte {}; expected {} more bytes after byte {}",
                   name(), size(), count, at());
  }
  Bytes bytes;
  bytes.reserve(static_cast<size_t>(count));
  while (std::ssize(bytes) < count) {
    const ByteView more = HOLDFAST_TRY(some(count - std::ssize(bytes)));
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  return bytes;
}

Result<void> ScannedFile::skip(int64_t count) {
  while (count > 0) {
    const ByteView passed = HOLDFAST_TRY(some(count));
    if (passed.empty()) {
      return corrupt("{}: the file ends at byte {}; expected {} more bytes", name(), size(),
                     count);
    }
    count -= std::ssize(passed);
  }
  return {};
}

Result<Digest128> ScannedFile::finish() {
  while (!HOLDFAST_TRY(some()).empty()) {
  }
  return digest_.digest();
}

}  // namespace holdfast
