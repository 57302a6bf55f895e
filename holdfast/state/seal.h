// The seal: a digest of a tensor that does not depend on how the tensor is laid out.
//
// Every holder computes sums over what it holds, however it is cut, ordered and stored,
// and these sums add up to the seal of the whole tensor. So two layouts of one state,
// or a state before and after a resize, can be compared without moving a byte of it.
//
// A tensor's canonical bytes (row-major, little-endian, unpadded) are read as 32-bit
// words w_i; bytes outside a box count as 0. For the lanes j = 0, 1, modulo 2^64:
//
//   D_j = sum_i A_j(i / 1024) * K_j[i % 1024] * w_i
//
//   mix64   the SplitMix64 step
//   A_j(h)  mix64(mix64(j) ^ h) | 1
//   K_j     low32(mix64((j + 1) * 2^32 + n)) | 1 for n = 0, 1, ..., each value once
//
// A change inside one word always changes the seal, because both factors are odd.
// Changes of several words are missed with a probability of at most 2^-51. The seal
// guards against faults, not against an adversary. It knows nothing of replicas: a byte
// that is summed twice counts twice, and the byte count shows that.
//
// All functions are pure and may run on any thread. A box or map that leaves the tensor
// or the holder's bytes is a bug and aborts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "holdfast/state/box.h"
#include "holdfast/state/strided.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

// The sums over a part of a tensor. The seals of disjoint parts add up.
struct Seal {
  std::array<uint64_t, 2> lanes{};  // D_0, D_1
  uint64_t bytes = 0;               // how many bytes were summed

  Seal& operator+=(const Seal& other);
  friend Seal operator+(Seal a, const Seal& b) { return a += b; }
  friend bool operator==(const Seal&, const Seal&) = default;
};

// The part of a tensor's seal that comes from its canonical bytes
// [offset, offset + run.size()). Offset and memory may have any alignment.
Seal seal_bytes(std::span<const std::byte> run, uint64_t offset);

// The part of a tensor's seal that comes from `box`, whose elements `map` finds in the
// holder's bytes. It is fastest if the rows of the box are contiguous in the holder;
// else the elements are first copied to a small buffer.
Seal seal_box(const Shape& shape, Dtype dtype, const Box& box, const Map& map,
              std::span<const std::byte> holder);

// The seal of a whole tensor as people and files see it: 32 hexadecimal digits that
// depend on the seal, the dtype and the shape. They are XXH3-128 of D_0, D_1 and the
// byte count (64 bit little-endian each), the dtype's name and a NUL, the number of
// dimensions and their sizes (64 bit each).
std::string print_seal(const Seal& seal, Dtype dtype, const Shape& shape);

}  // namespace holdfast
