// Deflate by ISA-L.
#include "holdfast/base/deflate.h"

#include <isa-l/igzip_lib.h>

#include <algorithm>
#include <array>
#include <optional>

namespace holdfast {
namespace {

// ISA-L counts bytes in 32 bits, so longer buffers go to it in parts of this size.
constexpr size_t kMostOfStream = size_t{1} << 30;

// On aarch64, ISA-L reads a few bytes behind the input of its encoder and behind what its
// decoder has made (for the Adler-32). They need not be there, so both are buffers of our
// own, which are larger than ISA-L is told.
constexpr size_t kInput = size_t{1} << 20, kOutput = size_t{1} << 18, kReadBehind = 64;

const char* words_for(int code) {
  switch (code) {
    case ISAL_INVALID_BLOCK: return "has an invalid block";
    case ISAL_INVALID_SYMBOL: return "has an invalid symbol";
    case ISAL_INVALID_LOOKBACK: return "refers to bytes before its beginning";
    case ISAL_INCORRECT_CHECKSUM: return "has a wrong checksum";
    case ISAL_NEED_DICT: return "needs a dictionary";
    default: return "has an invalid header";
  }
}

// ISA-L only reads its input, although its parameter is not const.
uint8_t* input_pointer(ByteView bytes) {
  return const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(bytes.data()));
}

}  // namespace

struct Inflater::State {
  inflate_state stream;
  Bytes made;
};

// The state has 100 KB of tables, which ISA-L makes itself.
Inflater::Inflater(DeflateWrapper wrapper)
    : state_(std::make_unique_for_overwrite<State>()) {
  isal_inflate_init(&state_->stream);
  state_->stream.crc_flag = wrapper == DeflateWrapper::kZlib ? ISAL_ZLIB : ISAL_DEFLATE;
}

Inflater::~Inflater() = default;
Inflater::Inflater(Inflater&&) noexcept = default;
Inflater& Inflater::operator=(Inflater&&) noexcept = default;

bool Inflater::finished() const {
  return state_->stream.block_state == ISAL_BLOCK_FINISH;
}

Result<Inflater::Progress> Inflater::decode(ByteView input, ByteSpan output) {
  inflate_state& stream = state_->stream;
  Progress progress;
  while (!finished()) {
    const ByteView in = input.subspan(progress.used);
    const ByteSpan out = output.subspan(progress.made);
    const size_t room = std::min(out.size(), kOutput);
    if (state_->made.size() < room + kReadBehind) {
      state_->made.resize(room + kReadBehind);
    }
    stream.next_in = input_pointer(in);
    stream.avail_in = static_cast<uint32_t>(std::min(in.size(), kMostOfStream));
    stream.next_out = reinterpret_cast<uint8_t*>(state_->made.data());
    stream.avail_out = static_cast<uint32_t>(room);
    const uint32_t had_in = stream.avail_in, had_out = stream.avail_out;
    const int code = isal_inflate(&stream);
    if (code != ISAL_DECOMP_OK) {
      return corrupt("the deflate stream {}; expected a whole one", words_for(code));
    }
    const uint32_t used = had_in - stream.avail_in, made = had_out - stream.avail_out;
    std::ranges::copy(std::span(state_->made).first(made), out.begin());
    progress.used += used;
    progress.made += made;
    if (used == 0 && made == 0) break;
  }
  return progress;
}

namespace {

// Decodes a stream directly into the result. Returns nullopt if something is wrong, or if
// it is too long for that.
std::optional<Bytes> inflate_at_once(ByteView input, size_t size,
                                     DeflateWrapper wrapper) {
  if (input.size() > kMostOfStream || size > kMostOfStream) return std::nullopt;
  const auto stream = std::make_unique_for_overwrite<inflate_state>();
  isal_inflate_init(stream.get());
  stream->crc_flag = wrapper == DeflateWrapper::kZlib ? ISAL_ZLIB : ISAL_DEFLATE;
  Bytes bytes(size + kReadBehind);
  stream->next_in = input_pointer(input);
  stream->avail_in = static_cast<uint32_t>(input.size());
  stream->next_out = reinterpret_cast<uint8_t*>(bytes.data());
  stream->avail_out = static_cast<uint32_t>(size);
  if (isal_inflate_stateless(stream.get()) != ISAL_DECOMP_OK || stream->avail_out != 0 ||
      stream->block_state != ISAL_BLOCK_FINISH) {
    return std::nullopt;
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace

Result<Bytes> inflate(ByteView input, int64_t size, DeflateWrapper wrapper) {
  if (size > most_inflated(std::ssize(input))) {
    return corrupt("{} bytes are said to decode to {}; deflate makes at most {}",
                   input.size(), size, most_inflated(std::ssize(input)));
  }
  if (auto all = inflate_at_once(input, static_cast<size_t>(size), wrapper)) {
    return *std::move(all);
  }
  // In parts, to say what is wrong.
  Inflater inflater(wrapper);
  Bytes bytes(static_cast<size_t>(size));
  const Inflater::Progress first = HOLDFAST_TRY(inflater.decode(input, bytes));
  // The end of the stream may come only after the last byte that it gives.
  std::array<std::byte, 1> more{};
  const Inflater::Progress rest =
      HOLDFAST_TRY(inflater.decode(input.subspan(first.used), more));
  if (first.made == bytes.size() && rest.made == 0 && inflater.finished()) return bytes;
  return corrupt("the deflate stream has {} bytes{}; expected {}",
                 first.made + rest.made,
                 inflater.finished() ? "" : " and goes on or is cut off", size);
}

Bytes deflate(ByteView bytes, DeflateWrapper wrapper) {
  auto stream = std::make_unique<isal_zstream>();
  isal_deflate_init(stream.get());
  std::vector<uint8_t> level_memory(ISAL_DEF_LVL1_DEFAULT);
  stream->level = 1;
  stream->level_buf = level_memory.data();
  stream->level_buf_size = ISAL_DEF_LVL1_DEFAULT;
  stream->gzip_flag = wrapper == DeflateWrapper::kZlib ? IGZIP_ZLIB : IGZIP_DEFLATE;
  Bytes out, in(std::min(bytes.size(), kInput) + kReadBehind);
  std::vector<uint8_t> part(size_t{1} << 16);
  while (stream->internal_state.state != ZSTATE_END) {
    if (stream->avail_in == 0) {
      const ByteView next = bytes.first(std::min(bytes.size(), kInput));
      bytes = bytes.subspan(next.size());
      std::ranges::copy(next, in.begin());
      stream->next_in = input_pointer(in);
      stream->avail_in = static_cast<uint32_t>(next.size());
      stream->end_of_stream = bytes.empty() ? 1 : 0;
    }
    stream->next_out = part.data();
    stream->avail_out = static_cast<uint32_t>(part.size());
    const int code = isal_deflate(stream.get());
    HOLDFAST_CHECK(code == COMP_OK, "isal_deflate returned {}", code);
    const ByteView made =
        std::as_bytes(std::span(part).first(part.size() - stream->avail_out));
    out.insert(out.end(), made.begin(), made.end());
  }
  return out;
}

}  // namespace holdfast
