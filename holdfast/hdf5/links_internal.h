// The links of a group, in both ways that HDF5 stores them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "holdfast/hdf5/object_header_internal.h"

namespace holdfast::hdf5 {

struct Link {
  std::string name{};
  uint64_t address = kUndefined;  // of the object; kUndefined for a soft link
  std::string target{};           // of a soft link: a path
  bool elsewhere = false;         // a link to another file
};

bool is_group(const ObjectHeader& header);
Result<std::vector<Link>> read_links(const File& file, const ObjectHeader& header,
                                     const std::string& where);

// A group of the older kind: a B-tree of version 1 and a local heap of names.
Result<std::vector<Link>> read_symbol_table(const File& file, const Message& message,
                                            const std::string& where);

// Visits the nodes of a B-tree of version 1 and calls `visit` for each child of a leaf,
// with the bytes of the key before it and where that key and the child's address are.
struct TreeEntry {
  ByteView key{};
  uint64_t key_address = 0;
  uint64_t child = 0;
};
using VisitEntry = std::function<Result<void>(const TreeEntry& entry)>;
struct TreeKind {
  uint8_t type = 0;  // 0 for groups, 1 for chunks
  uint64_t key_bytes = 0;
  std::string_view what;  // for messages
};
Result<void> visit_tree(const File& file, uint64_t root, const TreeKind& kind,
                        const std::string& where, const VisitEntry& visit);

}  // namespace holdfast::hdf5
