// What lies below a Mailbox: a thread that brings frames (tcp_frame_internal.h) to other
// ranks, over TCP or by MPI, and tells what arrives from them.
#pragma once

#include <memory>
#include <string>

#include "holdfast/transport/tcp_frame_internal.h"

namespace holdfast {

// Receives what happens. The loop's thread makes the calls and holds no lock of the loop
// meanwhile.
class FrameEvents {
 public:
  virtual ~FrameEvents() = default;
  virtual void on_up(int rank) = 0;
  // If this fails, the loop closes the connection to that rank.
  virtual Result<void> on_frame(int rank, Frame frame) = 0;
  // The memory in which a receiver waits for this message; null if none does.
  virtual std::shared_ptr<Landing> find_landing(int rank, int64_t tag,
                                                size_t length) = 0;
  // The last call for that rank. Also made for a rank that could not be reached.
  virtual void on_gone(int rank, const std::string& why) = 0;
};

class FrameLoop {
 public:
  FrameLoop() = default;
  FrameLoop(const FrameLoop&) = delete;
  FrameLoop& operator=(const FrameLoop&) = delete;
  virtual ~FrameLoop() = default;

  // Orders, from any thread. A frame for a rank that is not connected is lost.
  virtual void send(int rank, Outgoing frame) = 0;
  // Sends the frames that still wait, for at most about a second, and ends the thread.
  virtual void stop() = 0;
};

}  // namespace holdfast
