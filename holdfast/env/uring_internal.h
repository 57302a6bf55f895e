// io_uring: the kernel's queue for reads and writes of files. Internal to env.
//
// uring.cpp implements it where liburing was found. Other builds compile no_uring.cpp,
// which has no ring.
#pragma once

#include <cstdint>
#include <memory>

#include "holdfast/base/bytes.h"

namespace holdfast {

// One read or write. The kernel may end it early, as it may end pread and pwrite.
struct UringPiece {
  // Must not have O_NONBLOCK, or the kernel would give up instead of waiting.
  int descriptor = -1;
  bool write = false;
  // True for transfers through the system's cache: a kernel thread makes the copy, so
  // that submit() does not.
  bool copies = false;
  int64_t offset = 0;
  ByteSpan memory;  // at most kUringPiece bytes; only read from if `write`
};

inline constexpr size_t kUringPiece = size_t{1} << 30;

// All calls are safe from several threads.
class Uring {
 public:
  virtual ~Uring() = default;
  Uring() = default;
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  // Starts a piece. Blocks while as many pieces are in flight as the ring is deep.
  virtual uint64_t submit(const UringPiece& piece) = 0;
  // Waits for the piece with this id, which submit() returned. Returns the number of
  // bytes transferred, or a negated errno, such as -EIO. Call it once for each submit,
  // in any order, and for all pieces before the ring is destroyed.
  virtual int64_t wait(uint64_t id) = 0;
};

// Null where no ring can be created: a build without liburing, an old kernel, a
// container that forbids it, too many descriptors.
std::unique_ptr<Uring> make_uring(unsigned depth);

}  // namespace holdfast
