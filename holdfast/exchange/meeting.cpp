#include "holdfast/exchange/meeting.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "holdfast/base/json.h"

namespace holdfast {
namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
// The tags of exchanges are those from here on. Each exchange draws its own, so that
// late messages of one that failed do not reach the next.
constexpr Tag kFirstTag = 0x40000000;
constexpr uint64_t kTags = 0x1fffffff;  // each exchange has two

// The first line of what a rank says; the description of its pieces follows.
struct Hello {
  bool is_whole = false;
  std::string machine{};
  int64_t left = kForever;  // nanoseconds until the rank's deadline
  Tag tag = 0;              // the tag of rank 0 counts
};

std::string to_text(const Hello& hello) {
  return OrderedJson{{"whole", hello.is_whole},
                     {"machine", hello.machine},
                     {"left", hello.left},
                     {"tag", hello.tag}}
      .dump();
}

Result<Hello> parse_hello(std::string_view text, const std::string& where) {
  const Json json = HOLDFAST_TRY(parse_json(text, where));
  Fields fields = HOLDFAST_TRY(Fields::of(json, where));
  Hello hello;
  hello.is_whole = HOLDFAST_TRY(fields.boolean("whole"));
  hello.machine = HOLDFAST_TRY(fields.text("machine"));
  hello.left = HOLDFAST_TRY(fields.integer("left"));
  hello.tag = static_cast<Tag>(
      HOLDFAST_TRY(fields.integer("tag", kFirstTag, std::numeric_limits<Tag>::max())));
  HOLDFAST_TRY(fields.done());
  return hello;
}

// The boot of the machine, the namespace in which process numbers mean the same, and that
// of the network: ranks without a common one count as ranks of different machines.
std::string machine_of(Env& env) {
  const Result<std::string> boot = env.read_text("/proc/sys/kernel/random/boot_id");
  const Result<FileInfo> processes = env.info("/proc/self/ns/pid");
  const Result<FileInfo> network = env.info("/proc/self/ns/net");
  if (!boot.ok() || !processes.ok() || !network.ok()) return "";
  return fmt::format("{} {} {}", boot->substr(0, boot->find('\n')), processes->inode,
                     network->inode);
}

Hello hello_of(Env& env, const FillOptions& options) {
  Hello hello{.is_whole = options.is_whole};
  if (options.shared_memory) hello.machine = machine_of(env);
  if (options.deadline != kNoDeadline) {
    hello.left = std::max<int64_t>((options.deadline - env.now()).count(), 0);
  }
  hello.tag = static_cast<Tag>(kFirstTag + 2 * (env.random64() % kTags));
  return hello;
}

// Checks this rank's pieces and returns their collection.
Result<SharedCollection> check_pieces(const LocalPieces& pieces, bool is_whole) {
  LocalState state{.collection = HOLDFAST_TRY(collection_of_pieces(pieces)),
                   .pieces = pieces};
  if (std::ranges::any_of(pieces, is_nothing)) {
    std::erase_if(state.pieces.edit(), is_nothing);
  }
  HOLDFAST_TRY(state.check());
  if (!is_whole) HOLDFAST_TRY(check_no_overlap(state));
  return state.collection;
}

void set_deadlines(Env& env, int64_t left, Meeting& meeting) {
  meeting.moved_by = meeting.settled_by = kNoDeadline;
  if (left == kForever) return;
  constexpr Duration kMostToSettle = std::chrono::seconds(5);
  const Duration all(left);
  meeting.settled_by = env.now() + all;
  meeting.moved_by = meeting.settled_by - std::min(all / 4, kMostToSettle);
}

// What the rank says about its outcome: a byte that is 0 if all went well and else
// tells the code, then the message.
Bytes encode_outcome(const Result<void>& outcome) {
  if (outcome.ok()) return Bytes(1);
  Bytes said{static_cast<std::byte>(static_cast<int>(outcome.error().code()) + 1)};
  const ByteView message = bytes_of(outcome.error().message());
  said.insert(said.end(), message.begin(), message.end());
  return said;
}

Result<void> decode_outcome(ByteView said) {
  constexpr int kMost = static_cast<int>(ErrorCode::kIo) + 1;
  const int code = said.empty() ? kMost + 1 : static_cast<int>(said[0]);
  if (code == 0) return {};
  if (code > kMost) return corrupt("an outcome that cannot be read; expected one");
  return Error(static_cast<ErrorCode>(code - 1), std::string(text_of(said.subspan(1))));
}

// A low number for errors that are a cause, a high one for those that are a
// consequence: when one rank fails, others lose it or wait in vain.
int weight_of(const Error& error) {
  if (error.code() == ErrorCode::kTimeout) return 2;
  return error.code() == ErrorCode::kUnavailable ? 1 : 0;
}

}  // namespace

Result<Meeting> meet(Env& env, Transport& transport, const LocalPieces& pieces,
                     const FillOptions& options) {
  const Result<SharedCollection> own = check_pieces(pieces, options.is_whole);
  const Bytes own_text =
      own.ok() ? description_of(**own) : failed_description(own.error());
  const std::string hello = to_text(hello_of(env, options)) + '\n';
  Bytes said = copy_of(bytes_of(hello));
  said.insert(said.end(), own_text.begin(), own_text.end());
  const std::vector<Bytes> all =
      HOLDFAST_TRY(transport.all_gather(said, options.deadline));

  Meeting meeting;
  int64_t left = kForever;
  std::vector<std::string_view> texts;
  for (size_t r = 0; r < all.size(); ++r) {
    const std::string_view text = text_of(all[r]);
    const size_t line = std::min(text.find('\n'), text.size());
    const Hello one =
        HOLDFAST_TRY(parse_hello(text.substr(0, line), fmt::format("rank {}", r)));
    if (r == 0) meeting.tag = one.tag;
    left = std::min(left, one.left);
    texts.push_back(text.substr(std::min(line + 1, text.size())));
    meeting.peers.push_back({.is_whole = one.is_whole, .machine = one.machine});
  }
  const std::vector<SharedCollection> read = HOLDFAST_TRY(parse_descriptions(
      texts, text_of(own_text), own.ok() ? *own : SharedCollection()));
  for (size_t r = 0; r < read.size(); ++r) meeting.peers[r].pieces = read[r];
  set_deadlines(env, left, meeting);
  return meeting;
}

Result<void> settle(Transport& transport, const Result<void>& own, Instant deadline) {
  const Result<std::vector<Bytes>> all =
      transport.all_gather(encode_outcome(own), deadline);
  if (!all.ok()) return own.ok() ? Result<void>(all.error()) : own;
  std::optional<Error> worst;
  for (const Bytes& said : *all) {
    const Result<void> outcome = decode_outcome(said);
    if (outcome.ok()) continue;
    if (!worst.has_value() || weight_of(outcome.error()) < weight_of(*worst)) {
      worst = outcome.error();
    }
  }
  return worst.has_value() ? Result<void>(*worst) : Result<void>();
}

}  // namespace holdfast
