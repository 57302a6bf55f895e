// Deflate (RFC 1951), the compression of zip, gzip and HDF5: decodes in parts with
// bounded memory, and encodes.
//
// Decoded bytes are never more than the caller has room for, so a small input that
// stands for terabytes costs nothing. Decoding wrong bytes fails and never goes outside
// its memory.
#pragma once

#include <cstdint>
#include <memory>

#include "holdfast/base/bytes.h"

namespace holdfast {

enum class DeflateWrapper {
  kNone,  // bare deflate, as in zip
  kZlib,  // a header of 2 bytes and an Adler-32 of the decoded bytes behind (RFC 1950)
};

// Decodes one stream from front to back. Not thread safe.
class Inflater {
 public:
  explicit Inflater(DeflateWrapper wrapper);
  ~Inflater();
  Inflater(Inflater&&) noexcept;
  Inflater& operator=(Inflater&&) noexcept;

  struct Progress {
    size_t used = 0;  // bytes of the input
    size_t made = 0;  // bytes of the output
  };
  // Decodes until the input is used up, the output is full or the stream ends. Fails with
  // kCorrupt if the input is no deflate stream, or if its Adler-32 is wrong. Nothing more
  // may be decoded after a failure.
  Result<Progress> decode(ByteView input, ByteSpan output);
  // Whether the end of the stream was reached.
  bool finished() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Decodes a whole stream that must give exactly `size` bytes. Fails with kCorrupt
// otherwise. The caller has checked that `size` is not too much memory.
Result<Bytes> inflate(ByteView input, int64_t size, DeflateWrapper wrapper);

// Deflate makes at most 1032 bytes of one. A size above this is not true.
constexpr int64_t most_inflated(int64_t packed) {
  return packed > INT64_MAX / 1032 - 64 ? INT64_MAX : (packed + 64) * 1032;
}

// Encodes bytes as one stream. The result depends only on the bytes.
Bytes deflate(ByteView bytes, DeflateWrapper wrapper);

}  // namespace holdfast
