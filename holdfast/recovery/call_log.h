// CallLog: what other ranks said to a rank, by key. The process that replaces a lost rank makes
// its calls again alone, and is answered from the logs of the others.
//
// A call of a process group has a key: the update that it belongs to, the group and the name
// of the call, the two ranks of a message (or none, for a collective call), and its number
// among the calls with all of these equal. Both ends of a message count alike, so the number
// that the receiver asks for is the number that the sender has kept. Calls at start-up belong to
// update -1 (kStartUp). There is no generation in a key: a log outlives generations.
//
//   1. A sender keeps each message that it sends, and every rank that gets the result of a
//      collective call keeps that result. A call that is made again replaces its own record.
//   2. drop_through() forgets the updates that a durable checkpoint has, start-up excepted.
//   3. After a death, survivors send_to() the replacement what was for the lost rank, and it
//      receive_from()s them. Then it finds the answers of its calls here.
//
// What a rank gives another one to keep for its own replacement, by pass_on(), is a record from
// that rank to itself.
//
// A record has a checksum over its key and its contents. What does not fit it is kCorrupt, and a
// key that is not here is kNotFound: a caller falls back to a checkpoint, and never guesses.
//
// Records are kept in memory, and above `memory` bytes in files without names in `spill`.
// A record for which there is no room is not kept (kNoSpace), and hole() tells behind which
// update the log is whole again. Start-up always has room, and so has what a replacement receives:
// its neighbours together may have kept more for it than one rank may keep.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/mutex.h"
#include "holdfast/env/env.h"
#include "holdfast/env/file.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

inline constexpr int64_t kStartUp = -1;  // the update of calls before the first one
inline constexpr int kAllRanks = -1;     // the ends of a collective call

struct CallKey {
  int64_t update = kStartUp;
  std::string group{};  // the name of the process group
  std::string call{};   // "send", "allreduce"
  int from = kAllRanks, to = kAllRanks;  // ranks of the job
  int64_t number = 0;

  friend auto operator<=>(const CallKey&, const CallKey&) = default;
};

// "message 2 of update 17 from rank 0 to rank 1 in group pp".
std::string to_string(const CallKey& key);

// What a call gave: what its tensors are, as text, and their bytes.
struct CallRecord {
  std::string text{};
  Bytes bytes{};

  friend bool operator==(const CallRecord&, const CallRecord&) = default;
};

class CallLog {
 public:
  struct Options {
    // Bytes of records in memory, without start-up and received ones.
    int64_t memory = int64_t{1} << 30;
    Path spill{};                       // a folder for more; empty for none
  };
  // Which records a replacement of rank `to` needs: messages to it, and results of collective
  // calls in `groups`, of the updates in (after, through].
  struct Wanted {
    int to = 0;
    std::vector<std::string> groups{};
    int64_t after = 0, through = 0;
  };

  explicit CallLog(Env& env) : CallLog(env, Options()) {}
  CallLog(Env& env, Options options) : env_(env), options_(std::move(options)) {}

  // Changes how much is kept from now on.
  void configure(Options options);

  // Keeps a call; replaces what was kept of the same key. The bytes are those of `parts`, one
  // after the other. kNoSpace if there is no room, or the error of the file.
  Result<void> put(const CallKey& key, std::string_view text,
                   std::span<const ByteView> parts);
  Result<CallRecord> find(const CallKey& key) const;
  // Gives rank `to` a record of this rank, and keeps the one that rank `from` gives meanwhile:
  // it has the same key but for its ends, and replaces one that is here. All ranks call it
  // together. Returns the text of that record. kCorrupt if it is damaged or another one, and
  // kNoSpace as put() says.
  Result<std::string> pass_on(Transport& transport, int to, int from, const CallKey& key,
                              std::string_view text, std::span<const ByteView> parts,
                              Instant deadline);
  // Forgets updates up to this one, but not start-up.
  void drop_through(int64_t update);
  // Forgets everything.
  void clear();

  int64_t bytes() const;         // of all records, in memory and files
  int64_t bytes_in_memory() const;  // of those that `memory` limits
  // The newest update of which a record was not kept; kStartUp if there is none. The log is
  // whole for updates behind it.
  int64_t hole() const;

  // One record as bytes, and the other way round: kCorrupt unless they are exactly what
  // pack() has returned. Used for start-up, whose records the launcher keeps.
  Result<Bytes> pack(const CallKey& key) const;
  // Takes in records that stand one behind the other, as in a file that ends with a whole
  // record. kConflict if a record differs from one that is here with the same key.
  Result<void> take(ByteView packed);

  // Sends the records that are wanted to a rank of the transport, then that these were
  // all.
  Result<void> send_to(Transport& transport, int receiver, const Wanted& wanted,
                       Instant deadline) const;
  // Takes in what another rank sends, whatever `memory` is. Above it, records go to `spill` if that
  // has room. kCorrupt if a record is damaged or was not wanted.
  Result<void> receive_from(Transport& transport, int from, const Wanted& wanted,
                            Instant deadline);

 private:
  // Where a record is. A file ends when the last of its records was dropped.
  struct Kept {
    Bytes bytes{};
    std::shared_ptr<File> file{};
    int64_t offset = 0, size = 0;
    bool is_limited = false;  // it counts as one that `memory` limits
  };

  Result<void> keep(const CallKey& key, Bytes packed) HOLDFAST_REQUIRES(mutex_);
  void keep_received(const CallKey& key, Bytes packed) HOLDFAST_REQUIRES(mutex_);
  void add(const CallKey& key, Kept kept) HOLDFAST_REQUIRES(mutex_);
  Result<Kept> spill(ByteView packed) HOLDFAST_REQUIRES(mutex_);
  void forget(std::map<CallKey, Kept>::iterator at) HOLDFAST_REQUIRES(mutex_);
  Result<void> take(ByteView packed, const Wanted* wanted);
  static Result<Bytes> read(const Kept& kept);

  Env& env_;
  mutable Mutex mutex_;
  Options options_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<CallKey, Kept> kept_ HOLDFAST_GUARDED_BY(mutex_);
  std::shared_ptr<File> file_ HOLDFAST_GUARDED_BY(mutex_);  // that is written to
  int64_t end_ HOLDFAST_GUARDED_BY(mutex_) = 0;             // of that file
  int64_t bytes_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  int64_t in_memory_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  int64_t received_ HOLDFAST_GUARDED_BY(mutex_) = 0;  // bytes in memory
  int64_t hole_ HOLDFAST_GUARDED_BY(mutex_) = kStartUp;
};

}  // namespace holdfast
