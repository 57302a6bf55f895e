// How the ranks of an exchange begin and end it together: each says what it has, and
// later how it went.
#pragma once

#include <string>
#include <vector>

#include "holdfast/env/env.h"
#include "holdfast/exchange/fill.h"
#include "holdfast/memory/piece_description.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

// What a rank says about itself.
struct Peer {
  bool is_whole = false;
  // Equal for ranks of one machine that can open each other's shared memory; empty if
  // this rank could not find out, or shall not use it.
  std::string machine{};
  SharedCollection pieces{};
};

struct Meeting {
  std::vector<Peer> peers;  // by rank
  Tag tag = 0;              // of the messages of this exchange
  Instant moved_by{};       // when moving must have ended
  Instant settled_by{};     // when all ranks must have heard how it went
};

// All ranks call it together. Fails alike on all ranks, naming the rank, if one of them
// passes pieces that are wrong.
Result<Meeting> meet(Env& env, Transport& transport, const LocalPieces& pieces,
                     const FillOptions& options);

// All ranks call it together, each with its own outcome. If any rank failed, all return
// the same error: the one that says most.
Result<void> settle(Transport& transport, const Result<void>& own, Instant deadline);

}  // namespace holdfast
