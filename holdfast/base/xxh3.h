// XXH3-128: a fast digest of 128 bits, for recognising equal pieces. Random faults do
// not cause equal digests in practice, but an adversary could construct them.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "holdfast/base/bytes.h"
#include "holdfast/base/result.h"

namespace holdfast {

struct Digest128 {
  uint64_t high = 0;
  uint64_t low = 0;

  friend auto operator<=>(const Digest128&, const Digest128&) = default;

  // 32 lower-case digits in canonical order (big-endian), as xxhsum prints it.
  std::string hex() const;
  // Reads hex(). Fails with kInvalid unless there are exactly 32 digits.
  static Result<Digest128> from_hex(std::string_view hex);
};

Digest128 xxh3_128(ByteView bytes);

// The digest of bytes that come in parts. Not thread safe.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;

  void append(ByteView bytes);
  // The digest of all bytes so far. More bytes may follow.
  Digest128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace holdfast
