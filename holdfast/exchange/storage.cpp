#include "holdfast/exchange/storage.h"

#include <sys/mman.h>

#include <algorithm>

#include "holdfast/device/device.h"
#include "holdfast/memory/piece_description.h"

namespace holdfast {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
// From here on a block begins at a huge page. Its last part is in small pages, so that
// no memory is spent on bytes that the piece does not have.
constexpr size_t kLarge = size_t{4} << 20;

size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

Result<std::byte*> map_pages(size_t size) {
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) return static_cast<std::byte*>(memory);
  return no_space("memory: the system refuses {} bytes for a new piece", size);
}

// Maps memory that begins at a huge page, and gives back what was mapped around it.
Result<std::byte*> map_huge_pages(size_t size) {
  std::byte* const all = HOLDFAST_TRY(map_pages(size + kHugePage));
  const auto address = reinterpret_cast<uintptr_t>(all);
  const size_t before = round_up(address, kHugePage) - address;
  if (before > 0) ::munmap(all, before);
  if (before < kHugePage) ::munmap(all + before + size, kHugePage - before);
  // Only a wish: without huge pages the memory is slower to fill.
  static_cast<void>(::madvise(all + before, size, MADV_HUGEPAGE));
  return all + before;
}

LocalPiece dense_piece(const std::shared_ptr<const Tensor>& tensor, const Box& box,
                       ByteSpan memory) {
  return {.tensor = tensor,
          .box = box,
          .memory = memory,
          .map = Map::dense(box, bytes_of(tensor->dtype))};
}

size_t size_of(const Tensor& tensor, const Box& box) {
  return static_cast<size_t>(box.elements() * bytes_of(tensor.dtype));
}

}  // namespace

HostStorage::~HostStorage() {
  MutexLock lock(mutex_);
  for (const auto& [memory, mapped] : blocks_) ::munmap(memory, mapped);
}

Result<LocalPiece> HostStorage::make(const std::shared_ptr<const Tensor>& tensor,
                                     const Box& box) {
  const size_t size = size_of(*tensor, box);
  const size_t mapped = round_up(std::max<size_t>(size, 1), kPage);
  std::byte* const memory =
      HOLDFAST_TRY(size >= kLarge ? map_huge_pages(mapped) : map_pages(mapped));
  MutexLock lock(mutex_);
  blocks_[memory] = mapped;
  bytes_ += static_cast<int64_t>(size);
  return dense_piece(tensor, box, ByteSpan(memory, size));
}

void HostStorage::free(const LocalPiece& piece) {
  MutexLock lock(mutex_);
  const auto block = blocks_.find(piece.memory.data());
  if (block == blocks_.end()) return;
  ::munmap(block->first, block->second);
  blocks_.erase(block);
  bytes_ -= static_cast<int64_t>(piece.memory.size());
}

int64_t HostStorage::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

GivenStorage::GivenStorage(const LocalPieces& pieces) : given_(pieces) {
  for (const LocalPiece& piece : pieces) {
    pieces_[{piece.tensor->name, piece.box}] = &piece;
  }
}

Result<void> GivenStorage::check() const {
  const LocalState state{.collection = HOLDFAST_TRY(collection_of_pieces(given_)),
                         .pieces = without_nothing(given_)};
  HOLDFAST_TRY(state.check());
  return check_no_overlap(state);
}

Result<LocalPiece> GivenStorage::make(const std::shared_ptr<const Tensor>& tensor,
                                      const Box& box) {
  const auto piece = pieces_.find({tensor->name, box});
  HOLDFAST_CHECK(piece != pieces_.end(), "a box that this rank lacks");
  return *piece->second;
}

bool GivenStorage::keeps(const LocalPiece& old) const {
  const auto piece = pieces_.find({old.tensor->name, old.box});
  return piece != pieces_.end() &&
         piece->second->memory.data() == old.memory.data() &&
         piece->second->map == old.map;
}

DeviceStorage::~DeviceStorage() {
  MutexLock lock(mutex_);
  for (const auto& [address, block] : blocks_) device_.free(block);
}

Result<LocalPiece> DeviceStorage::make(const std::shared_ptr<const Tensor>& tensor,
                                       const Box& box) {
  const size_t size = size_of(*tensor, box);
  const ByteSpan block = HOLDFAST_TRY(
      device_.allocate(static_cast<int64_t>(std::max<size_t>(size, 1)), reserve_));
  MutexLock lock(mutex_);
  blocks_[block.data()] = block;
  LocalPiece piece = dense_piece(tensor, box, block.first(size));
  piece.device = &device_;
  return piece;
}

void DeviceStorage::free(const LocalPiece& piece) {
  MutexLock lock(mutex_);
  const auto block = blocks_.find(piece.memory.data());
  if (block == blocks_.end()) return;
  device_.free(block->second);
  blocks_.erase(block);
}

}  // namespace holdfast
