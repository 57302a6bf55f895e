// FrameReader over arbitrary bytes: no frame is longer than the limit, and bytes fed
// all at once give the same frames as bytes fed one by one.
#include "holdfast/transport/tcp_frame_internal.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  constexpr int64_t kLimit = 64;
  const ByteView bytes = std::as_bytes(std::span(data, size));
  if (size >= kHelloBytes) (void)decode_hello(bytes.first(kHelloBytes), JobToken{}, 4);
  FrameReader whole(kLimit), slow(kLimit);
  std::vector<Frame> at_once, one_by_one;
  const auto keep_in = [](std::vector<Frame>& frames) {
    return [&frames](Frame frame) {
      frames.push_back(std::move(frame));
      return Result<void>();
    };
  };
  const bool good = whole.feed(bytes, keep_in(at_once)).ok();
  bool slow_good = true;
  for (size_t i = 0; i < size && slow_good; ++i) {
    slow_good = slow.feed(bytes.subspan(i, 1), keep_in(one_by_one)).ok();
  }
  HOLDFAST_CHECK(good == slow_good && at_once.size() == one_by_one.size(), "differ");
  for (size_t i = 0; i < at_once.size(); ++i) {
    HOLDFAST_CHECK(at_once[i].bytes.size() <= kLimit, "too long");
    HOLDFAST_CHECK(at_once[i].bytes == one_by_one[i].bytes, "frame {} differs", i);
  }
  return 0;
}
