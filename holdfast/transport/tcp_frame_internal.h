// The bytes that go over a connection between two ranks, with all numbers
// little-endian:
//
//   1. Each rank sends a hello: magic, the job's token, rank, size. The rank that
//      dialed sends its hello first.
//   2. Frames follow: a header (kind, number, length), and `length` bytes.
//
// This file only encodes and decodes: nothing here reads from a socket or sends.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/transport/tcp_transport.h"

namespace holdfast {

inline constexpr size_t kHelloBytes = 8 + kTokenBytes + 4 + 4;

Bytes encode_hello(const JobToken& token, int rank, int size);
// The rank that sent the hello. kInvalid for a hello of another job, or of a job with
// another number of ranks. Aborts unless there are exactly kHelloBytes.
Result<int> decode_hello(ByteView bytes, const JobToken& token, int size);

enum class FrameKind : uint32_t {
  kMessage = 0x31666d68,   // a message; its number is the tag
  kReceived = 0x32667268,  // the oldest message with this tag was received; no bytes
};
inline constexpr size_t kFrameHeaderBytes = 4 + 8 + 8;

// Memory in which a caller of recv_into() waits for a message, which is written there
// as it arrives. If the caller leaves earlier, the message goes on into other memory.
class Landing {
 public:
  explicit Landing(ByteSpan into) : most_(into.size()), into_(into) {}

  size_t most() const { return most_; }
  // Called by the loop: the next bytes of the message, which has at most most() bytes.
  void append(ByteView part) {
    MutexLock lock(mutex_);
    if (has_left_) {
      elsewhere_.insert(elsewhere_.end(), part.begin(), part.end());
    } else {
      std::memcpy(into_.subspan(size_, part.size()).data(), part.data(), part.size());
      size_ += part.size();
    }
  }
  // Called by the loop when the message is complete. Returns the message if the caller
  // has left.
  std::optional<Bytes> finish() {
    MutexLock lock(mutex_);
    has_landed_ = !has_left_;
    return has_left_ ? std::optional(std::move(elsewhere_)) : std::nullopt;
  }

  // Called by the receiver: the length of the message, once it is complete.
  std::optional<size_t> landed() {
    MutexLock lock(mutex_);
    return has_landed_ ? std::optional(size_) : std::nullopt;
  }
  // From now on the caller's memory is not written to.
  void leave() {
    MutexLock lock(mutex_);
    if (!has_left_) elsewhere_ = copy_of(into_.first(size_));
    has_left_ = true;
  }

 private:
  const size_t most_;
  Mutex mutex_;
  ByteSpan into_ HOLDFAST_GUARDED_BY(mutex_);
  size_t size_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  Bytes elsewhere_ HOLDFAST_GUARDED_BY(mutex_);
  bool has_left_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool has_landed_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

struct Frame {
  FrameKind kind = FrameKind::kMessage;
  int64_t number = 0;
  Bytes bytes{};
  std::shared_ptr<Landing> landing{};  // has the bytes, if it is not null
};

// Bytes that a caller of send_in_place() lends to the transport while it waits. If the
// caller must leave before all were sent, the transport goes on with a copy.
class LentBytes {
 public:
  explicit LentBytes(ByteView bytes) : size_(bytes.size()), bytes_(bytes) {}

  size_t size() const { return size_; }
  // Calls use(bytes), in which the bytes stay valid.
  auto use(const auto& use) {
    MutexLock lock(mutex_);
    return use(bytes_);
  }
  // The transport does not need the bytes any more.
  void give_back() {
    MutexLock lock(mutex_);
    is_back_ = true;
    changed_.notify_all();
  }
  // Waits until the bytes are back, at most until the deadline. Returns false if they
  // were not, and the transport has a copy instead.
  bool wait(Env& env, Instant deadline) {
    MutexLock lock(mutex_);
    while (!is_back_ && env.now() < deadline) {
      env.wait_until(changed_, mutex_, deadline);
    }
    if (is_back_) return true;
    copy_ = copy_of(bytes_);
    bytes_ = copy_;
    return false;
  }

 private:
  const size_t size_;
  Mutex mutex_;
  Condition changed_;
  ByteView bytes_ HOLDFAST_GUARDED_BY(mutex_);
  Bytes copy_ HOLDFAST_GUARDED_BY(mutex_);
  bool is_back_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

// Bytes to be sent. The body is shared, because one message may go to several ranks.
struct Outgoing {
  Bytes head;
  std::shared_ptr<const Bytes> body;  // may be null
  // The body, if it is lent. Destroying the last pointer gives it back.
  std::shared_ptr<LentBytes> lent{};

  size_t body_size() const {
    if (lent != nullptr) return lent->size();
    return body == nullptr ? 0 : body->size();
  }
  size_t size() const { return head.size() + body_size(); }
};

Outgoing encode_frame(FrameKind kind, int64_t number,
                      std::shared_ptr<const Bytes> body = nullptr);
// A message whose body is lent. `body` is given back when the frame is destroyed.
Outgoing lend_message(int64_t tag, const std::shared_ptr<LentBytes>& body);

// Cuts the bytes that arrive into frames.
class FrameReader {
 public:
  using OnFrame = std::function<Result<void>(Frame)>;
  // Returns the memory that a message with this tag and length is written to; null if
  // the reader may choose it.
  using FindLanding = std::function<std::shared_ptr<Landing>(int64_t, size_t)>;

  // A frame may have at most `limit` bytes.
  explicit FrameReader(int64_t limit) : limit_(limit) {}
  void set_find_landing(FindLanding find) { find_landing_ = std::move(find); }

  // Reads all these bytes, and passes on each frame when it is complete, before the next
  // begins. Stops at the first error of on_frame and returns it. kInvalid for bytes
  // that are no frame; no call may follow then. Beyond a megabyte, memory grows with the
  // bytes that have arrived, not with the length in a header.
  Result<void> feed(ByteView bytes, const OnFrame& on_frame);

 private:
  Result<void> begin_frame();
  void append(ByteView part);

  const int64_t limit_;
  FindLanding find_landing_;
  Bytes header_;
  Frame frame_;
  size_t missing_ = 0;  // bytes of the frame still to come, once its header is complete
};

}  // namespace holdfast
