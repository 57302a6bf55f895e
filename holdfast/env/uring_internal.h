// A queue of the kernel's for reads and writes of files: io_uring. Internal to base.
//
// uring.cpp has the real one, where liburing was found; else no_uring.cpp has none.
#pragma once

#include <cstdint>
#include <memory>

#include "holdfast/base/bytes.h"

namespace holdfast {

// A read or write that the kernel may end early, as it may with pread and pwrite.
struct UringPiece {
  int descriptor =
      -1;  // without O_NONBLOCK: the kernel would give up instead of waiting
  bool write = false;
  bool copies = false;  // through the system's cache: let a kernel thread do it
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

  // Starts a piece; blocks while as many as the depth are in flight.
  virtual uint64_t submit(const UringPiece& piece) = 0;
  // Bytes transferred, or an error number of the system with a minus. Once for each
  // submit, in any order, and for all of them before the ring is destroyed.
  virtual int64_t wait(uint64_t id) = 0;
};

// Null where there is no ring to be had: not built in, an old kernel, a container that
// forbids it, too many descriptors.
std::unique_ptr<Uring> make_uring(unsigned depth);

}  // namespace holdfast
