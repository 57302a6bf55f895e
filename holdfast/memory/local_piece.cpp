#include <algorithm>

#include "holdfast/base/xxh3.h"
#include "holdfast/device/cuda_driver.h"
#include "holdfast/device/device.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/memory/seals_on_devices.h"
#include "holdfast/state/box_stream.h"

namespace holdfast {
namespace {

Result<Seal> seal_on_host(const LocalPiece& piece) {
  const Tensor& tensor = *piece.tensor;
  if (piece.device == nullptr) {
    return seal_box(tensor.shape, tensor.dtype, piece.box, piece.map, piece.memory);
  }
  constexpr int64_t kWindow = int64_t{16} << 20;  // a multiple of every element's size
  Bytes buffer(static_cast<size_t>(std::min(kWindow, piece.bytes())));
  Seal seal;
  for (int64_t at = 0; at < piece.bytes(); at += kWindow) {
    const ByteSpan window = ByteSpan(buffer).first(
        static_cast<size_t>(std::min(kWindow, piece.bytes() - at)));
    HOLDFAST_TRY(read_piece(piece, at, window));
    seal += seal_stream(tensor.shape, tensor.dtype, piece.box, at, window);
  }
  return seal;
}

}  // namespace

Result<void> read_piece(const LocalPiece& piece, int64_t first, ByteSpan into) {
  if (piece.device == nullptr) {
    gather(piece.place(), piece.memory, first, into);
    return {};
  }
  HOLDFAST_TRY(piece.device->read(piece.place(), piece.memory, first, into));
  return HOLDFAST_TRY(piece.device->mark()).wait();
}

BoxMemory LocalPiece::place() const {
  return {.box = box, .element_bytes = bytes_of(tensor->dtype), .map = map};
}

bool LocalPiece::is_same_box(const LocalPiece& other) const {
  return box == other.box && (tensor == other.tensor || *tensor == *other.tensor);
}

bool operator==(const LocalPiece& a, const LocalPiece& b) {
  return a.memory.data() == b.memory.data() && a.memory.size() == b.memory.size() &&
         a.is_same_box(b) && a.map == b.map && a.device == b.device &&
         a.at_once == b.at_once;
}

LocalPiece make_piece(Tensor tensor, const Box& box, ByteSpan memory, const Map& map) {
  return {.tensor = std::make_shared<const Tensor>(std::move(tensor)),
          .box = box,
          .memory = memory,
          .map = map};
}

LocalPiece whole_piece(Tensor tensor, ByteSpan memory) {
  const Box box = Box::whole(tensor.shape);
  const Map map = Map::dense(box, bytes_of(tensor.dtype));
  return make_piece(std::move(tensor), box, memory, map);
}

Result<const Device*> device_of(ByteView memory) {
  // The driver and the devices are never destroyed, because our streams may be used
  // until the process ends.
  static CudaDriver* driver = [] {
    Result<std::unique_ptr<CudaDriver>> loaded = load_cuda_driver();
    return loaded.ok() ? loaded->release() : nullptr;
  }();
  if (driver == nullptr) {
    return unsupported("memory on a device, but the CUDA driver cannot be loaded");
  }
  static Devices& devices = *new Devices(*driver);
  return HOLDFAST_TRY(devices.of(memory));
}

std::optional<ByteView> LocalPiece::window(int64_t first, int64_t size) const {
  if (map != Map::dense(box, bytes_of(tensor->dtype), map.offset)) return std::nullopt;
  return memory.subspan(static_cast<size_t>(map.offset + first),
                        static_cast<size_t>(size));
}

Result<Digest128> digest_of(const LocalPiece& piece) {
  return digest_of(piece, 0, piece.bytes());
}

Result<Digest128> digest_of(const LocalPiece& piece, int64_t first, int64_t size) {
  if (piece.device == nullptr) {
    if (const auto window = piece.window(first, size)) return xxh3_128(*window);
  }
  constexpr int64_t kWindow = int64_t{1} << 20;
  Bytes buffer(static_cast<size_t>(std::min(kWindow, size)));
  Xxh3Stream stream;
  for (int64_t at = 0; at < size; at += kWindow) {
    const ByteSpan window =
        ByteSpan(buffer).first(static_cast<size_t>(std::min(kWindow, size - at)));
    HOLDFAST_TRY(read_piece(piece, first + at, window));
    stream.append(window);
  }
  return stream.digest();
}

Result<Seal> seal_of(const LocalPiece& piece) {
  return HOLDFAST_TRY(seals_of({&piece, 1})).front();
}

Result<std::vector<Seal>> seals_of(std::span<const LocalPiece> pieces) {
  SealsOnDevices by_devices(pieces);
  std::vector<Seal> seals(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!by_devices.has(i)) seals[i] = HOLDFAST_TRY(seal_on_host(pieces[i]));
  }
  HOLDFAST_TRY(by_devices.finish(seals));
  return seals;
}

}  // namespace holdfast
