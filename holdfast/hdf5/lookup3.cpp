#include "holdfast/hdf5/lookup3.h"

#include <algorithm>
#include <array>
#include <bit>

namespace holdfast::hdf5 {
namespace {

struct State {
  uint32_t a, b, c;
};

void mix_words(State& s) {
  s.a = (s.a - s.c) ^ std::rotl(s.c, 4), s.c += s.b;
  s.b = (s.b - s.a) ^ std::rotl(s.a, 6), s.a += s.c;
  s.c = (s.c - s.b) ^ std::rotl(s.b, 8), s.b += s.a;
  s.a = (s.a - s.c) ^ std::rotl(s.c, 16), s.c += s.b;
  s.b = (s.b - s.a) ^ std::rotl(s.a, 19), s.a += s.c;
  s.c = (s.c - s.b) ^ std::rotl(s.b, 4), s.b += s.a;
}

void mix_last_words(State& s) {
  s.c = (s.c ^ s.b) - std::rotl(s.b, 14);
  s.a = (s.a ^ s.c) - std::rotl(s.c, 11);
  s.b = (s.b ^ s.a) - std::rotl(s.a, 25);
  s.c = (s.c ^ s.b) - std::rotl(s.b, 16);
  s.a = (s.a ^ s.c) - std::rotl(s.c, 4);
  s.b = (s.b ^ s.a) - std::rotl(s.a, 14);
  s.c = (s.c ^ s.b) - std::rotl(s.b, 24);
}

// Adds at most 12 bytes to the state. Bytes that are missing count as zeros.
void add_words(State& s, ByteView bytes) {
  std::array<std::byte, 12> words{};
  std::copy_n(bytes.begin(), std::min<size_t>(bytes.size(), 12), words.begin());
  s.a += load_little_endian<uint32_t>(ByteView(words));
  s.b += load_little_endian<uint32_t>(ByteView(words).subspan(4));
  s.c += load_little_endian<uint32_t>(ByteView(words).subspan(8));
}

}  // namespace

uint32_t lookup3(ByteView bytes) {
  const uint32_t first = 0xdeadbeef + static_cast<uint32_t>(bytes.size());
  State s{first, first, first};
  while (bytes.size() > 12) {
    add_words(s, bytes);
    mix_words(s);
    bytes = bytes.subspan(12);
  }
  if (bytes.empty()) return s.c;
  add_words(s, bytes);
  mix_last_words(s);
  return s.c;
}

}  // namespace holdfast::hdf5
