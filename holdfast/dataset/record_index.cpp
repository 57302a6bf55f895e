// Finds the records of a TFRecord file:
//
//   length of the bytes (u64), masked CRC32C of the length (u32), the bytes, their masked
//   CRC32C (u32)
#include "holdfast/dataset/sample_table.h"
#include "holdfast/tensorflow/masked_crc.h"

namespace holdfast {
namespace {

// The CRC of the next `count` bytes, which are passed over.
Result<Crc32c> crc_of_next(ScannedFile& file, int64_t count) {
  Crc32c crc = 0;
  while (count > 0) {
    const ByteView some = HOLDFAST_TRY(file.some(count));
    crc = crc32c_extend(crc, some);
    count -= std::ssize(some);
  }
  return crc;
}

}  // namespace

Result<void> scan_records(ScannedFile& file, const AppendWord& append) {
  while (file.at() < file.size()) {
    const int64_t at = file.at();
    const int64_t left = file.size() - at - kRecordHead - kRecordTail;
    if (left < 0) {
      return corrupt("{}: the record at byte {} is cut short; the file ends at byte {}",
                     file.name(), at, file.size());
    }
    const Bytes head = HOLDFAST_TRY(file.exactly(kRecordHead));
    const auto length = load_little_endian<uint64_t>(head);
    const auto want = load_little_endian<uint32_t>(ByteView(head).subspan(8));
    if (bundle::mask_crc(crc32c(ByteView(head).first(8))) != want) {
      return corrupt("{}: byte {} begins no record of TFRecord: the CRC of its length is "
                     "wrong; expected a file that is not compressed, and whole",
                     file.name(), at);
    }
    if (length > static_cast<uint64_t>(left) || static_cast<int64_t>(length) > kMostSample) {
      return corrupt("{}: the record at byte {} has {} bytes; the file ends at byte {}, and "
                     "the limit is 1 GiB",
                     file.name(), at, length, file.size());
    }
    const Crc32c crc = HOLDFAST_TRY(crc_of_next(file, static_cast<int64_t>(length)));
    const Bytes tail = HOLDFAST_TRY(file.exactly(kRecordTail));
    if (load_little_endian<uint32_t>(tail) != bundle::mask_crc(crc)) {
      return corrupt("{}: the record at byte {} has the CRC {:08x}; expected {:08x}",
                     file.name(), at, load_little_endian<uint32_t>(tail),
                     bundle::mask_crc(crc));
    }
    HOLDFAST_TRY(append(at));
  }
  return append(file.size());
}

}  // namespace holdfast
