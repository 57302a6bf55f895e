// The table of an index: where the samples of one file lie. Words of 64 bits:
//
//   text      byte where the line begins + 2^48 * (bytes between its end and the next
//             sample: the end of the line, and blank lines); one word for each line,
//             then one with the size of the file
//   megatron  the byte where each document begins, then the byte where the last one ends
//   tar       two words for each sample: where its first header begins, and where its last
//             member ends
//   tfrecord  the byte where each record begins, then the size of the file
//   tokens    none: window i begins at i times its size
//
// The scanners below write it. Each reads its file to the end, or fails with kCorrupt,
// naming the file and the byte.
#pragma once

#include <functional>

#include "holdfast/dataset/scanned_file.h"

namespace holdfast {

// A sample of one file: bytes [begin, end).
struct SampleRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

inline constexpr int kStartBits = 48;
// The most bytes between two lines, in a word of 64 bits without its sign.
inline constexpr int64_t kMostBlank = (int64_t{1} << (63 - kStartBits)) - 1;
// The longest sample. Whatever needs more is no sample, but a file of another kind.
inline constexpr int64_t kMostSample = int64_t{1} << 30;

// The bytes of a TFRecord file before and behind those of a record.
inline constexpr int64_t kRecordHead = 12;
inline constexpr int64_t kRecordTail = 4;

using AppendWord = std::function<Result<void>(int64_t)>;

// Lines: ended by LF or CRLF, or by the end of the file. A byte order mark of UTF-8 is
// skipped. kUnsupported for a line above kMostSample, and for more than kMostBlank
// bytes without a sample.
Result<void> scan_lines(ScannedFile& file, const AppendWord& append);

// Documents of the .bin file of `bin_bytes` bytes, by its .idx file. Returns the dtype's
// code in the file (megatron_dtype). The documents must follow each other in the
// .bin file without gaps, as Megatron writes them.
Result<int64_t> scan_megatron(ScannedFile& idx, int64_t bin_bytes, const AppendWord& append);
// The name of the dtype with that code, as "U16"; empty if there is none.
std::string_view megatron_dtype(int64_t code);

// Members of a tar archive (tar_members.h) that follow each other under one key. Fails
// with kCorrupt for two members of the same field, too.
Result<void> scan_tar(ScannedFile& file, const AppendWord& append);

// Records of TFRecord; checks both CRCs of each.
Result<void> scan_records(ScannedFile& file, const AppendWord& append);

}  // namespace holdfast
