// How ranks that do something together end it: all of them go on, or none does and all
// say why. Each rank says what it has done, or its error, and hears those of all.
#pragma once

#include <optional>
#include <vector>

#include "holdfast/transport/transport.h"

namespace holdfast {

// The ranks that agree with each other. `transport` is null for a job of one rank.
struct JobRanks {
  Env* env = nullptr;
  Transport* transport = nullptr;

  int rank() const { return transport == nullptr ? 0 : transport->rank(); }
  int size() const { return transport == nullptr ? 1 : transport->size(); }
};

// Tells causes from consequences: when one rank fails, others lose it or wait in vain. Of
// several errors, the one with the lowest number is most likely the cause.
int weight_of(const Error& error);

// What a rank has done, or its error, as bytes for other ranks.
Bytes encode_outcome(const Result<Bytes>& outcome);
Result<Bytes> decode_outcome(ByteView said);

struct Round {
  std::vector<Bytes> said{};  // by rank; empty if a rank has failed
  // The error that is most likely the cause, of the lowest rank that has such a one.
  std::optional<Error> failed{};
  int rank = 0;  // that rank
};

// All ranks call it together. Fails with kTimeout or kUnavailable if this rank does not
// hear all others; what it does hear is the same on all ranks.
Result<Round> hold_round(const JobRanks& ranks, const Result<Bytes>& own, Instant deadline);

// The same, but an error that a rank has said is returned: it succeeds on all ranks or on
// none. The error names its rank, if there are several. `heard` says afterwards whether
// this rank has heard all others.
Result<std::vector<Bytes>> agree(const JobRanks& ranks, const Result<Bytes>& own,
                                 Duration at_most, bool* heard = nullptr);
Result<void> agree(const JobRanks& ranks, const Result<void>& own, Duration at_most,
                   bool* heard = nullptr);

}  // namespace holdfast
