#include <algorithm>
#include <array>

#include "holdfast/base/checked.h"
#include "holdfast/hdf5/datatype_internal.h"
#include "holdfast/hdf5/encode_internal.h"
#include "holdfast/hdf5/object_header_internal.h"

namespace holdfast::hdf5 {
namespace {

// How many symbols a node has at most, and how many children a node of a B-tree has:
// twice the numbers in the superblock. These are those of HDF5 itself.
constexpr uint64_t kLeafK = 4;
constexpr uint64_t kTreeK = 16;
constexpr size_t kSymbolBytes = 40;
constexpr size_t kEndField = 40;

}  // namespace

void Encoder::number(uint64_t value, size_t bytes) {
  append(Fields().number(value, bytes).take());
}
void Encoder::letters(std::string_view text) { append(bytes_of(text)); }
void Encoder::append(ByteView bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void Encoder::align(int64_t to) {
  const auto size = static_cast<size_t>(to);
  bytes_.resize(divide_up(bytes_.size(), size) * size);
}

size_t Encoder::begin_file() {
  letters(kSignature);
  number(0, 5);       // versions of the parts
  number(0x0808, 3);  // bytes of addresses and of lengths
  number(kLeafK, 2);
  number(kTreeK, 2);
  number(0, 4);
  number(0, 8);           // the base
  number(kUndefined, 8);  // no list of free bytes
  number(0, 8);           // the end, put_end()
  number(kUndefined, 8);  // no driver
  const size_t root = bytes_.size();
  number(0, kSymbolBytes);
  return root;
}

void Encoder::finish_superblock(size_t at, const GroupPlace& root) {
  put_address(at + 8, root.header);
  put_address(at + 16, 1);  // the next fields are those of a group
  put_address(at + 24, root.tree);
  put_address(at + 32, root.heap);
}

void Encoder::put_end(uint64_t end) { put_address(kEndField, end); }

void Encoder::put_address(size_t at, uint64_t address) {
  store_little_endian(address, ByteSpan(bytes_).subspan(at, 8));
}

uint64_t Encoder::add_texts(std::span<const std::string_view> texts) {
  if (texts.empty()) return kUndefined;
  align(8);
  size_t size = 16;
  for (const std::string_view text : texts) size += 16 + rounded(text.size());
  // HDF5 reads no smaller collection. What is left is one free object, with its header.
  const size_t whole = std::max<size_t>(4096, rounded(size + 16));
  const uint64_t address = bytes_.size();
  letters("GCOL");
  number(1, 4);
  number(whole, 8);
  uint64_t index = 1;
  for (const std::string_view text : texts) {
    number(index++, 2);
    number(1, 6);  // one reference
    number(text.size(), 8);
    letters(text);
    align(8);
  }
  const size_t left = whole - (bytes_.size() - address);
  number(0, 8);
  number(left, 8);
  bytes_.resize(address + whole);
  return address;
}

uint64_t Encoder::add_header(std::span<const Message> messages, uint64_t links) {
  align(8);
  const uint64_t address = bytes_.size();
  size_t size = 0;
  for (const Message& message : messages) size += 8 + rounded(message.data.size());
  number(1, 2);
  number(messages.size(), 2);
  number(links, 4);
  number(size, 8);
  for (const Message& message : messages) {
    number(static_cast<uint16_t>(message.type), 2);
    number(rounded(message.data.size()), 2);
    number(0, 4);
    append(message.data);
    align(8);
  }
  return address;
}

std::pair<uint64_t, size_t> Encoder::add_dataset(const NewDataset& dataset) {
  // Elements are allocated late, and the fill value is the usual one.
  const Bytes fill =
      Fields().number(2, 1).number(2, 1).number(2, 1).number(0, 1).take();
  const Bytes layout = Fields()
                           .number(3, 1)
                           .number(1, 1)
                           .number(dataset.address, 8)
                           .number(dataset.bytes, 8)
                           .take();
  std::vector<Message> messages{{MessageType::kDataspace, dataset.space},
                                {MessageType::kDatatype, dataset.type},
                                {MessageType::kFill, fill}};
  for (const Bytes& attribute : dataset.attributes) {
    messages.push_back({MessageType::kAttribute, attribute});
  }
  // The layout is last, because the place of the address counts from the end.
  messages.push_back({MessageType::kLayout, layout});
  const uint64_t header = add_header(messages, dataset.links);
  return {header, bytes_.size() - rounded(layout.size()) + 2};
}

uint64_t Encoder::add_bytes(ByteView bytes) {
  align(8);
  const uint64_t address = bytes_.size();
  append(bytes);
  return address;
}

GroupPlace Encoder::add_group(std::span<const Symbol> symbols,
                              std::span<const Bytes> attributes) {
  GroupPlace place;
  std::vector<NameOffsets> names;
  place.heap = add_names(symbols, names);
  place.tree = add_tree(symbols, names);
  std::vector<Message> messages{
      {MessageType::kSymbolTable,
       Fields().number(place.tree, 8).number(place.heap, 8).take()}};
  for (const Bytes& attribute : attributes) {
    messages.push_back({MessageType::kAttribute, attribute});
  }
  place.header = add_header(messages, 1);
  return place;
}

// The local heap. Its first name is empty, because the first key of a B-tree is it.
uint64_t Encoder::add_names(std::span<const Symbol> symbols,
                            std::vector<NameOffsets>& offsets) {
  Bytes names(8);
  const auto add = [&](std::string_view text) {
    const uint64_t at = names.size();
    const ByteView bytes = bytes_of(text);
    names.insert(names.end(), bytes.begin(), bytes.end());
    names.resize(rounded(names.size() + 1));
    return at;
  };
  for (const Symbol& symbol : symbols) {
    offsets.push_back({.name = add(symbol.name)});
    if (symbol.target) offsets.back().target = add(*symbol.target);
  }
  align(8);
  const uint64_t address = bytes_.size();
  letters("HEAP");
  number(0, 4);
  number(names.size(), 8);
  number(1, 8);  // nothing is free
  number(address + 32, 8);
  append(names);
  return address;
}

Encoder::Child Encoder::add_symbols(std::span<const Symbol> symbols,
                                    std::span<const NameOffsets> names) {
  const uint64_t address = bytes_.size();
  letters("SNOD");
  number(1, 2);
  number(symbols.size(), 2);
  for (size_t i = 0; i < symbols.size(); ++i) {
    const GroupPlace& group = symbols[i].group;
    const bool is_group = group.header != kUndefined;
    const bool is_soft = symbols[i].target.has_value();
    number(names[i].name, 8);
    number(is_soft ? kUndefined : symbols[i].header, 8);
    number(is_soft ? 2 : (is_group ? 1 : 0), 8);
    number(is_soft ? names[i].target : (is_group ? group.tree : 0), 8);
    number(is_group ? group.heap : 0, 8);
  }
  bytes_.resize(address + 8 + 2 * kLeafK * kSymbolBytes);
  return {address, names.back().name};
}

Encoder::Child Encoder::add_node(std::span<const Child> children, int level,
                                 uint64_t first_name) {
  const uint64_t address = bytes_.size();
  letters("TREE");
  number(0, 1);
  number(static_cast<uint64_t>(level), 1);
  number(children.size(), 2);
  number(kUndefined, 8);  // the siblings, add_tree()
  number(kUndefined, 8);
  number(first_name, 8);
  for (const Child& child : children) {
    number(child.address, 8);
    number(child.last_name, 8);
  }
  bytes_.resize(address + 24 + (2 * kTreeK + 1) * 8 + 2 * kTreeK * 8);
  return {address, children.empty() ? 0 : children.back().last_name};
}

uint64_t Encoder::add_tree(std::span<const Symbol> symbols,
                           std::span<const NameOffsets> names) {
  std::vector<Child> children;
  for (size_t i = 0; i < symbols.size(); i += 2 * kLeafK) {
    const size_t count = std::min<size_t>(2 * kLeafK, symbols.size() - i);
    children.push_back(add_symbols(symbols.subspan(i, count), names.subspan(i, count)));
  }
  for (int level = 0;; ++level) {
    std::vector<Child> nodes;
    uint64_t before = 0;  // the last name of the node to the left
    for (size_t i = 0; i < std::max<size_t>(children.size(), 1); i += 2 * kTreeK) {
      const size_t count = std::min<size_t>(2 * kTreeK, children.size() - i);
      nodes.push_back(add_node(std::span(children).subspan(i, count), level, before));
      before = nodes.back().last_name;
    }
    for (size_t i = 1; i < nodes.size(); ++i) {
      put_address(nodes[i].address + 8, nodes[i - 1].address);
      put_address(nodes[i - 1].address + 16, nodes[i].address);
    }
    if (nodes.size() == 1) return nodes.front().address;
    children = std::move(nodes);
  }
}

}  // namespace holdfast::hdf5
