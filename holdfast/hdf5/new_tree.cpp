// B-trees of version 2, which index the names of newer groups, and chunks of datasets of
// which several dimensions may grow.
#include <algorithm>
#include <bit>
#include <unordered_set>

#include "holdfast/hdf5/chunk_index_internal.h"

namespace holdfast::hdf5 {
namespace {

constexpr std::string_view kTree = "B-tree of version 2";
constexpr int kMostDepth = 16;
// Four letters, version, type, and the checksum at the end.
constexpr uint64_t kNodeOverhead = 10;
constexpr uint64_t kMostNodeBytes = uint64_t{1} << 24;

// How many bytes hold any number up to `most`.
uint64_t bytes_for(uint64_t most) {
  return (static_cast<uint64_t>(std::bit_width(std::max<uint64_t>(most, 1))) - 1) / 8 +
         1;
}

class NewTreeVisitor {
 public:
  NewTreeVisitor(const File& file, uint8_t type, const std::string& where,
                 const VisitRecord& visit)
      : file_(file), type_(type), where_(where), visit_(visit) {}

  Result<void> visit_all(uint64_t header) {
    const Sizes sizes = file_.sizes();
    const Bytes head = HOLDFAST_TRY(file_.read_block(
        header, 22 + uint64_t{sizes.offset} + sizes.length, "BTHD", where_, kTree));
    HOLDFAST_TRY(check_sum(head, where_, kTree));
    Cursor cursor = file_.cursor(head);
    cursor.skip(5);
    const uint8_t type = cursor.u8();
    node_bytes_ = cursor.u32();
    record_bytes_ = cursor.u16();
    const uint16_t depth = cursor.u16();
    cursor.skip(2);
    const uint64_t root = cursor.address();
    const uint16_t count = cursor.u16();
    if (type != type_ || record_bytes_ == 0 || depth > kMostDepth ||
        node_bytes_ > kMostNodeBytes || node_bytes_ < kNodeOverhead + record_bytes_) {
      return corrupt(
          "{}: {} has type {}, depth {} and nodes of {} bytes; expected type {}",
          where_, kTree, type, depth, node_bytes_, type_);
    }
    measure_levels(depth);
    return count == 0 ? Result<void>() : visit_node(root, count, depth);
  }

 private:
  // What the node's pointers to its children look like, which follows from how many
  // records fit into the nodes below.
  struct Level {
    uint64_t total_bytes = 0;  // of the number of all records below a child
    uint64_t most_total = 0;
  };

  void measure_levels(int depth) {
    const uint64_t leaf = (node_bytes_ - kNodeOverhead) / record_bytes_;
    count_bytes_ = bytes_for(leaf);
    levels_ = {{0, leaf}};
    for (int k = 1; k <= depth; ++k) {
      const uint64_t pointer =
          file_.sizes().offset + count_bytes_ + levels_.back().total_bytes;
      const uint64_t room =
          node_bytes_ - std::min(node_bytes_, kNodeOverhead + pointer);
      const uint64_t most = room / (record_bytes_ + pointer);
      const uint64_t below = std::min(levels_.back().most_total, uint64_t{1} << 40);
      const uint64_t total = (most + 1) * below + most;
      levels_.push_back({bytes_for(total), total});
    }
  }

  Result<void> visit_node(uint64_t address, uint64_t count, int depth) {
    if (!seen_.insert(address).second) {
      return corrupt("{}: {} has the node at {} twice; expected it once", where_, kTree,
                     address);
    }
    const Level below = depth == 0 ? Level{} : levels_[static_cast<size_t>(depth) - 1];
    const uint64_t pointer = file_.sizes().offset + count_bytes_ + below.total_bytes;
    const uint64_t used = kNodeOverhead + count * record_bytes_ +
                          (depth == 0 ? 0 : (count + 1) * pointer);
    if (used > node_bytes_) {
      return corrupt("{}: {} has {} records in a node of {} bytes; expected fewer",
                     where_, kTree, count, node_bytes_);
    }
    const Bytes node = HOLDFAST_TRY(
        file_.read_block(address, used, depth == 0 ? "BTLF" : "BTIN", where_, kTree));
    HOLDFAST_TRY(check_sum(node, where_, "node of a B-tree of version 2"));
    Cursor cursor = file_.cursor(node);
    cursor.skip(6);
    for (uint64_t i = 0; i < count; ++i) {
      IndexRecord record{
          .address = address + cursor.at(), .block = address, .block_bytes = used};
      record.bytes = cursor.take(record_bytes_);
      HOLDFAST_TRY(visit_(record));
    }
    for (uint64_t i = 0; depth > 0 && i <= count; ++i) {
      const uint64_t child = cursor.address();
      const uint64_t records = cursor.number(count_bytes_);
      cursor.skip(below.total_bytes);
      HOLDFAST_TRY(visit_node(child, records, depth - 1));
    }
    return {};
  }

  const File& file_;
  const uint8_t type_;
  const std::string& where_;
  const VisitRecord& visit_;
  uint64_t node_bytes_ = 0, record_bytes_ = 0, count_bytes_ = 0;
  std::vector<Level> levels_;
  std::unordered_set<uint64_t> seen_;
};

}  // namespace

Result<void> visit_new_tree(const File& file, uint64_t header, uint8_t type,
                            const std::string& where, const VisitRecord& visit) {
  return NewTreeVisitor(file, type, where, visit).visit_all(header);
}

}  // namespace holdfast::hdf5
