// A zip file as a Source that computes the CRC of each record while it is read. So a
// record that is read from front to back is checked without reading it twice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/contents/contents.h"
#include "holdfast/archive/zip_reader.h"

namespace holdfast {

// Safe from several threads.
class ZipCheckedSource : public Source, public DigestCheck {
 public:
  // `entries` are all entries of the archive that `inner` reads, in order of offset.
  ZipCheckedSource(std::shared_ptr<const Source> inner, std::vector<ZipEntry> entries)
      : inner_(std::move(inner)),
        entries_(std::move(entries)),
        progress_(entries_.size()) {}

  const std::string& name() const override { return inner_->name(); }
  int64_t size() const override { return inner_->size(); }

  // A record without a CRC is not checked. (torch can be told to write no CRCs.)
  Result<void> check_record(int64_t offset, bool whole) const override;

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override;

 private:
  // How far a record was read without a gap from its first byte, and the CRC of these
  // bytes.
  struct Progress {
    int64_t at = 0;
    Crc32 crc = 0;
  };

  // The number of the record that has this byte of the file, or entries_.size() if no
  // record has it.
  size_t record_at(int64_t offset) const;
  Result<void> read_rest(size_t record) const HOLDFAST_REQUIRES(mutex_);

  // Shared with the archive.
  const std::shared_ptr<const Source> inner_;
  const std::vector<ZipEntry> entries_;
  mutable Mutex mutex_;
  mutable std::vector<Progress> progress_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
