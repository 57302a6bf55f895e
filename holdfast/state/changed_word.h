// Finds the one word of a tensor that differs from the tensor that was sealed.
//
// The seal (seal.h) is a sum over words. If one word i has changed by d, which is the
// word as it was minus the word as it is, then the lanes have changed by
//
//   A_j(i / 1024) * K_j[i % 1024] * d      for j = 0, 1, modulo 2^64
//
// Both factors are odd and so have inverses. For each i, lane 0 gives the only d that
// fits. It is the answer if it is a difference of two words, |d| < 2^32, and if lane 1
// fits, too. So the seal says where the damage is and what stood there, and nothing else
// has to be stored.
//
// How often this is wrong. Let d be an odd number times 2^t. A word that is not damaged
// fits lane 0 with a probability of 2^-31 and then lane 1 with 2^-(63 - t). For n words
// that is n * 2^-94 if t = 0, and n * 2^-63 in the worst case, t = 31, which is a flip of
// the top bit of a word. If several words were damaged, they pass for one word as rarely.
// If more than one word fits, nothing is found.
//
// The functions need no bytes of the tensor, only its two seals. They are pure and may
// run on any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "holdfast/state/element.h"
#include "holdfast/state/seal.h"

namespace holdfast {

// A word of a tensor's canonical bytes that has changed.
struct ChangedWord {
  uint64_t word = 0;  // bytes 4 * word to 4 * word + 4 of the tensor
  // The word as it was when it was sealed, minus the word as it is now.
  int64_t difference = 0;
  friend bool operator==(const ChangedWord&, const ChangedWord&) = default;
};

// Returns the one word in [first, last) whose change explains why a tensor, or a part of
// it, has the seal `seen` and not `sealed`. Returns nullopt if the seals are equal, if
// they are of different numbers of bytes, or if no single word explains the difference.
// Looks at about a billion words in a second.
std::optional<ChangedWord> find_changed_word(const Seal& sealed, const Seal& seen,
                                             uint64_t first, uint64_t last);

// The word as it was, given the word as it is now. Returns nullopt if the result would
// be no word: then more than this word was damaged.
std::optional<uint32_t> word_before(const ChangedWord& changed, uint32_t now);

// A byte of the stream of a box (box_stream.h) that is not what it was when it was sealed.
struct ChangedByte {
  int64_t place = 0;
  std::byte sealed{};
  std::byte seen{};
};

// An element that is not what it was when it was sealed.
struct ChangedElement {
  int64_t element = 0;  // in row-major order of the tensor
  ElementBits sealed{};
  ElementBits seen{};
  friend bool operator==(const ChangedElement&, const ChangedElement&) = default;
};

// The bytes and the elements of a box that have changed, in their order: at least one each.
struct WordChange {
  std::vector<ChangedByte> bytes;
  std::vector<ChangedElement> elements;
};

// Reads a window of the stream of a box, as it is now.
using ReadStream = std::function<Result<void>(int64_t place, ByteSpan into)>;

// Returns what has changed in a box of a tensor that had the seal `sealed` and has the seal
// `seen`; nullopt if that is not inside one word. Fails only as `read` does.
Result<std::optional<WordChange>> find_word_change(const Seal& sealed, const Seal& seen,
                                                   const Tensor& tensor, const Box& box,
                                                   const ReadStream& read);

}  // namespace holdfast
