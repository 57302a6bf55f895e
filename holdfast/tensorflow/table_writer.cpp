#include "holdfast/tensorflow/table_writer.h"

#include <algorithm>

#include "holdfast/base/bytes.h"
#include "holdfast/tensorflow/masked_crc.h"
#include "holdfast/tensorflow/table_reader.h"
#include "holdfast/tensorflow/wire_format.h"

namespace holdfast::bundle {
namespace {

// As TensorFlow writes them: data blocks end after so many bytes, and share keys over so
// many entries. The index block shares nothing.
constexpr size_t kBlockBytes = size_t{256} << 10;
constexpr int kDataRestartInterval = 16;
constexpr int kIndexRestartInterval = 1;

size_t shared_prefix(std::string_view a, std::string_view b) {
  const auto end = std::ranges::mismatch(a, b).in1;
  return static_cast<size_t>(end - a.begin());
}

}  // namespace

void TableWriter::Block::add(std::string_view key, std::string_view value,
                             int restart_interval) {
  size_t shared = 0;
  if (restart_count == 0 || entries_since_restart == restart_interval) {
    append_fixed32(restarts, static_cast<uint32_t>(bytes.size()));
    ++restart_count;
    entries_since_restart = 0;
  } else {
    shared = shared_prefix(last_key, key);
  }
  append_varint(bytes, shared);
  append_varint(bytes, key.size() - shared);
  append_varint(bytes, value.size());
  bytes += key.substr(shared);
  bytes += value;
  last_key = key;
  ++entries_since_restart;
}

void TableWriter::add(std::string_view key, std::string_view value) {
  HOLDFAST_CHECK(empty_ || key > last_key_, "keys are not in order");
  data_.add(key, value, kDataRestartInterval);
  last_key_ = key;
  empty_ = false;
  if (data_.bytes.size() >= kBlockBytes) finish_data_block();
}

std::string TableWriter::write_block(Block block) {
  // A block without entries has one restart all the same.
  if (block.restart_count == 0) {
    append_fixed32(block.restarts, 0);
    block.restart_count = 1;
  }
  std::string bytes = std::move(block.bytes);
  bytes += block.restarts;
  append_fixed32(bytes, block.restart_count);
  std::string handle;
  append_varint(handle, file_.size());
  append_varint(handle, bytes.size());
  bytes += '\0';  // not compressed
  append_fixed32(bytes, mask_crc(crc32c(bytes_of(bytes))));
  file_ += bytes;
  return handle;
}

void TableWriter::finish_data_block() {
  if (data_.restart_count == 0) return;
  const std::string key = data_.last_key;
  const std::string handle = write_block(std::exchange(data_, {}));
  index_.add(key, handle, kIndexRestartInterval);
}

std::string TableWriter::finish() && {
  finish_data_block();
  std::string footer = write_block({});
  footer += write_block(std::exchange(index_, {}));
  footer.resize(static_cast<size_t>(kFooterBytes) - 8, '\0');
  append_fixed64(footer, kTableMagic);
  return std::move(file_) + footer;
}

}  // namespace holdfast::bundle
