#include "holdfast/tensorflow/table_reader.h"

#include "holdfast/base/json_text.h"
#include "holdfast/tensorflow/masked_crc.h"
#include "holdfast/tensorflow/wire_format.h"

namespace holdfast::bundle {
namespace {

// A longer key is taken for an attack.
constexpr size_t kMaxKeyBytes = size_t{64} << 10;
// The keys of a table that TensorFlow wrote share prefixes with their neighbours only,
// so that they need no more than a few times the bytes of the file.
constexpr size_t kMaxAllKeyBytes = size_t{512} << 20;

// More entries are taken for an attack: each needs more memory than bytes of the file.
constexpr size_t kMaxEntries = size_t{1} << 21;

constexpr int64_t kHandlesBytes = 40;

ByteView part_of(ByteView bytes, int64_t offset, int64_t count) {
  return bytes.subspan(static_cast<size_t>(offset), static_cast<size_t>(count));
}

// Removes a handle from the front. Returns nullopt unless the block and its trailer
// lie in the first `limit` bytes of the file.
std::optional<BlockHandle> take_handle(ByteView& bytes, int64_t limit) {
  const auto offset = take_varint(bytes), size = take_varint(bytes);
  if (!offset || !size) return std::nullopt;
  const auto most = static_cast<uint64_t>(limit);
  if (*offset > most || *size > most - *offset ||
      most - *offset - *size < uint64_t{kTrailerBytes}) {
    return std::nullopt;
  }
  return BlockHandle{static_cast<int64_t>(*offset), static_cast<int64_t>(*size)};
}

// Reads the handle of the index block.
Result<BlockHandle> read_footer(ByteView file) {
  if (std::ssize(file) < kFooterBytes) {
    return corrupt("is {} bytes long; expected an index of at least {}", file.size(),
                   kFooterBytes);
  }
  const int64_t limit = std::ssize(file) - kFooterBytes;
  const ByteView footer = file.last(static_cast<size_t>(kFooterBytes));
  const auto magic = load_little_endian<uint64_t>(footer.subspan(kHandlesBytes));
  if (magic != kTableMagic) {
    return corrupt("ends with {:016x}; expected {:016x}, the mark of an index", magic,
                   kTableMagic);
  }
  ByteView handles = footer.first(static_cast<size_t>(kHandlesBytes));
  const auto meta = take_handle(handles, limit), index = take_handle(handles, limit);
  if (!meta || !index) {
    return corrupt("the footer names blocks that are not in the file");
  }
  return *index;
}

Result<void> check_block(ByteView file, const BlockHandle& block) {
  const ByteView checked = part_of(file, block.offset, block.size + 1);
  const Crc32c seen = crc32c(checked);
  const Crc32c expected = unmask_crc(load_little_endian<uint32_t>(
      part_of(file, block.offset + block.size + 1, kTrailerBytes - 1)));
  if (seen != expected) {
    return corrupt("the block at {} has crc32c {:08x}; expected {:08x}", block.offset,
                   seen, expected);
  }
  const auto compression = static_cast<int>(checked.back());
  if (compression == 0) return {};
  return unsupported(
      "the block at {} has compression {} ({}); expected an index without compression, "
      "as TensorFlow writes it",
      block.offset, compression, compression == 1 ? "snappy" : "unknown");
}

// Reads the entries of one block.
class BlockReader {
 public:
  BlockReader(ByteView file, const BlockHandle& block)
      : file_(file), block_(block), rest_(part_of(file, block.offset, block.size)) {}

  // Appends the entries. `all_keys` counts the bytes of all keys of the table.
  Result<void> read(std::vector<TableEntry>& entries, size_t& all_keys) {
    HOLDFAST_TRY(read_restarts());
    while (!rest_.empty()) {
      const int64_t at = block_.size - restart_bytes_ - std::ssize(rest_);
      TableEntry entry = HOLDFAST_TRY(read_entry(at));
      all_keys += entry.key.size();
      if (all_keys > kMaxAllKeyBytes || entries.size() == kMaxEntries) {
        return wrong("has more keys than any index needs");
      }
      if (!entries.empty() && entries.back().key >= entry.key) {
        return wrong(fmt::format("has the key {} after {}; expected keys in order",
                                 shown(entry.key), shown(entries.back().key)));
      }
      key_ = entry.key;
      entries.push_back(std::move(entry));
    }
    const bool empty = restart_bytes_ == block_.size;
    if (empty || next_restart_ == restarts_) return {};
    return wrong("has restarts that are not at entries");
  }

