// What goes over a connection between two ranks, with all numbers little-endian:
//
//   1. A hello each way, from who dialed first: magic, the job's token, rank, size.
//   2. Frames: a header (kind, number, length), and that many bytes.
//
// Pure: nothing here reads or sends.
#pragma once

#include <memory>
#include <vector>

#include "holdfast/transport/tcp_transport.h"

namespace holdfast {

inline constexpr size_t kHelloBytes = 8 + kTokenBytes + 4 + 4;

Bytes encode_hello(const JobToken& token, int rank, int size);
// The rank that says so. kInvalid for kHelloBytes that are not of this job, or of
// another number of ranks.
Result<int> decode_hello(ByteView bytes, const JobToken& token, int size);

enum class FrameKind : uint32_t {
  kMessage = 0x31666d68,   // number: its tag
  kReceived = 0x31667268,  // number: messages that were received; no bytes
};
inline constexpr size_t kFrameHeaderBytes = 4 + 8 + 8;

struct Frame {
  FrameKind kind = FrameKind::kMessage;
  int64_t number = 0;
  Bytes bytes;
};

// Bytes on their way out. The body is shared by the ranks that a message goes to.
struct Outgoing {
  Bytes head;
  std::shared_ptr<const Bytes> body;  // may be null

  size_t size() const { return head.size() + (body == nullptr ? 0 : body->size()); }
};

Outgoing encode_frame(FrameKind kind, int64_t number,
                      std::shared_ptr<const Bytes> body = nullptr);

// Cuts what arrives into frames.
class FrameReader {
 public:
  // `limit`: the most bytes of a frame.
  explicit FrameReader(int64_t limit) : limit_(limit) {}

  // Takes all bytes, and adds the frames that they complete. kInvalid for what is no
  // frame; nothing may follow then. Memory grows with what has come, not with what a
  // header promises.
  Result<void> feed(ByteView bytes, std::vector<Frame>& frames);

 private:
  Result<void> begin_frame();

  const int64_t limit_;
  Bytes header_;
  Frame frame_;
  size_t missing_ = 0;  // bytes of the frame, once its header is there
};

}  // namespace holdfast
