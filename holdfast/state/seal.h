// The seal: a digest of a tensor that does not depend on how the tensor is laid out.
//
// Every holder sums what it holds, in any cut, order and storage, and the sums add up
// to the seal of the whole: so two layouts of one state, or a state before and after a
// resize, are compared without moving a byte.
//
// A tensor's canonical bytes (row-major, little-endian, unpadded) are read as 32-bit
// words w_i; bytes outside a box count 0. For the lanes j = 0, 1, modulo 2^64:
//
//   D_j = sum_i A_j(i / 1024) * K_j[i % 1024] * w_i
//
//   mix64   the SplitMix64 step
//   A_j(h)  mix64(mix64(j) ^ h) | 1
//   K_j     low32(mix64((j + 1) * 2^32 + n)) | 1 for n = 0, 1, ..., each value once
//
// A change inside one word is always seen, since both factors are odd; changes of
// several words are missed with a chance of at most 2^-51. It guards against faults,
// not against an adversary. It does not know replicas: sealing a byte twice counts it
// twice, which the byte count shows.
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
#include "holdfast/state/dtype.h"
#include "holdfast/state/strided.h"

namespace holdfast {

// The sums over some part of a tensor; those of disjoint parts add up.
struct Seal {
  std::array<uint64_t, 2> lanes{};  // D_0, D_1
  uint64_t bytes = 0;               // how many were summed

  Seal& operator+=(const Seal& other);
  friend Seal operator+(Seal a, const Seal& b) { return a += b; }
  friend bool operator==(const Seal&, const Seal&) = default;
};

// The part of a tensor's seal that canonical bytes [offset, offset + run.size()) make.
// Any alignment of offset and memory.
Seal seal_bytes(std::span<const std::byte> run, uint64_t offset);

// The part that `box` of a tensor makes, read through `map` from the holder's bytes.
// Fastest where rows of the box are contiguous in the holder; other storage is gathered
// through a small buffer.
Seal seal_box(const Shape& shape, Dtype dtype, const Box& box, const Map& map,
              std::span<const std::byte> holder);

// What people and files see: 32 hexadecimal digits over the seal of a whole tensor, its
// dtype and its shape. XXH3-128 of D_0, D_1 and the byte count (64 bit little-endian
// each), the dtype's name and a NUL, the rank and the extents (64 bit each).
std::string print_seal(const Seal& seal, Dtype dtype, const Shape& shape);

}  // namespace holdfast
