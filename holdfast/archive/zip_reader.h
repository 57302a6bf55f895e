// Reads zip archives as torch, NumPy and Keras write them. The records of torch are
// stored without compression, so that any range of a record is a range of the file.
// Others may be deflated.
//
// Fails with kUnsupported if a record is compressed in a way that the caller does not
// allow or is encrypted, and if the archive is spread over several files. Fails with
// kCorrupt if directory and headers contradict each other or the size of the file, if
// records share bytes, if a name is there twice or leads out of the archive, and if
// there is a comment, in which other tools could see another archive. All of this is
// checked when the archive is opened. The bytes of the records are checked later.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "holdfast/base/crc32.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

struct ZipEntry {
  std::string name{};
  // The offset of its first byte in the file.
  int64_t offset = 0;
  int64_t size = 0;         // before compression
  int64_t packed_size = 0;  // in the file
  Crc32 crc = 0;            // of the bytes before compression
  bool deflated = false;
  // For code that changes an archive: where its local header and its entry in the
  // directory begin, and whether its CRC is also behind its bytes.
  int64_t header_offset = 0;
  int64_t listed_offset = 0;
  bool has_descriptor = false;
};

struct ZipOptions {
  // Names that differ only in the case of ASCII letters are the same name, as in torch.
  bool ignore_case = false;
  // Whether records may be deflated.
  bool deflated = false;
};

// Whether a name may be that of a record: not absolute, without "..", and without
// characters that could make it look like another name.
bool is_safe_zip_name(std::string_view name);

// The names of all records in an archive, also of compressed ones, in the order of the
// directory.
Result<std::vector<std::string>> list_zip(const Source& source);

// An opened archive. It never changes, and is safe from several threads.
class ZipArchive {
 public:
  ZipArchive(ZipArchive&&) = default;
  ZipArchive& operator=(ZipArchive&&) = default;
  // Reads the directory and the header of each record, but not the records.
  static Result<ZipArchive> open(std::shared_ptr<const Source> source,
                                 ZipOptions options = {});

  const Source& source() const { return *source_; }
  // All records in order of offset.
  const std::vector<ZipEntry>& entries() const { return entries_; }
  const ZipEntry* find(std::string_view name) const;
  // The first name in the directory. Empty if the directory is empty.
  const std::string& first_listed() const { return first_listed_; }

  // The directory begins at this byte of the file.
  int64_t directory_offset() const { return directory_offset_; }

  // Reads a whole record, decodes it and checks its CRC. Fails with kCorrupt if it is
  // longer than `limit`.
  Result<Bytes> read(const ZipEntry& entry, int64_t limit) const;
  // Checks the CRC of a record of any size, in bounded memory. A CRC of 0 means that
  // the writer left it out (torch can do that); then nothing is checked.
  Result<void> verify(const ZipEntry& entry) const;
  // The CRC of a record's bytes as they are, in bounded memory. Fails with kCorrupt if
  // they cannot be decoded.
  Result<Crc32> compute_crc(const ZipEntry& entry) const;
  // The bytes of a record by range. Those of a deflated record are decoded while they are
  // read, so reading from front to back is fast and going back begins anew.
  std::shared_ptr<const Source> open_record(const ZipEntry& entry) const;
  // The name of its source: "model.npz: entry w.npy".
  std::string name_of_record(const ZipEntry& entry) const;
  // The offsets of all copies of a record's CRC in the file: in the directory, in the
  // local header and behind the bytes, as far as they are there.
  Result<std::vector<int64_t>> find_crcs(const ZipEntry& entry) const;

 private:
  ZipArchive(std::shared_ptr<const Source> source, ZipOptions options)
      : source_(std::move(source)), options_(options) {}
  std::string key_of(std::string_view name) const;
  Result<void> add_names();
  Result<void> check_crc(const ZipEntry& entry, Crc32 seen) const;

  // Shared with the contents that are made from this archive.
  std::shared_ptr<const Source> source_;
  ZipOptions options_;
  std::vector<ZipEntry> entries_;
  std::string first_listed_;
  int64_t directory_offset_ = 0;
  // Records by their names, in lower case if the case does not matter.
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace holdfast
