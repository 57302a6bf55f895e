// Fuzz target: reads any bytes as a parity file, with a header whose CRC is right; and
// damages a file and its parity at the places that the bytes choose. Must end in bytes
// or an error. What is recovered is what was there, and damage that the parity is for
// is always recovered.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "holdfast/base/crc32c.h"
#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/shard/parity.h"

namespace {

using namespace holdfast;

constexpr int64_t kMostBytes = int64_t{1} << 20;

Result<ParityReader> open(Bytes parity) {
  return ParityReader::open(
      std::make_shared<MemorySource>("fuzz.parity", std::move(parity)));
}

// Any bytes. Without the right CRC nearly all of them would be refused at once.
void read_as_parity(ByteView bytes) {
  Bytes parity = copy_of(bytes);
  if (parity.size() >= 64) {
    const ByteSpan all(parity);
    std::ranges::copy(bytes_of("HFPARITY"), parity.begin());
    store_little_endian(crc32c(all.first(60)), all.subspan(60));
  }
  const Result<ParityReader> reader = open(std::move(parity));
  if (!reader.ok()) return;
  const int64_t file_bytes = reader->shape().file_bytes;
  const MemorySource file("fuzz", copy_of(bytes));
  (void)reader->recover(file, 0, std::min(file_bytes, kMostBytes));
  (void)reader->recover(file, file_bytes - std::min<int64_t>(file_bytes, 1), 1);
}

// Takes numbers from the front of the bytes; 0 after their end.
class Numbers {
 public:
  explicit Numbers(ByteView bytes) : bytes_(bytes) {}

  int64_t next(int64_t end) {
    int64_t number = 0;
    for (int i = 0; i < 2 && !bytes_.empty(); ++i) {
      number = number * 256 + std::to_integer<int64_t>(bytes_[0]);
      bytes_ = bytes_.subspan(1);
    }
    return number % end;
  }

 private:
  ByteView bytes_;
};

Bytes encode(const ParityShape& shape, ByteView file) {
  MemorySink sink;
  ParityEncoder encoder(shape, sink);
  const size_t half = file.size() / 2;
  for (const ByteView part : {file.first(half), file.subspan(half)}) {
    const Result<void> added = encoder.add(part);
    HOLDFAST_CHECK(added.ok(), "{}", added.error().message());
  }
  const Result<void> finished = encoder.finish();
  HOLDFAST_CHECK(finished.ok(), "{}", finished.error().message());
  HOLDFAST_CHECK(sink.size() == shape.parity_bytes(), "{} bytes; expected {}",
                 sink.size(), shape.parity_bytes());
  return std::move(sink).take_bytes();
}

// Whether each group has at most as many of these blocks as it has parity blocks.
bool can_be_mended(const ParityShape& shape, const std::set<int64_t>& blocks) {
  std::map<std::pair<int64_t, int64_t>, int64_t> lost;
  for (const int64_t block : blocks) {
    const int64_t region = block / shape.region;
    const int64_t group = block % shape.region % shape.groups_of(region);
    if (++lost[{region, group}] > shape.parity) return false;
  }
  return true;
}

void damage_and_recover(ByteView bytes) {
  Numbers numbers(bytes);
  const ParityShape shape{.data = static_cast<int>(1 + numbers.next(200)),
                          .parity = static_cast<int>(1 + numbers.next(55)),
                          .block = int64_t{1024} << numbers.next(5),
                          .region = 1 + numbers.next(40),
                          .file_bytes = 1 + numbers.next(1 << 16)};
  Bytes file(static_cast<size_t>(shape.file_bytes));
  for (size_t i = 0; i < file.size(); ++i) {
    file[i] = bytes.empty() ? std::byte{0} : bytes[i % bytes.size()];
  }
  Bytes parity = encode(shape, file), hurt = file;
  std::set<int64_t> blocks;
  for (int64_t left = numbers.next(200); left > 0; --left) {
    const int64_t at = numbers.next(shape.file_bytes);
    hurt[static_cast<size_t>(at)] = ~file[static_cast<size_t>(at)];
    blocks.insert(at / shape.block);
  }
  const bool is_parity_hurt = numbers.next(2) == 1;
  if (is_parity_hurt) {
    parity[static_cast<size_t>(numbers.next(std::ssize(parity)))] ^= std::byte{1};
  }
  const Result<ParityReader> reader = open(std::move(parity));
  HOLDFAST_CHECK(reader.ok() || is_parity_hurt, "{}", reader.error().message());
  if (!reader.ok()) return;
  const Result<Bytes> found =
      reader->recover(MemorySource("fuzz", std::move(hurt)), 0, shape.file_bytes);
  HOLDFAST_CHECK(!found.ok() || *found == file, "recovered other bytes");
  HOLDFAST_CHECK(found.ok() || is_parity_hurt || !can_be_mended(shape, blocks), "{}",
                 found.error().message());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteView bytes = std::as_bytes(std::span(data, size));
  read_as_parity(bytes);
  damage_and_recover(bytes);
  return 0;
}
