// xxHash is compiled into this file. A shared library would be built for the oldest
// machine and called through a table, which is measurably slower.
#define XXH_INLINE_ALL
#include "holdfast/base/xxh3.h"

#include <xxhash.h>

namespace holdfast {
namespace {

Digest128 digest_of(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }

uint64_t load_big_endian(ByteView bytes) {
  uint64_t value = 0;
  for (const std::byte byte : bytes.first(8)) {
    value = (value << 8) | std::to_integer<uint64_t>(byte);
  }
  return value;
}

}  // namespace

struct Xxh3Stream::State {
  XXH3_state_t xxh;
};

std::string Digest128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Result<Digest128> Digest128::from_hex(std::string_view hex) {
  if (hex.size() != 32) return invalid("digest: {} digits; expected 32", hex.size());
  const Bytes bytes = HOLDFAST_TRY(holdfast::from_hex(hex).within("digest"));
  return Digest128{load_big_endian(bytes), load_big_endian(ByteView(bytes).subspan(8))};
}

Digest128 xxh3_128(ByteView bytes) {
  return digest_of(XXH3_128bits(bytes.data(), bytes.size()));
}

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

void Xxh3Stream::append(ByteView bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

Digest128 Xxh3Stream::digest() const {
  return digest_of(XXH3_128bits_digest(&state_->xxh));
}

}  // namespace holdfast
