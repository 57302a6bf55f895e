#include "holdfast/env/source_sink.h"

#include <algorithm>

namespace holdfast {

Result<void> Source::check_range(int64_t offset, int64_t count) const {
  if (offset < 0 || count < 0 || offset > size() || count > size() - offset) {
    return corrupt("{}: {} bytes at {}, but there are only {}", name(), count, offset,
                   size());
  }
  return {};
}

Result<void> Source::read(int64_t offset, ByteSpan into) const {
  HOLDFAST_TRY(check_range(offset, static_cast<int64_t>(into.size())));
  return read_inside(offset, into);
}

Result<Bytes> Source::read_bytes(int64_t offset, int64_t count) const {
  HOLDFAST_TRY(check_range(offset, count));
  Bytes bytes(static_cast<size_t>(count));
  HOLDFAST_TRY(read_inside(offset, bytes));
  return bytes;
}

Result<Crc32c> crc32c_of(const Source& source, int64_t offset, int64_t bytes,
                         const std::function<void(int64_t)>& count) {
  constexpr int64_t kPart = int64_t{4} << 20;
  Crc32c crc = 0;
  for (int64_t at = 0; at < bytes; at += kPart) {
    const Bytes part =
        HOLDFAST_TRY(source.read_bytes(offset + at, std::min(kPart, bytes - at)));
    crc = crc32c_extend(crc, part);
    if (count) count(std::ssize(part));
  }
  return crc;
}

Result<void> MemorySource::read_inside(int64_t offset, ByteSpan into) const {
  const auto from = ByteView(bytes_).subspan(static_cast<size_t>(offset), into.size());
  std::copy(from.begin(), from.end(), into.begin());
  return {};
}

Result<std::unique_ptr<FileSource>> FileSource::open(Env& env, const Path& path) {
  auto file = HOLDFAST_TRY(env.open(path, {.mode = OpenMode::kRead}));
  const int64_t size = HOLDFAST_TRY(file->size());
  return std::unique_ptr<FileSource>(new FileSource(std::move(file), size));
}

Result<void> FileSource::read_inside(int64_t offset, ByteSpan into) const {
  const size_t count = HOLDFAST_TRY(file_->read_at(offset, into));
  if (count != into.size()) {
    return corrupt("{}: ends at {}, but had {} bytes when it was opened", name(),
                   offset + static_cast<int64_t>(count), size_);
  }
  return {};
}

Result<std::unique_ptr<FileSink>> FileSink::create(Env& env, const Path& path) {
  auto file = HOLDFAST_TRY(env.open(path, {.mode = OpenMode::kCreate}));
  return std::unique_ptr<FileSink>(new FileSink(std::move(file)));
}

Result<std::unique_ptr<FileSink>> FileSink::create_unnamed(Env& env,
                                                           const Path& folder) {
  auto file = HOLDFAST_TRY(env.create_unnamed(folder));
  return std::unique_ptr<FileSink>(new FileSink(std::move(file)));
}

Result<void> FileSink::append(ByteView bytes) {
  HOLDFAST_TRY(file_->write_at(size_, bytes));
  size_ += static_cast<int64_t>(bytes.size());
  return {};
}

Result<void> FileSink::finish() {
  HOLDFAST_TRY(file_->sync());
  return file_->close();
}

Result<void> FileSink::finish_as(Env& env, const Path& path) {
  HOLDFAST_TRY(file_->sync());
  HOLDFAST_TRY(env.name_file(*file_, path));
  return file_->close();
}

}  // namespace holdfast
