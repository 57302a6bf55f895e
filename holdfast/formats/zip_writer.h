// Writes zip archives as torch does: records stored, each beginning at a multiple of 64
// bytes, its CRC behind it, so that one pass over any Sink is enough. Fields of zip64
// stand where a size or an offset needs them.
//
//   begin("archive/data/0", size), append(...), append(...), end()   or   add(name, bytes)
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
    // Sizes and offsets from this on are written as zip64. Smaller only for tests.
    int64_t zip64_from = 0xffffffff;
  };

  // The archive begins where the sink is now; `sink` must outlive the writer.
  explicit ZipWriter(Sink& sink) : ZipWriter(sink, Options{}) {}
  ZipWriter(Sink& sink, Options options)
      : sink_(sink), options_(options), start_(sink.size()) {}

  // Begins a record of exactly `size` bytes. kInvalid for a name that is empty or longer
  // than 65535 bytes. Names must be distinct.
  Result<void> begin(std::string_view name, int64_t size);
  Result<void> append(ByteView bytes);
  // The CRC of the record that ends.
  Result<Crc32> end();
  Result<Crc32> add(std::string_view name, ByteView bytes);
  // The directory. Nothing may follow.
  Result<void> finish();

 private:
  struct Entry {
    std::string name;
    int64_t offset;  // of its header
    int64_t size;
    Crc32 crc;
  };

  int64_t position() const { return sink_.size() - start_; }
  bool large(int64_t value) const { return value >= options_.zip64_from; }
  bool large(const Entry& entry) const {
    return large(entry.size) || large(entry.offset);
  }
  // The zip64 field's values; empty where none is needed.
  std::vector<int64_t> values64(const Entry& entry) const;
  Result<void> write_central(const Entry& entry);
  Result<void> write_ends(int64_t offset, int64_t size);

  Sink& sink_;
  const Options options_;
  const int64_t start_;
  std::vector<Entry> entries_;
  int64_t left_ = 0;  // bytes that the record still lacks
};

}  // namespace holdfast
