// Fuzz target: decodes any bytes as deflate streams, whole and in parts, which must give
// the same. Any bytes must come back after they were encoded.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "holdfast/base/deflate.h"

namespace {

using namespace holdfast;

// Decodes at most 64 KiB, in parts of these sizes. Returns what was decoded until the
// stream ended or was wrong.
Bytes decode_in_parts(ByteView input, DeflateWrapper wrapper, size_t in, size_t out) {
  Inflater inflater(wrapper);
  Bytes all, part(out);
  while (!inflater.finished() && all.size() < 65536) {
    const auto done = inflater.decode(input.first(std::min(in, input.size())), part);
    if (!done.ok()) break;
    HOLDFAST_CHECK(done->used <= std::min(in, input.size()) && done->made <= out,
                   "{} and {}", done->used, done->made);
    all.insert(all.end(), part.begin(),
               part.begin() + static_cast<int64_t>(done->made));
    input = input.subspan(done->used);
    if (done->used == 0 && done->made == 0) break;
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteView bytes = std::as_bytes(std::span(data, size));
  for (const auto wrapper : {DeflateWrapper::kNone, DeflateWrapper::kZlib}) {
    const Bytes whole = decode_in_parts(bytes, wrapper, size, 65536);
    const Bytes parts = decode_in_parts(bytes, wrapper, 7, 1000);
    const auto both = std::min({whole.size(), parts.size()});
    HOLDFAST_CHECK(std::equal(whole.begin(), whole.begin() + static_cast<int64_t>(both),
                              parts.begin()),
                   "parts differ from the whole");
    const auto exact = inflate(bytes, std::ssize(whole), wrapper);
    HOLDFAST_CHECK(!exact.ok() || *exact == whole, "inflate() differs");
    const Bytes packed = deflate(bytes, wrapper);
    HOLDFAST_CHECK(
        inflate(packed, std::ssize(bytes), wrapper).value() == copy_of(bytes),
        "the bytes differ after encoding");
  }
  return 0;
}
