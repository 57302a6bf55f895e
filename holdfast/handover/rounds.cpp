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

Result<std::vector<Bytes>> gather(const Ranks& ranks, const Bytes& own,
                                  Duration at_most) {
  if (ranks.transport == nullptr) return std::vector<Bytes>{own};
  return ranks.transport->all_gather(own, ranks.env->now() + at_most);
}

}  // namespace

Result<Round> hold_round(const Ranks& ranks, const Message& own, Duration at_most) {
  Round round;
  for (const Bytes& bytes : HOLDFAST_TRY(gather(ranks, encode_message(own), at_most))) {
    round.said.push_back(HOLDFAST_TRY(decode_message(bytes)));
  }
  for (size_t rank = 0; rank < round.said.size() && !round.failed; ++rank) {
    round.failed = round.said[rank].error;
    if (round.failed && round.said.size() > 1) {
      round.failed = round.failed->within(fmt::format("rank {}", rank));
    }
  }
  return round;
}

Result<std::vector<Message>> say_and_hear(const Ranks& ranks, const Message& own,
                                          Duration at_most) {
  Round round = HOLDFAST_TRY(hold_round(ranks, own, at_most));
  if (round.failed.has_value()) return *round.failed;
  return std::move(round.said);
}

Result<Round> say_outcome(const Ranks& ranks, const Result<void>& own,
                          Duration at_most) {
  Message said{.kind = "fared"};
  if (!own.ok()) said.error = own.error();
  return hold_round(ranks, said, at_most);
}

Result<void> agree(const Ranks& ranks, const Result<void>& own, Duration at_most) {
  const Round round = HOLDFAST_TRY(say_outcome(ranks, own, at_most));
  if (round.failed.has_value()) return *round.failed;
  return {};
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
