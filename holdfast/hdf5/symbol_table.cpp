// Groups of the older kind: B-trees of version 1, nodes of symbols, local heaps.
#include <unordered_set>

#include "holdfast/hdf5/links_internal.h"

namespace holdfast::hdf5 {
namespace {

// A file of 2^63 bytes needs fewer levels.
constexpr int kMostLevels = 32;
constexpr uint64_t kMostHeapBytes = uint64_t{1} << 30;
constexpr std::string_view kSymbols = "node of symbols";

class TreeVisitor {
 public:
  TreeVisitor(const File& file, const TreeKind& kind, const std::string& where,
              const VisitEntry& visit)
      : file_(file), kind_(kind), where_(where), visit_(visit) {}

  // `level` is the level that the node must have; any if it is negative.
  Result<void> visit_node(uint64_t address, int level) {
    if (!seen_.insert(address).second) {
      return corrupt("{}: {} has the node at {} twice; expected it once", where_,
                     kind_.what, address);
    }
    const uint64_t prefix = 8 + 2 * uint64_t{file_.sizes().offset};
    const Bytes head =
        HOLDFAST_TRY(file_.read_block(address, prefix, "TREE", where_, kind_.what));
    const auto type = static_cast<uint8_t>(head[4]),
               own = static_cast<uint8_t>(head[5]);
    const auto count = load_little_endian<uint16_t>(ByteView(head).subspan(6));
    if (type != kind_.type || own > kMostLevels || (level >= 0 && own != level)) {
      return corrupt(
          "{}: {} has at {} a node of type {} and level {}; expected {} and {}", where_,
          kind_.what, address, type, own, kind_.type, level < 0 ? kMostLevels : level);
    }
    const uint64_t step = kind_.key_bytes + file_.sizes().offset;
    const Bytes entries =
        HOLDFAST_TRY(file_.read(address + prefix, count * step, where_, kind_.what));
    return visit_entries(entries, address + prefix, count, own);
  }

 private:
  Result<void> visit_entries(ByteView entries, uint64_t address, uint16_t count,
                             int level) {
    Cursor cursor = file_.cursor(entries);
    for (uint16_t i = 0; i < count; ++i) {
      TreeEntry entry{.key_address = address + cursor.at()};
      entry.key = cursor.take(kind_.key_bytes);
      entry.child = cursor.address();
      HOLDFAST_TRY(level == 0 ? visit_(entry) : visit_node(entry.child, level - 1));
    }
    return {};
  }

  const File& file_;
  const TreeKind& kind_;
  const std::string& where_;
  const VisitEntry& visit_;
  std::unordered_set<uint64_t> seen_;
};

// The names of a group.
Result<Bytes> read_local_heap(const File& file, uint64_t address,
                              const std::string& where) {
  const Sizes sizes = file.sizes();
  const Bytes head = HOLDFAST_TRY(
      file.read_block(address, 8 + 2 * uint64_t{sizes.length} + sizes.offset, "HEAP",
                      where, "local heap"));
  Cursor cursor = file.cursor(head);
  cursor.skip(8);
  const uint64_t bytes = cursor.length();
  cursor.skip(sizes.length);
  const uint64_t data = cursor.address();
  if (bytes > kMostHeapBytes) {
    return corrupt("{}: local heap has {} bytes; expected at most {}", where, bytes,
                   kMostHeapBytes);
  }
  return file.read(data, bytes, where, "local heap");
}

class SymbolReader {
 public:
  SymbolReader(const File& file, ByteView names, const std::string& where)
      : file_(file), names_(names), where_(where) {}

  Result<void> read_node(uint64_t address) {
    if (!seen_.insert(address).second) {
      return corrupt("{}: B-tree has the {} at {} twice", where_, kSymbols, address);
    }
    const Bytes head =
        HOLDFAST_TRY(file_.read_block(address, 8, "SNOD", where_, kSymbols));
    const auto count = load_little_endian<uint16_t>(ByteView(head).subspan(6));
    const uint64_t step = 24 + 2 * uint64_t{file_.sizes().offset};
    const Bytes entries =
        HOLDFAST_TRY(file_.read(address + 8, count * step, where_, kSymbols));
    Cursor cursor = file_.cursor(entries);
    for (uint16_t i = 0; i < count; ++i) HOLDFAST_TRY(read_symbol(cursor));
    return {};
  }

  std::vector<Link> take_links() && { return std::move(links_); }

 private:
  Result<void> read_symbol(Cursor& cursor) {
    const uint64_t name = cursor.number(file_.sizes().offset);
    Link link{.name = HOLDFAST_TRY(text_at(name))};
    link.address = cursor.address();
    const uint32_t cached = cursor.u32();
    cursor.skip(4);
    const uint32_t value = cursor.u32();
    cursor.skip(12);
    if (cached == 2) {
      link.target = HOLDFAST_TRY(text_at(value));
      link.address = kUndefined;
    } else if (link.address == kUndefined) {
      return corrupt("{}: {} is a link without an address", where_,
                     printable(link.name));
    }
    links_.push_back(std::move(link));
    return {};
  }

  // No byte of the heap belongs to two names, so all together are not longer than it.
  Result<std::string> text_at(uint64_t offset) {
    const std::string_view names = text_of(names_);
    const size_t end = offset < names.size() ? names.find('\0', offset) : names.npos;
    if (end == names.npos) {
      return corrupt("{}: {} has a name at {} of a local heap of {} bytes", where_,
                     kSymbols, offset, names.size());
    }
    taken_ += end - offset;
    if (taken_ > names.size()) {
      return corrupt("{}: {} has names that overlap in a local heap of {} bytes", where_,
                     kSymbols, names.size());
    }
    return std::string(names.substr(offset, end - offset));
  }

  const File& file_;
  const ByteView names_;
  const std::string& where_;
  std::vector<Link> links_;
  size_t taken_ = 0;  // bytes of the names so far
  std::unordered_set<uint64_t> seen_;
};

}  // namespace

Result<void> visit_tree(const File& file, uint64_t root, const TreeKind& kind,
                        const std::string& where, const VisitEntry& visit) {
  return TreeVisitor(file, kind, where, visit).visit_node(root, -1);
}

Result<std::vector<Link>> read_symbol_table(const File& file, const Message& message,
                                            const std::string& where) {
  Cursor cursor = file.cursor(message.data);
  const uint64_t tree = cursor.address(), heap = cursor.address();
  HOLDFAST_TRY(cursor.check(where, "symbol table message"));
  const Bytes names = HOLDFAST_TRY(read_local_heap(file, heap, where));
  SymbolReader symbols(file, names, where);
  const TreeKind kind{.type = 0, .key_bytes = file.sizes().length, .what = "B-tree"};
  HOLDFAST_TRY(visit_tree(file, tree, kind, where, [&](const TreeEntry& entry) {
    return symbols.read_node(entry.child);
  }));
  return std::move(symbols).take_links();
}

}  // namespace holdfast::hdf5
