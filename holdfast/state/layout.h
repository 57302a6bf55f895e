// A layout says which holder has which box of which tensor. Holders are whatever can
// hold bytes of a tensor (a device's memory, a file on a host's disk, a file on shared
// storage); a topology says how far two holders are from each other.
//
// These are true for every Layout: each box lies inside its tensor; the boxes of one
// tensor on one holder are disjoint; no map goes before byte 0 or puts two elements on
// one byte; no two pieces without gaps share a byte of their holder. Whether pieces
// with gaps share bytes is not checked: whoever creates them must make sure that they
// do not.
//
// A layout may be incomplete, as after a failure or for a partial load; Collection's
// uncovered() tells. Replicas are explicit: a slice lists all its holders.
//
// A layout is stored as slices, one for each distinct box of a tensor. A slice has one
// piece for each holder of the box. Parallel layouts repeat the same boxes, and cutting
// boxes is what takes time: so a thousand replicas are cut only once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/state/box.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

using HolderId = uint32_t;
using HostId = uint32_t;

enum class HolderKind : uint8_t {
  kMemory,  // a device's (or rank's) memory
  kFile,    // a file on the host's disk, or on shared storage
};

// Holders of two layouts are the same holder if they have the same name.
struct Holder {
  std::string name{};
  HolderKind kind = HolderKind::kMemory;
  HostId host = 0;

  friend bool operator==(const Holder&, const Holder&) = default;
};

// A machine, or shared storage. Shared storage counts as a host of its own, because
// every machine reaches it over the network.
struct Host {
  std::string name{};
  bool shared_storage = false;
  uint32_t island = 0;  // hosts of one rack or one fast network have the same number

  friend bool operator==(const Host&, const Host&) = default;
};

// How far a holder's bytes are from another holder, from near to far. A plan takes
// bytes from the nearest holders that have them.
enum class Distance : uint8_t {
  kSame,        // the holder itself
  kHostMemory,  // another memory of the same host
  kHostFile,    // a file of the same host
  kIsland,      // a memory of another host in the same island
  kFar,         // any other memory
  kShared,      // a file on shared storage
  kFarFile,     // a file on another host's disk
};

// The machines that a plan runs on. A bandwidth says how many bytes a second one holder
// can send; only the ratios matter, for balancing.
struct Topology {
  std::vector<Host> hosts;
  int64_t memory_bandwidth = 10'000'000'000;
  int64_t file_bandwidth = 2'000'000'000;
  // Bandwidths of single holders, by name, such as one with a slow link.
  std::vector<std::pair<std::string, int64_t>> bandwidth_of;

  // `count` hosts called host-0, host-1, ...
  static Topology uniform(uint32_t count);
  int64_t bandwidth(const Holder& holder) const;
};

// How far the bytes of `from` are from `to`.
Distance distance_between(const Topology& topology, const Holder& from,
                          const Holder& to);

// The memories of `devices` devices on each of `hosts` hosts. device-0 is on host-0.
std::vector<Holder> make_devices(uint32_t hosts, uint32_t devices);

using TensorId = uint32_t;
using PieceId = uint32_t;

// A box and all its holders. A piece is one holder's copy of the box: tensor, box,
// holder and the affine map into the holder's bytes. Pieces are numbered through the
// whole layout.
struct Slice {
  Box box;
  PieceId first = 0;  // its pieces are [first, last), in order of holder
  PieceId last = 0;
};

class Layout {
 public:
  std::span<const Holder> holders() const { return holders_; }
  size_t tensor_count() const { return first_slice_.size() - 1; }
  size_t piece_count() const { return pieces_.size(); }

  // The slices of a tensor, in order of their boxes.
  std::span<const Slice> slices(TensorId tensor) const;
  // The slices' boxes, in the same order.
  std::vector<Box> boxes(TensorId tensor) const;
  HolderId holder(PieceId piece) const { return pieces_[piece].holder; }
  const Box& box(PieceId piece) const { return slices_[pieces_[piece].slice].box; }
  // `element_bytes` is that of the piece's tensor.
  Map map(PieceId piece, int64_t element_bytes) const;

 private:
  friend class LayoutBuilder;
  static constexpr uint32_t kDense = UINT32_MAX;
  struct PieceRecord {
    HolderId holder;
    uint32_t strides;  // index into strides_, or kDense
    uint32_t slice;
    int64_t offset;
  };

  std::vector<Holder> holders_;
  std::vector<uint32_t> first_slice_{0};  // one for each tensor, then the end
  std::vector<Slice> slices_;
  std::vector<PieceRecord> pieces_;
  std::vector<std::array<int64_t, kMaxRank>> strides_;
};

// Collects pieces in any order and checks them. `tensors` must outlive the builder.
class LayoutBuilder {
 public:
  LayoutBuilder(std::span<const Tensor> tensors, std::vector<Holder> holders)
      : tensors_(tensors), holders_(std::move(holders)) {}

  // Without a map: row-major without gaps, at byte `offset` of the holder.
  void add(TensorId tensor, const Box& box, HolderId holder, int64_t offset);
  void add(TensorId tensor, const Box& box, HolderId holder, const Map& map);

  // Fails, naming tensor, box and holder, if something is not true that must be true
  // for every Layout.
  Result<Layout> build() &&;

 private:
  struct Entry {
    TensorId tensor;
    HolderId holder;
    uint32_t strides;
    int64_t offset;
    Box box;
  };

  Result<void> check_entry(const Entry& entry) const;
  Result<void> check_disjoint(const Layout& layout, TensorId tensor) const;
  Result<void> check_bytes(const Layout& layout) const;
  void mark_dense(Entry& entry) const;
  Map map_of(const Entry& entry) const;

  std::span<const Tensor> tensors_;
  std::vector<Holder> holders_;
  std::vector<Entry> entries_;
  std::vector<std::array<int64_t, kMaxRank>> strides_;
};

}  // namespace holdfast
