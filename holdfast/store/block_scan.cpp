#include <algorithm>
#include <array>

#include "holdfast/store/block_scan_internal.h"

namespace holdfast {
namespace {

constexpr int64_t kBlock = int64_t{4} << 20;
constexpr size_t kInFlight = 4;

}  // namespace

Result<void> scan_file(Env& env, const Path& path, int64_t size, bool direct,
                       const TakeBlock& take) {
  // Before the file, whose destructor still waits for transfers into them.
  std::array<AlignedBytes, kInFlight> blocks;
  std::array<Ticket, kInFlight> tickets;
  const auto file = HOLDFAST_TRY(env.open(path, {.direct = direct}));
  const int64_t count = size / kBlock + (size % kBlock != 0);
  const auto submit = [&](int64_t block) {
    const size_t slot = static_cast<size_t>(block) % kInFlight;
    const int64_t want = std::min(kBlock, size - block * kBlock);
    if (blocks[slot].size() == 0)
      blocks[slot] = AlignedBytes(static_cast<size_t>(want));
    tickets[slot] = file->submit_read(block * kBlock, blocks[slot].blocks());
  };
  for (int64_t i = 0; i < std::min<int64_t>(count, kInFlight); ++i) submit(i);
  for (int64_t i = 0; i < count; ++i) {
    const size_t slot = static_cast<size_t>(i) % kInFlight;
    const auto want = static_cast<size_t>(std::min(kBlock, size - i * kBlock));
    const size_t read = HOLDFAST_TRY(file->wait(tickets[slot]));
    if (read < want) {
      return corrupt("{}: ends at {}, want {} bytes", path.native(),
                     i * kBlock + static_cast<int64_t>(read), size);
    }
    take(i * kBlock, ByteView(blocks[slot].blocks()).first(want));
    if (i + static_cast<int64_t>(kInFlight) < count) {
      submit(i + static_cast<int64_t>(kInFlight));
    }
  }
  return file->close();
}

}  // namespace holdfast
