// How the ranks of an exchange begin it together: each says who it is and what it has.
// How it went they say by transport/agreement.h.
#pragma once

#include <string>
#include <vector>

#include "holdfast/env/env.h"
#include "holdfast/exchange/carrier.h"
#include "holdfast/memory/piece_description.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

// What a rank says about itself.
struct Greeting {
  std::string name{};        // the holder that the rank is; empty for its worker's name
  std::string agreed{};      // what all ranks must have in common, such as a digest
  int64_t needs = 0;         // bytes of the host's memory for what the rank will make
  bool direct = true;        // may use the memory of ranks in the same process
  bool shared_memory = true;  // may use shared memory
  Instant deadline = kNoDeadline;
};

// What a rank has heard of another.
struct Peer {
  std::string name{};
  std::string host{};  // equal for ranks of one host
  // Equal for ranks that can try to share memory, or that are in one process; empty if
  // this rank could not find out, or shall not.
  std::string machine{};
  std::string process{};
  std::string agreed{};
  int64_t needs = 0;
  Bytes said{};  // what the rank gave agree_to_exchange() as `said`
};

struct ExchangeAgreement {
  std::vector<Peer> peers;  // by rank
  Tag tag = 0;              // messages of this exchange have it or one of the next three
  Instant deadline{};       // the earliest of all ranks

  // The link to another rank.
  PairLink link_to(Env& env, Transport& transport, int peer, Instant until) const;
};

// All ranks call it together.
Result<ExchangeAgreement> agree_to_exchange(Env& env, Transport& transport,
                                            const Greeting& greeting, ByteView said);

LiveHolders holders_of(const std::vector<Peer>& peers);

}  // namespace holdfast
