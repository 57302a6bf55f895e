// Writes zip archives as torch does. Records are stored without compression, each
// begins at a multiple of 64 bytes, and its CRC follows it, so that one pass over any
// Sink is enough. zip64 fields are written where a size or an offset needs them.
//
//   begin("archive/data/0", size), append(...), append(...), end(); or add(name, bytes)
//   finish()
//
// Not thread safe. After a failure nothing more may be written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/crc32.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

class ZipWriter {
 public:
  struct Options {
    // Sizes and offsets from this value on are written as zip64. Only tests use a
    // smaller value.
    int64_t zip64_from = 0xffffffff;
  };

  // The archive begins at the current end of the sink. `sink` must outlive the writer.
  explicit ZipWriter(Sink& sink) : ZipWriter(sink, Options{}) {}
  ZipWriter(Sink& sink, Options options)
      : sink_(sink), options_(options), start_(sink.size()) {}

  // Begins a record of exactly `size` bytes. Fails with kInvalid if the name is empty
  // or longer than 65535 bytes. All names must be different.
  Result<void> begin(std::string_view name, int64_t size);
  Result<void> append(ByteView bytes);
  // Ends the record and returns its CRC.
  Result<Crc32> end();
  // Writes a whole record and returns its CRC.
  Result<Crc32> add(std::string_view name, ByteView bytes);
  // Writes the directory. Nothing may be written after it.
  Result<void> finish();

 private:
  struct Entry {
    std::string name;
    // The offset of its header.
    int64_t offset;
    int64_t size;
    Crc32 crc;
  };

  int64_t position() const { return sink_.size() - start_; }
  bool large(int64_t value) const { return value >= options_.zip64_from; }
  bool large(const Entry& entry) const {
    return large(entry.size) || large(entry.offset);
  }
  // The values of the zip64 field. Empty if no field is needed.
  std::vector<int64_t> values64(const Entry& entry) const;
  Result<void> write_central(const Entry& entry);
  Result<void> write_ends(int64_t offset, int64_t size);

  Sink& sink_;
  const Options options_;
  const int64_t start_;
  std::vector<Entry> entries_;
  // How many bytes of the current record are still missing.
  int64_t left_ = 0;
};

}  // namespace holdfast
