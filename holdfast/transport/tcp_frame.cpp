#include <algorithm>
#include <limits>

#include "holdfast/transport/tcp_frame_internal.h"

namespace holdfast {
namespace {

constexpr std::string_view kMagic = "hfast02\n";

// Compares in the same time for any bytes, so that nobody can guess a token byte by
// byte from the time that the answer takes.
bool equal(ByteView a, ByteView b) {
  std::byte different{};
  for (size_t i = 0; i < a.size(); ++i) different |= a[i] ^ b[i];
  return different == std::byte{};
}

Bytes encode_header(FrameKind kind, int64_t number, size_t length) {
  Bytes bytes(kFrameHeaderBytes);
  const ByteSpan head = bytes;
  store_little_endian(static_cast<uint32_t>(kind), head);
  store_little_endian(static_cast<uint64_t>(number), head.subspan(4));
  store_little_endian(uint64_t{length}, head.subspan(12));
  return bytes;
}

}  // namespace

Bytes encode_hello(const JobToken& token, int rank, int size) {
  Bytes hello(kHelloBytes);
  ByteSpan rest = hello;
  std::ranges::copy(bytes_of(kMagic), rest.begin());
  rest = rest.subspan(kMagic.size());
  std::ranges::copy(token, rest.begin());
  rest = rest.subspan(kTokenBytes);
  store_little_endian(static_cast<uint32_t>(rank), rest);
  store_little_endian(static_cast<uint32_t>(size), rest.subspan(4));
  return hello;
}

Result<int> decode_hello(ByteView bytes, const JobToken& token, int size) {
  HOLDFAST_CHECK(bytes.size() == kHelloBytes, "hello of {} bytes", bytes.size());
  if (text_of(bytes.first(kMagic.size())) != kMagic)
    return invalid("hello: wrong magic");
  bytes = bytes.subspan(kMagic.size());
  if (!equal(bytes.first(kTokenBytes), token))
    return invalid("hello: token of another job");
  bytes = bytes.subspan(kTokenBytes);
  const auto rank = load_little_endian<uint32_t>(bytes);
  const auto ranks = load_little_endian<uint32_t>(bytes.subspan(4));
  if (ranks != static_cast<uint32_t>(size) || rank >= ranks) {
    return invalid("hello: rank {} of {}; expected a rank of {}", rank, ranks, size);
  }
  return static_cast<int>(rank);
}

Outgoing encode_frame(FrameKind kind, int64_t number,
                      std::shared_ptr<const Bytes> body) {
  const size_t length = body == nullptr ? 0 : body->size();
  return {.head = encode_header(kind, number, length), .body = std::move(body)};
}

Outgoing lend_message(int64_t tag, const std::shared_ptr<LentBytes>& body) {
  Outgoing frame{.head = encode_header(FrameKind::kMessage, tag, body->size()),
                 .body = nullptr};
  frame.lent = std::shared_ptr<LentBytes>(
      body.get(), [body](LentBytes* lent) { lent->give_back(); });
  return frame;
}

Result<void> FrameReader::feed(ByteView bytes, const OnFrame& on_frame) {
  while (!bytes.empty()) {
    const bool in_header = header_.size() < kFrameHeaderBytes;
    const size_t want = in_header ? kFrameHeaderBytes - header_.size() : missing_;
    const ByteView part = bytes.first(std::min(want, bytes.size()));
    bytes = bytes.subspan(part.size());
    if (in_header) {
      header_.insert(header_.end(), part.begin(), part.end());
    } else {
      append(part);
    }
    if (part.size() < want) {
      if (!in_header) missing_ -= part.size();
      return {};
    }
    if (in_header) HOLDFAST_TRY(begin_frame());
    if (in_header && missing_ > 0) continue;
    header_.clear();
    HOLDFAST_TRY(on_frame(std::exchange(frame_, {})));
  }
  return {};
}

void FrameReader::append(ByteView part) {
  if (frame_.landing != nullptr) return frame_.landing->append(part);
  frame_.bytes.insert(frame_.bytes.end(), part.begin(), part.end());
}

Result<void> FrameReader::begin_frame() {
  const ByteView header = header_;
  const auto kind = load_little_endian<uint32_t>(header);
  const auto number =
      static_cast<int64_t>(load_little_endian<uint64_t>(header.subspan(4)));
  const auto length = load_little_endian<uint64_t>(header.subspan(12));
  const bool message = kind == static_cast<uint32_t>(FrameKind::kMessage);
  if (!message && kind != static_cast<uint32_t>(FrameKind::kReceived)) {
    return invalid("frame of kind {:#x}: not known", kind);
  }
  if (message && number > std::numeric_limits<Tag>::max()) {
    return invalid("frame: tag {}, limit {}", number, std::numeric_limits<Tag>::max());
  }
  const uint64_t limit = message ? static_cast<uint64_t>(limit_) : 0;
  if (length > limit) return invalid("frame of {} bytes, limit {}", length, limit);
  frame_.kind = static_cast<FrameKind>(kind);
  frame_.number = number;
  missing_ = static_cast<size_t>(length);
  // Bulk messages have at most this size. Without it their bytes would be copied again
  // and again while the memory grows.
  constexpr size_t kReserved = size_t{1} << 20;
  if (message && missing_ > 0 && find_landing_ != nullptr) {
    frame_.landing = find_landing_(number, missing_);
  }
  if (frame_.landing == nullptr) frame_.bytes.reserve(std::min(missing_, kReserved));
  return {};
}

}  // namespace holdfast
