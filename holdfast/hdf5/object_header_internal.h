// Object headers: the messages that describe a group, a dataset or a stored datatype.
#pragma once

#include <string>
#include <vector>

#include "holdfast/hdf5/file_internal.h"

namespace holdfast::hdf5 {

enum class MessageType : uint16_t {
  kDataspace = 0x01,
  kLinkInfo = 0x02,
  kDatatype = 0x03,
  kOldFill = 0x04,
  kFill = 0x05,
  kLink = 0x06,
  kExternalFiles = 0x07,
  kLayout = 0x08,
  kFilters = 0x0b,
  kAttribute = 0x0c,
  kContinuation = 0x10,
  kSymbolTable = 0x11,
  kAttributeInfo = 0x15,
};

struct Message {
  MessageType type{};
  uint8_t flags = 0;
  // The address of the data in the file, and the data.
  uint64_t address = 0;
  Bytes data{};
  // The block of the header that the message is in, for its checksum.
  uint64_t block = 0;
  uint64_t block_bytes = 0;

  // The data lies elsewhere, and this message only says where.
  bool shared() const { return (flags & 2) != 0; }
};

struct ObjectHeader {
  uint64_t address = 0;
  int version = 0;
  std::vector<Message> messages{};

  const Message* find(MessageType type) const;
};

// Reads a header with all its continuations. `where` names the object in messages.
Result<ObjectHeader> read_object_header(const File& file, uint64_t address,
                                        const std::string& where);

// The data of a message that may be shared: a stored datatype that the message names by
// the address of its header. `data` are the bytes of the message.
Result<Bytes> resolve_shared(const File& file, bool shared, ByteView data,
                             MessageType type, const std::string& where);

}  // namespace holdfast::hdf5
