// Fuzz target: reads any bytes as a file of each kind and as an index. Must end in an
// error, or in words that lie inside of the file.
#include <cstddef>
#include <cstdint>

#include "holdfast/dataset/index_file.h"
#include "holdfast/dataset/sample_table.h"
#include "holdfast/dataset/tar_members.h"

namespace {

using namespace holdfast;

constexpr int64_t kStart = (int64_t{1} << kStartBits) - 1;

template <typename Scan>
void check(const Source& source, int64_t most, const Scan& scan) {
  int64_t before = 0;
  ScannedFile file(source, {});
  const AppendWord append = [&](int64_t word) -> Result<void> {
    const int64_t begin = word & kStart;
    HOLDFAST_CHECK(word >= 0 && begin >= before && begin <= most, "word {:x} after {:x}",
                   word, before);
    before = begin;
    return {};
  };
  (void)scan(file, append);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemorySource source("fuzz", copy_of(std::as_bytes(std::span(data, size))));
  check(source, source.size(), scan_lines);
  check(source, source.size(), scan_tar);
  check(source, source.size(), scan_records);
  const auto members = tar_members("fuzz", copy_of(std::as_bytes(std::span(data, size))));
  for (const TarMember& member : members.ok() ? *members : std::vector<TarMember>()) {
    HOLDFAST_CHECK(member.begin + member.size <= source.size(), "{}", member.name);
  }
  for (const int64_t bin : {0, 14, 1 << 20}) {
    check(source, bin, [&](ScannedFile& file, const AppendWord& append) {
      return scan_megatron(file, bin, append);
    });
  }
  const auto header = read_index_header(source);
  if (header.ok()) {
    HOLDFAST_CHECK(header->words >= 0 && header->words <= source.size() / 8, "{} words",
                   header->words);
  }
  return 0;
}
