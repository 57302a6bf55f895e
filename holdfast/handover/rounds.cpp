#include "holdfast/handover/rounds.h"

namespace holdfast {
namespace {

constexpr size_t kNumber = sizeof(uint64_t);

void put_text(std::string& packed, std::string_view text) {
  Bytes size(kNumber);
  store_little_endian(static_cast<uint64_t>(text.size()), size);
  packed += text_of(size);
  packed += text;
}

Result<std::string_view> take_text(std::string_view& packed) {
  if (packed.size() < kNumber) {
    return corrupt("files of another rank: end early; expected the size of a file");
  }
  const auto size = load_little_endian<uint64_t>(bytes_of(packed.substr(0, kNumber)));
  packed.remove_prefix(kNumber);
  if (size > packed.size()) {
    return corrupt("files of another rank: end after {} bytes; expected {}",
                   packed.size(), size);
  }
  const std::string_view text = packed.substr(0, size);
  packed.remove_prefix(size);
  return text;
}

}  // namespace

Result<std::vector<Message>> say_and_hear(const JobRanks& ranks, const Message& own,
                                          Duration at_most, bool* heard) {
  const Result<Bytes> said =
      own.error.has_value() ? Result<Bytes>(*own.error) : encode_message(own);
  std::vector<Message> messages;
  for (const Bytes& bytes : HOLDFAST_TRY(agree(ranks, said, at_most, heard))) {
    messages.push_back(HOLDFAST_TRY(decode_message(bytes)));
  }
  return messages;
}

std::string pack_files(const SmallFiles& files) {
  std::string packed;
  for (const auto& [name, bytes] : files) {
    put_text(packed, name);
    put_text(packed, text_of(bytes));
  }
  return packed;
}

Result<SmallFiles> unpack_files(std::string_view packed) {
  SmallFiles files;
  while (!packed.empty()) {
    const std::string name(HOLDFAST_TRY(take_text(packed)));
    files[name] = copy_of(bytes_of(HOLDFAST_TRY(take_text(packed))));
  }
  return files;
}

}  // namespace holdfast
