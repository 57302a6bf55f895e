#include <algorithm>

#include "holdfast/hdf5/chunk_index_internal.h"
#include "holdfast/hdf5/fractal_heap_internal.h"
#include "holdfast/hdf5/links_internal.h"

namespace holdfast::hdf5 {
namespace {

constexpr std::string_view kLinkMessage = "link message";
constexpr uint8_t kTreeOfLinkNames = 5;

enum LinkKind : uint8_t { kHardLink = 0, kSoftLink = 1 };

Result<Link> read_link(const File& file, ByteView data, const std::string& where) {
  Cursor cursor = file.cursor(data);
  const uint8_t version = cursor.u8(), flags = cursor.u8();
  const uint8_t kind = (flags & 8) != 0 ? cursor.u8() : uint8_t{kHardLink};
  if ((flags & 4) != 0) cursor.skip(8);
  if ((flags & 16) != 0) cursor.skip(1);
  const uint64_t length = cursor.number(size_t{1} << (flags & 3));
  Link link{.name = std::string(text_of(cursor.take(length)))};
  HOLDFAST_TRY(cursor.check(where, kLinkMessage));
  if (version != 1) {
    return corrupt("{}: {} has the version {}; expected 1", where, kLinkMessage,
                   version);
  }
  if (kind == kHardLink) link.address = cursor.address();
  if (kind == kSoftLink) {
    const uint16_t bytes = cursor.u16();
    link.target = text_of(cursor.take(bytes));
  }
  HOLDFAST_TRY(cursor.check(where, kLinkMessage));
  link.elsewhere = kind > kSoftLink;
  if (kind == kHardLink && link.address == kUndefined) {
    return corrupt("{}: {} is a link without an address", where, printable(link.name));
  }
  return link;
}

// Links that lie in a fractal heap, because there are many.
Result<void> add_heap_links(const File& file, const Message& info,
                            const std::string& where, std::vector<Link>& links) {
  Cursor cursor = file.cursor(info.data);
  cursor.skip(1);
  const uint8_t flags = cursor.u8();
  if ((flags & 1) != 0) cursor.skip(8);
  const uint64_t address = cursor.address(), names = cursor.address();
  HOLDFAST_TRY(cursor.check(where, "link info message"));
  if (address == kUndefined) return {};
  FractalHeap heap = HOLDFAST_TRY(FractalHeap::open(file, address, where));
  const auto add = [&](const IndexRecord& entry) -> Result<void> {
    const ByteView record = entry.bytes;
    if (record.size() < 4 + heap.id_bytes()) {
      return corrupt("{}: B-tree of names has records of {} bytes", where,
                     record.size());
    }
    const auto object = HOLDFAST_TRY(heap.read_object(record.subspan(4)));
    if (!object) return unsupported("{}: has a link whose name is too long", where);
    links.push_back(HOLDFAST_TRY(read_link(file, *object, where)));
    return {};
  };
  return visit_new_tree(file, names, kTreeOfLinkNames, where, add);
}

}  // namespace

bool is_group(const ObjectHeader& header) {
  return header.find(MessageType::kSymbolTable) != nullptr ||
         header.find(MessageType::kLinkInfo) != nullptr ||
         header.find(MessageType::kLink) != nullptr;
}

Result<std::vector<Link>> read_links(const File& file, const ObjectHeader& header,
                                     const std::string& where) {
  if (const Message* table = header.find(MessageType::kSymbolTable)) {
    return read_symbol_table(file, *table, where);
  }
  std::vector<Link> links;
  for (const Message& message : header.messages) {
    if (message.type != MessageType::kLink) continue;
    links.push_back(HOLDFAST_TRY(read_link(file, message.data, where)));
  }
  if (const Message* info = header.find(MessageType::kLinkInfo)) {
    HOLDFAST_TRY(add_heap_links(file, *info, where, links));
  }
  std::ranges::sort(links, {}, &Link::name);
  return links;
}

}  // namespace holdfast::hdf5
