// Fuzz target: reads any bytes as the header of an index, as they are and, because nearly
// all of them are refused, with a right mark and digest.
#include <cstddef>
#include <cstdint>

#include "holdfast/dataset/index_file.h"
#include "holdfast/dataset/scan_testing.h"

using namespace holdfast;

namespace {

constexpr size_t kHeader = 128, kDigest = kHeader + 17 * 8;  // bytes where they begin

void check(Bytes bytes) {
  const MemorySource source("fuzz", std::move(bytes));
  const auto header = read_index_header(source);
  if (!header.ok()) return;
  HOLDFAST_CHECK(header->words >= 0 && header->words <= source.size() / 8, "{} words",
                 header->words);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes = copy_of(std::as_bytes(std::span(data, size)));
  check(bytes);
  bytes.insert(bytes.begin(), kHeader, std::byte{0});
  bytes.resize(std::max(bytes.size(), kDigest + 8));
  std::ranges::copy(bytes_of("HLDFIDX1"), bytes.begin() + kHeader);
  const Digest128 digest = xxh3_128(ByteView(bytes).subspan(kHeader, kDigest - kHeader));
  store_little_endian(digest.low, ByteSpan(bytes).subspan(kDigest, 8));
  check(std::move(bytes));
  return 0;
}
