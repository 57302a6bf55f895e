// Fuzz target: reads any bytes as a tar archive, and as the sample of one. Headers count
// also with a wrong sum, because nearly all sums of random bytes are wrong.
#include <cstddef>
#include <cstdint>

#include "holdfast/dataset/scan_testing.h"
#include "holdfast/dataset/tar_members.h"

using namespace holdfast;

namespace {

// Gives each block of 512 bytes the sum of a header.
Bytes with_sums(ByteView bytes) {
  Bytes summed = copy_of(bytes);
  for (size_t at = 0; at + 512 <= summed.size(); at += 512) {
    const ByteSpan sum = ByteSpan(summed).subspan(at + 148, 8);
    std::ranges::fill(sum, std::byte{' '});
    int64_t value = 0;
    for (const std::byte byte : ByteView(summed).subspan(at, 512)) {
      value += static_cast<int64_t>(byte);
    }
    const std::string text = fmt::format("{:06o}", value) + std::string("\0 ", 2);
    std::ranges::copy(bytes_of(text), sum.begin());
  }
  return summed;
}

void check(Bytes bytes) {
  const MemorySource source("fuzz", bytes);
  tests::scan_checked(source, source.size(), scan_tar);
  const auto members = tar_members("fuzz", bytes);
  if (!members.ok()) return;
  for (const TarMember& member : *members) {
    HOLDFAST_CHECK(member.begin + member.size <= source.size(), "{}", member.name);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteView bytes = std::as_bytes(std::span(data, size));
  check(copy_of(bytes));
  check(with_sums(bytes));
  return 0;
}
