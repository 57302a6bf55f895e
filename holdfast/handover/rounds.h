// How ranks tell each other something during a handover: in rounds, in each of which
// every rank says one message and hears those of all.
#pragma once

#include <vector>

#include "holdfast/checkpoint/channel.h"
#include "holdfast/store/shared_place.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

// Who takes part. `transport` is null for a job of one rank.
struct Ranks {
  Env* env = nullptr;
  Transport* transport = nullptr;

  int rank() const { return transport == nullptr ? 0 : transport->rank(); }
  int size() const { return transport == nullptr ? 1 : transport->size(); }
};

struct Round {
  std::vector<Message> said{};    // by rank
  std::optional<Error> failed{};  // the error of the lowest rank that has said one
};

// Called by all ranks together. Fails with kTimeout or kUnavailable if this rank does
// not hear all others; what it does hear is the same on all ranks.
Result<Round> hold_round(const Ranks& ranks, const Message& own, Duration at_most);
// The same, but an error that a rank has said is returned, too.
Result<std::vector<Message>> say_and_hear(const Ranks& ranks, const Message& own,
                                          Duration at_most);
// A round in which each rank only says whether it has succeeded, and its error if not.
Result<Round> say_outcome(const Ranks& ranks, const Result<void>& own,
                          Duration at_most);
// The same, but an error that a rank has said is returned: it succeeds on all ranks or on
// none.
Result<void> agree(const Ranks& ranks, const Result<void>& own, Duration at_most);

// Files in the text of a message.
std::string pack_files(const SmallFiles& files);
Result<SmallFiles> unpack_files(std::string_view packed);

}  // namespace holdfast
