#include "holdfast/memory/piece_writer.h"

#include "holdfast/state/box_stream.h"

namespace holdfast {

PieceWriter::PieceWriter(std::span<const LocalPiece> into) {
  for (const LocalPiece& piece : into) {
    if (piece.device != nullptr) pinner_ = const_cast<Device*>(piece.device);
  }
}

DeviceUpload& PieceWriter::upload() {
  MutexLock lock(mutex_);
  if (upload_ == nullptr) {
    ring_ = std::make_unique<StagingRing>(RingOptions{.bytes = int64_t{128} << 20,
                                                      .block = int64_t{8} << 20,
                                                      .pinner = pinner_});
    upload_ = std::make_unique<DeviceUpload>(*ring_);
  }
  return *upload_;
}

Result<void> PieceWriter::put(const LocalPiece& to, const Box& box, int64_t element,
                              int64_t at, ByteView window) {
  const BoxMemory place{
      .box = box, .element_bytes = element, .map = to.map.narrowed(to.box, box)};
  if (to.device != nullptr) {
    return upload().put(*to.device, place, to.memory, at, window);
  }
  scatter(place, to.memory, at, window);
  return {};
}

Result<void> PieceWriter::put_part(const LocalPiece& to, const Box& box,
                                   int64_t element, const Map& from, ByteView window) {
  if (to.device == nullptr) {
    run_copy(plan_copy(from, to.map.narrowed(to.box, box), box.shape(), element),
             window, to.memory);
    return {};
  }
  Bytes dense(static_cast<size_t>(box.elements() * element));
  run_copy(plan_copy(from, Map::dense(box, element), box.shape(), element), window,
           dense);
  return put(to, box, element, 0, dense);
}

Result<void> PieceWriter::finish() {
  DeviceUpload* begun = nullptr;
  {
    MutexLock lock(mutex_);
    begun = upload_.get();
  }
  return begun == nullptr ? Result<void>() : begun->finish();
}

}  // namespace holdfast
