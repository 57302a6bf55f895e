// A file of records with checksums as a Source that computes the checksum of each
// record while it is read. So a record that is read from front to back is checked
// without reading it twice.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/contents/contents.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

struct CheckedRecord {
  std::string name{};  // for messages, such as "entry data/0"
  int64_t offset = 0;
  int64_t size = 0;
  std::optional<uint32_t> crc{};  // nullopt if the writer left it out
};

// Safe from several threads.
class CheckedSource : public Source, public DigestCheck {
 public:
  // Computes the checksum of bytes a followed by b from that of a, as crc32_extend()
  // and crc32c_extend() do.
  using Extend = uint32_t (*)(uint32_t of_a, ByteView b);

  // `inner` may be shared with other users of the file. `records` are in order of
  // offset and do not overlap.
  CheckedSource(std::shared_ptr<const Source> inner, std::vector<CheckedRecord> records,
                Extend extend)
      : inner_(std::move(inner)),
        records_(std::move(records)),
        extend_(extend),
        progress_(records_.size()) {}

  const std::string& name() const override { return inner_->name(); }
  int64_t size() const override { return inner_->size(); }

  // A record without a checksum is not checked.
  Result<void> check_record(HolderId holder, int64_t offset, bool whole) const override;

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override;

 private:
  // How far a record was read without a gap from its first byte, and the checksum of
  // these bytes.
  struct Progress {
    int64_t at = 0;
    uint32_t crc = 0;
  };

  // The number of the record that has this byte of the file, or records_.size() if no
  // record has it.
  size_t record_at(int64_t offset) const;
  Result<void> read_rest(size_t record) const HOLDFAST_REQUIRES(mutex_);

  const std::shared_ptr<const Source> inner_;
  const std::vector<CheckedRecord> records_;
  const Extend extend_;
  mutable Mutex mutex_;
  mutable std::vector<Progress> progress_ HOLDFAST_GUARDED_BY(mutex_);
};

// The checks of contents with several files: passes each record to the file that has it.
class HolderDigests : public DigestCheck {
 public:
  // The check of one holder.
  struct Part {
    std::shared_ptr<const DigestCheck> digests{};  // null if nothing is to be checked
    HolderId holder = 0;                           // what `digests` calls the holder
  };

  // One part for each holder. Shared with the sources of the contents.
  explicit HolderDigests(std::vector<Part> parts) : parts_(std::move(parts)) {}
  explicit HolderDigests(
      const std::vector<std::shared_ptr<const CheckedSource>>& sources) {
    for (const auto& source : sources) parts_.push_back({source, 0});
  }

  Result<void> check_record(HolderId holder, int64_t offset,
                            bool whole) const override {
    const Part& part = parts_[holder];
    if (part.digests == nullptr) return {};
    return part.digests->check_record(part.holder, offset, whole);
  }

 private:
  std::vector<Part> parts_;
};

}  // namespace holdfast
