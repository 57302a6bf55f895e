#include "holdfast/exchange/exchange_agreement.h"

#include <algorithm>
#include <limits>

#include "holdfast/base/json_fields.h"
#include "holdfast/transport/worker.h"

namespace holdfast {
namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
// The tags of exchanges are those from here on. Each exchange draws its own, so that
// late messages of one that failed do not reach the next.
constexpr Tag kFirstTag = 0x40000000;
constexpr uint64_t kTags = 0x0fffffff;  // each exchange has four

// The first line of what a rank says; its own bytes follow.
struct Hello {
  Peer peer{};
  int64_t left = kForever;  // nanoseconds until the rank's deadline
  Tag tag = 0;              // the tag of rank 0 counts

  static void fields(auto& self, auto&& field) {
    field("name", self.peer.name);
    field("host", self.peer.host);
    field("machine", self.peer.machine);
    field("process", self.peer.process);
    field("agreed", self.peer.agreed);
    field("needs", self.peer.needs);
    field("left", self.left);
    field.integer("tag", self.tag, kFirstTag, std::numeric_limits<Tag>::max());
  }
};

Hello hello_of(Env& env, const Greeting& greeting) {
  const Worker worker = this_worker(env);
  Hello hello;
  hello.peer.name = greeting.name.empty() ? worker.name : greeting.name;
  hello.peer.host = worker.host;
  if (greeting.shared_memory) hello.peer.machine = worker.machine;
  if (greeting.direct) hello.peer.process = worker.name;
  hello.peer.agreed = greeting.agreed;
  hello.peer.needs = greeting.needs;
  if (greeting.deadline != kNoDeadline) {
    hello.left = std::max<int64_t>((greeting.deadline - env.now()).count(), 0);
  }
  hello.tag = static_cast<Tag>(kFirstTag + 4 * (env.random64() % kTags));
  return hello;
}

}  // namespace

PairLink ExchangeAgreement::link_to(Env& env, Transport& transport, int peer,
                          Instant until) const {
  const Peer& own = peers[static_cast<size_t>(transport.rank())];
  const Peer& other = peers[static_cast<size_t>(peer)];
  return {.env = &env,
          .transport = &transport,
          .peer = peer,
          .tag = tag,
          .deadline = until,
          .one_machine = !own.machine.empty() && own.machine == other.machine,
          .one_process = !own.process.empty() && own.process == other.process};
}

Result<ExchangeAgreement> agree_to_exchange(Env& env, Transport& transport,
                                            const Greeting& greeting, ByteView said) {
  const std::string hello = to_json_text(hello_of(env, greeting), kCompactJson) + '\n';
  Bytes own = copy_of(bytes_of(hello));
  own.insert(own.end(), said.begin(), said.end());
  const std::vector<Bytes> all =
      HOLDFAST_TRY(transport.all_gather(own, greeting.deadline));
  ExchangeAgreement meeting;
  int64_t left = kForever;
  for (size_t r = 0; r < all.size(); ++r) {
    const std::string_view text = text_of(all[r]);
    const size_t line = std::min(text.find('\n'), text.size());
    Hello one =
        HOLDFAST_TRY(from_json<Hello>(text.substr(0, line), fmt::format("rank {}", r)));
    if (r == 0) meeting.tag = one.tag;
    left = std::min(left, one.left);
    one.peer.said = copy_of(bytes_of(text.substr(std::min(line + 1, text.size()))));
    meeting.peers.push_back(std::move(one.peer));
  }
  meeting.deadline = left == kForever ? kNoDeadline : env.now() + Duration(left);
  return meeting;
}

LiveHolders holders_of(const std::vector<Peer>& peers) {
  std::vector<RankIdentity> ranks;
  for (const Peer& peer : peers) ranks.push_back({peer.name, peer.host});
  return holders_of(ranks);
}

}  // namespace holdfast
