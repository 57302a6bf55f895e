// Fuzz target: reads any bytes as a TFRecord file. Because nearly all of them have wrong
// CRCs, the bytes are also written as records with right ones, all of which must be found.
#include <cstddef>
#include <cstdint>

#include "holdfast/dataset/scan_testing.h"
#include "holdfast/tensorflow/masked_crc.h"

using namespace holdfast;

namespace {

void append_record(Bytes& into, ByteView bytes) {
  std::byte head[kRecordHead], tail[kRecordTail];
  store_little_endian(uint64_t{bytes.size()}, ByteSpan(head).first(8));
  store_little_endian(bundle::mask_crc(crc32c(ByteView(head).first(8))), ByteSpan(head).subspan(8));
  store_little_endian(bundle::mask_crc(crc32c(bytes)), ByteSpan(tail));
  for (const ByteView part : {ByteView(head), bytes, ByteView(tail)}) {
    into.insert(into.end(), part.begin(), part.end());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemorySource source = tests::fuzz_source(data, size);
  tests::scan_checked(source, source.size(), scan_records);
  // The first byte of each record is its length.
  Bytes records;
  int64_t count = 0;
  for (ByteView rest = std::as_bytes(std::span(data, size)); !rest.empty(); ++count) {
    const size_t length = std::min(rest.size(), static_cast<size_t>(rest[0]) + 1);
    append_record(records, rest.first(length));
    rest = rest.subspan(length);
  }
  const MemorySource good("fuzz", std::move(records));
  const int64_t words = tests::scan_checked(good, good.size(), scan_records);
  HOLDFAST_CHECK(words == count + 1, "{} words for {} records", words, count);
  return 0;
}
