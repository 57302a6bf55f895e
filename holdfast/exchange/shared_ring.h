// A ring of windows in memory that two processes of one machine share: the sender fills
// slots, the receiver empties them, in order.
//
// The memory has no name in any file system (memfd), so nothing is left behind when a
// process is killed. The receiver opens it through /proc, by the sender's process and
// descriptor; a random number in the memory tells that it is the right one.
//
// The two sides wait for each other in the kernel (futex), each wait for a moment only:
// the callers then look whether the other side is still alive.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "holdfast/base/bytes.h"
#include "holdfast/env/env.h"

namespace holdfast {

class SharedRing {
 public:
  static constexpr int64_t kSlotBytes = int64_t{256} << 10;
  static constexpr uint32_t kSlots = 16;

  // Makes a ring. kNoSpace or kUnavailable if the machine refuses the memory.
  static Result<std::unique_ptr<SharedRing>> create(Env& env);
  // Opens the ring that another process, or this one, has made.
  static Result<std::unique_ptr<SharedRing>> open(std::string_view address);
  ~SharedRing();
  SharedRing(const SharedRing&) = delete;
  SharedRing& operator=(const SharedRing&) = delete;

  // What the other side needs for open(). Valid until close_descriptor().
  std::string address() const;
  // The other side has the memory, so no descriptor is needed any more.
  void close_descriptor();

  // The sender's side. free_slot() is empty if no slot is free after a moment.
  ByteSpan free_slot();
  void publish();  // the free slot has been filled
  void give_up();

  // The receiver's side. filled_slot() is empty if no slot is filled after a moment.
  ByteView filled_slot();
  void release();  // the filled slot has been emptied
  bool given_up() const;

 private:
  struct Header {
    uint64_t number = 0;  // random
    std::atomic<uint32_t> filled = 0;
    std::atomic<uint32_t> emptied = 0;
    std::atomic<uint32_t> given_up = 0;
  };

  SharedRing(std::byte* memory, int descriptor)
      : memory_(memory), descriptor_(descriptor) {}
  static Result<std::unique_ptr<SharedRing>> map(int descriptor);
  Header& header() const { return *reinterpret_cast<Header*>(memory_); }
  ByteSpan slot(uint32_t number) const;

  std::byte* const memory_;
  int descriptor_;
};

}  // namespace holdfast
