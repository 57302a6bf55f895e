// Records of an archive as sources of their own.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "holdfast/archive/zip_reader.h"
#include "holdfast/base/deflate.h"
#include "holdfast/base/mutex.h"

namespace holdfast {

// A range of another source.
class SliceSource : public Source {
 public:
  // The caller has checked that the range is inside `inner`.
  SliceSource(std::shared_ptr<const Source> inner, int64_t offset, int64_t size,
              std::string name)
      : inner_(std::move(inner)),
        offset_(offset),
        size_(size),
        name_(std::move(name)) {}

  const std::string& name() const override { return name_; }
  int64_t size() const override { return size_; }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override {
    return inner_->read(offset_ + offset, into);
  }

 private:
  const std::shared_ptr<const Source> inner_;  // shared with the archive
  const int64_t offset_;
  const int64_t size_;
  const std::string name_;
};

// The decoded bytes of a deflated record. It needs about 200 KiB of memory, whatever the
// size of the record is. Reading on from where the last read ended is fast; reading
// before that decodes from the beginning again. When the last byte is read, the CRC of
// all bytes is checked. Safe from several threads, which wait for each other.
class InflatedSource : public Source {
 public:
  // `entry` is a deflated record of the archive in `inner`.
  InflatedSource(std::shared_ptr<const Source> inner, ZipEntry entry, std::string name)
      : inner_(std::move(inner)), entry_(std::move(entry)), name_(std::move(name)) {}

  const std::string& name() const override { return name_; }
  int64_t size() const override { return entry_.size; }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override;

 private:
  // How far the record is decoded.
  struct Cursor {
    // Clang 14 cannot make an optional of a nested struct without a constructor.
    Cursor() : inflater(DeflateWrapper::kNone) {}

    Inflater inflater;
    int64_t taken = 0;  // bytes of the record that were read from the file
    Bytes input{};      // those that were read last
    size_t used = 0;    // how many of them are decoded
    int64_t at = 0;     // the next decoded byte
    Crc32 crc = 0;      // of the decoded bytes before it
  };

  Result<void> decode(Cursor& cursor, ByteSpan into) const;
  Result<Inflater::Progress> decode_some(Cursor& cursor, ByteSpan into) const;
  Result<void> check_end(Cursor& cursor) const;

  const std::shared_ptr<const Source> inner_;  // shared with the archive
  const ZipEntry entry_;
  const std::string name_;
  mutable Mutex mutex_;
  mutable std::optional<Cursor> cursor_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
