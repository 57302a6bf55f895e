#include "holdfast/transport/agreement.h"

#include <fmt/format.h>

namespace holdfast {

int weight_of(const Error& error) {
  if (error.code() == ErrorCode::kTimeout) return 2;
  return error.code() == ErrorCode::kUnavailable ? 1 : 0;
}

// A byte that is 0 if all went well and else tells the code, then the bytes or the
// message.
Bytes encode_outcome(const Result<Bytes>& outcome) {
  Bytes said(1);
  if (!outcome.ok()) {
    said[0] = static_cast<std::byte>(static_cast<int>(outcome.error().code()) + 1);
  }
  const ByteView rest =
      outcome.ok() ? ByteView(*outcome) : bytes_of(outcome.error().message());
  said.insert(said.end(), rest.begin(), rest.end());
  return said;
}

Result<Bytes> decode_outcome(ByteView said) {
  constexpr int kMost = static_cast<int>(ErrorCode::kIo) + 1;
  const int code = said.empty() ? kMost + 1 : static_cast<int>(said[0]);
  if (code > kMost) return corrupt("an outcome that cannot be read; expected one");
  if (code == 0) return copy_of(said.subspan(1));
  return Error(static_cast<ErrorCode>(code - 1), std::string(text_of(said.subspan(1))));
}

Result<Round> hold_round(const JobRanks& ranks, const Result<Bytes>& own, Instant deadline) {
  std::vector<Bytes> all{encode_outcome(own)};
  if (ranks.transport != nullptr) {
    all = HOLDFAST_TRY(ranks.transport->all_gather(all.front(), deadline));
  }
  Round round;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Result<Bytes> outcome = decode_outcome(all[rank]);
    if (outcome.ok()) {
      round.said.push_back(*std::move(outcome));
    } else if (!round.failed || weight_of(outcome.error()) < weight_of(*round.failed)) {
      round.failed = outcome.error();
      round.rank = static_cast<int>(rank);
    }
  }
  if (round.failed) round.said.clear();
  return round;
}

Result<std::vector<Bytes>> agree(const JobRanks& ranks, const Result<Bytes>& own,
                                 Duration at_most, bool* heard) {
  Result<Round> round = hold_round(ranks, own, ranks.env->now() + at_most);
  if (heard != nullptr) *heard = round.ok();
  if (!round.ok()) return round.error();
  if (!round->failed) return std::move(round->said);
  if (ranks.size() == 1) return *round->failed;
  return round->failed->within(fmt::format("rank {}", round->rank));
}

Result<void> agree(const JobRanks& ranks, const Result<void>& own, Duration at_most,
                   bool* heard) {
  const Result<Bytes> said = own.ok() ? Result<Bytes>(Bytes()) : own.error();
  HOLDFAST_TRY(agree(ranks, said, at_most, heard));
  return {};
}

}  // namespace holdfast
