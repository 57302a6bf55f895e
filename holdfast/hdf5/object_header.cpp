#include <algorithm>
#include <unordered_set>

#include "holdfast/hdf5/object_header_internal.h"

namespace holdfast::hdf5 {
namespace {

constexpr std::string_view kHeader = "object header";
// A header of more bytes is taken for an attack. The attributes of large headers lie in
// a heap.
constexpr uint64_t kMostHeaderBytes = uint64_t{64} << 20;

// Reads the blocks of one header, one after the other.
class HeaderReader {
 public:
  HeaderReader(const File& file, uint64_t address, const std::string& where)
      : file_(file), where_(where) {
    header_.address = address;
  }

  Result<ObjectHeader> read() && {
    const uint64_t there = static_cast<uint64_t>(file_.source()->size() - file_.base());
    const uint64_t address = header_.address;
    const uint64_t most = address < there ? std::min<uint64_t>(there - address, 64) : 0;
    const Bytes head = HOLDFAST_TRY(file_.read(address, most, where_, kHeader));
    const bool is_new = text_of(head).starts_with("OHDR");
    HOLDFAST_TRY(is_new ? read_new_head(head) : read_old_head(head));
    // Messages of a block may add blocks.
    for (size_t i = 0; i < blocks_.size(); ++i) {
      HOLDFAST_TRY(is_new ? read_new_block(blocks_[i], i == 0)
                          : read_old_block(blocks_[i]));
    }
    return std::move(header_);
  }

 private:
  struct Block {
    uint64_t address;
    uint64_t bytes;
    uint64_t skipped = 0;  // bytes before the first message
  };

  Result<void> add_block(Block block) {
    total_ += std::min(block.bytes, kMostHeaderBytes + 1);
    if (total_ > kMostHeaderBytes) {
      return corrupt("{}: {} has more than {} bytes", where_, kHeader,
                     kMostHeaderBytes);
    }
    if (!seen_.insert(block.address).second) {
      return corrupt("{}: {} continues at {}, where it was before", where_, kHeader,
                     block.address);
    }
    blocks_.push_back(block);
    return {};
  }

  Result<void> read_old_head(ByteView head) {
    Cursor cursor = file_.cursor(head);
    header_.version = cursor.u8();
    cursor.skip(1);
    most_messages_ = cursor.u16();
    cursor.skip(4);
    const uint64_t bytes = cursor.u32();
    cursor.skip(4);
    HOLDFAST_TRY(cursor.check(where_, kHeader));
    if (header_.version != 1) {
      return corrupt("{}: {} at {} has the version {}; expected 1 or 2", where_,
                     kHeader, header_.address, header_.version);
    }
    return add_block({header_.address + cursor.at(), bytes});
  }

  Result<void> read_new_head(ByteView head) {
    Cursor cursor = file_.cursor(head);
    cursor.skip(4);
    header_.version = cursor.u8();
    flags_ = cursor.u8();
    if ((flags_ & 0x20) != 0) cursor.skip(16);
    if ((flags_ & 0x10) != 0) cursor.skip(4);
    const uint64_t bytes = cursor.number(size_t{1} << (flags_ & 3));
    HOLDFAST_TRY(cursor.check(where_, kHeader));
    if (header_.version != 2 || bytes > kMostHeaderBytes) {
      return corrupt("{}: {} at {} has the version {} and {} bytes; expected version 2",
                     where_, kHeader, header_.address, header_.version, bytes);
    }
    return add_block({header_.address, cursor.at() + bytes + 4, cursor.at()});
  }

  Result<void> read_old_block(Block block) {
    const Bytes bytes =
        HOLDFAST_TRY(file_.read(block.address, block.bytes, where_, kHeader));
    Cursor cursor = file_.cursor(bytes);
    while (cursor.left() >= 8 && header_.messages.size() < most_messages_) {
      Message message{.type = static_cast<MessageType>(cursor.u16())};
      const uint16_t size = cursor.u16();
      message.flags = cursor.u8();
      cursor.skip(3);
      HOLDFAST_TRY(add_message(std::move(message), size, cursor, block));
    }
    return {};
  }

  Result<void> read_new_block(Block block, bool first) {
    const std::string_view letters = first ? "OHDR" : "OCHK";
    if (block.bytes < 8) {
      return corrupt("{}: {} continues with {} bytes; expected 8 or more", where_,
                     kHeader, block.bytes);
    }
    const Bytes bytes = HOLDFAST_TRY(
        file_.read_block(block.address, block.bytes, letters, where_, kHeader));
    HOLDFAST_TRY(check_sum(bytes, where_, kHeader));
    Cursor cursor = file_.cursor(ByteView(bytes).first(bytes.size() - 4));
    cursor.skip(first ? block.skipped : 4);
    const size_t prefix = (flags_ & 4) != 0 ? 6 : 4;
    while (cursor.left() >= prefix) {
      Message message{.type = static_cast<MessageType>(cursor.u8())};
      const uint16_t size = cursor.u16();
      message.flags = cursor.u8();
      cursor.skip(prefix - 4);
      HOLDFAST_TRY(add_message(std::move(message), size, cursor, block));
    }
    return {};
  }

  Result<void> add_message(Message message, uint16_t size, Cursor& cursor,
                           const Block& block) {
    message.address = block.address + cursor.at();
    message.data = copy_of(cursor.take(size));
    message.block = block.address;
    message.block_bytes = block.bytes;
    HOLDFAST_TRY(cursor.check(where_, kHeader));
    if (message.type == MessageType::kContinuation) {
      Cursor fields = file_.cursor(message.data);
      const uint64_t address = fields.address(), bytes = fields.length();
      HOLDFAST_TRY(fields.check(where_, "continuation of the object header"));
      HOLDFAST_TRY(add_block({address, bytes}));
    }
    // Messages without meaning still count, because an old header has their number.
    header_.messages.push_back(std::move(message));
    return {};
  }

  const File& file_;
  const std::string& where_;
  ObjectHeader header_;
  uint8_t flags_ = 0;
  size_t most_messages_ = SIZE_MAX;
  uint64_t total_ = 0;
  std::vector<Block> blocks_;
  std::unordered_set<uint64_t> seen_;
};

}  // namespace

const Message* ObjectHeader::find(MessageType type) const {
  const auto found = std::ranges::find(messages, type, &Message::type);
  return found == messages.end() ? nullptr : &*found;
}

Result<ObjectHeader> read_object_header(const File& file, uint64_t address,
                                        const std::string& where) {
  return HeaderReader(file, address, where).read();
}

Result<Bytes> resolve_shared(const File& file, bool shared, ByteView data,
                             MessageType type, const std::string& where) {
  if (!shared) return copy_of(data);
  Cursor cursor = file.cursor(data);
  const uint8_t version = cursor.u8(), kind = cursor.u8();
  if (version == 1) cursor.skip(6);
  if (version < 1 || version > 3 || (version == 3 && kind != 2)) {
    return unsupported(
        "{} has a message in the heap of shared messages; expected it in its own "
        "header",
        where);
  }
  const uint64_t address = cursor.address();
  HOLDFAST_TRY(cursor.check(where, "shared message"));
  const ObjectHeader header = HOLDFAST_TRY(read_object_header(file, address, where));
  const Message* found = header.find(type);
  if (found == nullptr || found->shared()) {
    return corrupt("{}: the object header at {} has no message of type {} of its own",
                   where, address, static_cast<int>(type));
  }
  return found->data;
}

}  // namespace holdfast::hdf5