 private:
  Error wrong(std::string_view what) const {
    return corrupt("the block at {} {}", block_.offset, what);
  }

  // Removes the restarts from the end of the block.
  Result<void> read_restarts() {
    if (rest_.size() < 4) return wrong("is too short for its restarts");
    restarts_ = load_little_endian<uint32_t>(rest_.last(4));
    if (restarts_ > (rest_.size() - 4) / 4) return wrong("has too many restarts");
    restart_bytes_ = 4 + 4 * int64_t{restarts_};
    table_ = rest_.last(static_cast<size_t>(restart_bytes_));
    rest_ = rest_.first(rest_.size() - table_.size());
    return {};
  }

  // Whether the entry at this offset of the block is at a restart.
  bool at_restart(int64_t at) {
    if (next_restart_ == restarts_) return false;
    const auto restart =
        load_little_endian<uint32_t>(table_.subspan(size_t{4} * next_restart_));
    if (restart != at) return false;
    ++next_restart_;
    return true;
  }

  Result<TableEntry> read_entry(int64_t at) {
    const auto shared = take_varint(rest_), more = take_varint(rest_),
               value = take_varint(rest_);
    if (!shared || !more || !value || *more > rest_.size() ||
        *value > rest_.size() - *more) {
      return wrong(fmt::format("has an entry at {} that ends outside it", at));
    }
    if (*shared > key_.size() || (at_restart(at) && *shared != 0)) {
      return wrong(fmt::format("has an entry at {} that shares {} bytes of a key of {}",
                               at, *shared, key_.size()));
    }
    if (*shared + *more > kMaxKeyBytes) {
      return wrong(fmt::format("has a key of {} bytes, limit {}", *shared + *more,
                               kMaxKeyBytes));
    }
    TableEntry entry{.key = key_.substr(0, static_cast<size_t>(*shared)),
                     .block = block_};
    entry.key += text_of(take(*more));
    entry.value = take(*value);
    entry.offset = entry.value.data() - file_.data();
    return entry;
  }

  ByteView take(uint64_t count) {
    const ByteView front = rest_.first(static_cast<size_t>(count));
    rest_ = rest_.subspan(front.size());
    return front;
  }

  const ByteView file_;
  const BlockHandle block_;
  ByteView rest_;
  ByteView table_;  // the restarts and their number
  uint32_t restarts_ = 0;
  uint32_t next_restart_ = 0;
  int64_t restart_bytes_ = 0;
  std::string key_;  // of the entry before
};

// Reads the handles of the data blocks.
Result<std::vector<BlockHandle>> read_index(ByteView file, const BlockHandle& index) {
  HOLDFAST_TRY(check_block(file, index));
  std::vector<TableEntry> entries;
  size_t all_keys = 0;
  HOLDFAST_TRY(BlockReader(file, index).read(entries, all_keys));
  std::vector<BlockHandle> blocks;
  int64_t end = 0;
  for (const TableEntry& entry : entries) {
    ByteView value = entry.value;
    const auto block = take_handle(value, index.offset);
    if (!block || block->offset < end) {
      return corrupt("the index block names a block that is not in its place");
    }
    end = block->offset + block->size + kTrailerBytes;
    blocks.push_back(*block);
  }
  return blocks;
}

Result<void> read_block(ByteView file, const BlockHandle& block,
                        std::vector<TableEntry>& entries, size_t& all_keys) {
  HOLDFAST_TRY(check_block(file, block));
  return BlockReader(file, block).read(entries, all_keys);
}

}  // namespace

Result<Table> Table::open(const Source& source, std::vector<BadBlock>* bad) {
  if (source.size() > kMaxIndexBytes) {
    return unsupported("{}: the index is {} bytes long, limit {}", source.name(),
                       source.size(), kMaxIndexBytes);
  }
  Table table(HOLDFAST_TRY(source.read_bytes(0, source.size())));
  const BlockHandle index =
      HOLDFAST_TRY(read_footer(table.bytes()).within(source.name()));
  size_t all_keys = 0;
  for (const BlockHandle& block :
       HOLDFAST_TRY(read_index(table.bytes(), index).within(source.name()))) {
    const size_t before = table.entries_.size();
    const Result<void> read =
        read_block(table.bytes(), block, table.entries_, all_keys);
    if (read.ok()) continue;
    if (bad == nullptr) return read.error().within(source.name());
    table.entries_.resize(before);
    bad->push_back({block, read.error().message()});
  }
  return table;
}

}  // namespace holdfast::bundle
