#include "holdfast/exchange/move_pieces.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <future>
#include <system_error>
#include <thread>

#include "holdfast/device/device.h"
#include "holdfast/exchange/stream_threads.h"

namespace holdfast {
namespace {

// Less than a transport's queue has room for, so that a grant is never held up by windows.
constexpr int64_t kMostQuota = int64_t{8} << 20;
constexpr int64_t kLeastQuota = int64_t{1} << 20;

int64_t quota_of(const MoveOptions& options, size_t streams) {
  const int64_t share =
      options.on_the_way / std::max<int64_t>(static_cast<int64_t>(streams), 1);
  return std::clamp(share, kLeastQuota, kMostQuota);
}

// Pieces that the writer may have to write to.
std::vector<LocalPiece> written_pieces(const OwnMoves& moves,
                                       const PieceStorage& storage) {
  std::vector<LocalPiece> pieces;
  if (moves.receives.empty() && moves.copies.empty()) return pieces;
  for (const NewPiece& one : moves.fresh) pieces.push_back(one.piece);
  if (storage.device() != nullptr) {
    pieces.emplace_back();
    pieces.back().device = storage.device();
  }
  return pieces;
}

std::vector<const Device*> all_devices(const LocalPieces& old,
                                       const std::vector<LocalPiece>& written) {
  std::vector<LocalPiece> all(old.begin(), old.end());
  all.insert(all.end(), written.begin(), written.end());
  return devices_of(all);
}

// Makes memory, lot by lot, and the copies inside the rank's memory.
class Conductor {
 public:
  Conductor(OwnMoves& moves, const LocalPieces& old, PieceStorage& storage,
            const StreamWork& work)
      : moves_(moves),
        old_(old),
        storage_(storage),
        work_(work),
        not_needed_(moves.lots) {
    for (uint32_t i = 0; i < old.size(); ++i) {
      if (moves.lots > 0) not_needed_[moves.last_lot[i]].push_back(i);
    }
  }

  // Waits also after an error for the copies that were begun: they write to memory that
  // is given back then.
  Result<void> run() {
    const Result<void> made = run_lots();
    const Result<void> waited = inside_.wait();
    return made.ok() ? waited : made;
  }
  int64_t copied() const { return copied_; }

 private:
  Result<void> run_lots() {
    for (uint32_t lot = 0; lot < moves_.lots; ++lot) {
      const size_t end = end_of(lot);
      if (work_.options->windowed) HOLDFAST_TRY(bring_up(lot, end));
      HOLDFAST_TRY(copy_into(end));
      HOLDFAST_TRY(work_.progress->outcome());
      for (const uint32_t i : not_needed_[lot]) work_.old->finish_reader(i);
      work_.progress->finish_work(lot);
      next_ = end;
    }
    return {};
  }
  // The number of the first new piece of a later lot.
  size_t end_of(uint32_t lot) const {
    size_t end = next_;
    while (end < moves_.fresh.size() && moves_.fresh[end].lot == lot) ++end;
    return end;
  }
  Result<void> bring_up(uint32_t lot, size_t end) {
    int64_t bytes = 0;
    for (size_t i = next_; i < end; ++i) {
      if (moves_.fresh[i].kept == kNothing) bytes += moves_.fresh[i].piece.bytes();
    }
    HOLDFAST_TRY(work_.progress->open(lot, bytes, work_.options->on_the_way));
    for (size_t i = next_; i < end; ++i) {
      HOLDFAST_TRY(make_piece_of(moves_, static_cast<uint32_t>(i), storage_,
                                 *work_.memory));
    }
    work_.progress->come_up(lot + 1);
    return {};
  }
  // Makes the copies into the new pieces before `end`. Waits for the devices only if the
  // old pieces may be released afterwards.
  Result<void> copy_into(size_t end) {
    for (; copy_ < moves_.copies.size() && moves_.copies[copy_].to < end; ++copy_) {
      const OwnCopy& copy = moves_.copies[copy_];
      const LocalPiece& to = moves_.fresh[copy.to].piece;
      HOLDFAST_TRY(copy_box(old_[copy.from], to, copy.box, *work_.writer, inside_));
      copied_ += copy.box.elements() * bytes_of(to.tensor->dtype);
    }
    const bool last = copy_ == moves_.copies.size();
    if (work_.options->windowed || last) HOLDFAST_TRY(inside_.begin());
    return work_.options->windowed ? inside_.wait() : Result<void>();
  }

  OwnMoves& moves_;
  const LocalPieces& old_;
  PieceStorage& storage_;
  const StreamWork work_;
  std::vector<std::vector<uint32_t>> not_needed_;  // old pieces, by lot
  size_t next_ = 0;                                // the first new piece of the lot
  size_t copy_ = 0;
  CollectedCopies inside_;
  int64_t copied_ = 0;
};

// Each part that is sent or received is work of its lot, and so are its copies.
void count_work(const OwnMoves& moves, ExchangeProgress& progress) {
  for (const auto* streams : {&moves.sends, &moves.receives}) {
    for (const auto& [peer, stream] : *streams) {
      for (const PairStream::Part& part : stream.parts()) {
        progress.add_work(part.lot, 1);
      }
    }
  }
  for (uint32_t lot = 0; lot < moves.lots; ++lot) progress.add_work(lot, 1);
}

// Runs each of `work` in a thread of its own, and `own` in this one, until all have ended.
// If the system refuses a thread, nothing is run.
Result<void> on_threads(const std::vector<std::function<void()>>& work,
                        const std::function<void()>& own) {
  std::promise<bool> all_there;
  const std::shared_future<bool> begin = all_there.get_future().share();
  std::vector<std::jthread> threads;
  threads.reserve(work.size());
  try {
    for (const auto& one : work) {
      threads.emplace_back([&one, begin] {
        if (begin.get()) one();
      });
    }
  } catch (const std::system_error& refused) {
    all_there.set_value(false);
    return unavailable("threads: the system refuses a thread after {} ({}); expected {}, "
                       "one for each stream",
                       threads.size(), refused.code().message(), work.size());
  }
  all_there.set_value(true);
  own();
  return {};
}

}  // namespace

Result<void> make_piece_of(OwnMoves& moves, uint32_t number, PieceStorage& storage,
                           MemoryCount& memory) {
  const NewPiece& wanted = moves.fresh[number];
  if (wanted.kept != kNothing) return {};
  const LocalPiece made =
      HOLDFAST_TRY(storage.make(wanted.piece.tensor, wanted.piece.box));
  memory.add(made.bytes());
  moves.place(number, made);
  return {};
}

void refuse_streams(const OwnMoves& moves, const MoveOptions& options) {
  for (const auto& [to, stream] : moves.sends) refuse_stream(options.link_to(to));
  for (const auto& [from, stream] : moves.receives) {
    refuse_stream(options.link_to(from));
  }
}

Result<MoveCounts> move_pieces(OwnMoves& moves, const LocalPieces& old,
                               PieceStorage& storage, const MoveOptions& options,
                               MemoryCount& memory, std::vector<bool>& released) {
  const std::vector<LocalPiece> written = written_pieces(moves, storage);
  const std::vector<const Device*> devices = all_devices(old, written);
  ExchangeProgress progress(*options.env, options.deadline, moves.lots, moves.arrivals);
  if (const Result<void> ready = follow_stream(devices, options.stream); !ready.ok()) {
    progress.fail(ready.error());
  }
  PieceWriter writer(written);
  OldPieces held(old, moves, storage, memory, options.windowed);
  const StreamWork work{.options = &options,
                        .progress = &progress,
                        .old = &held,
                        .writer = &writer,
                        .memory = &memory,
                        .quota = quota_of(options, moves.receives.size())};
  count_work(moves, progress);
  if (!options.windowed) progress.come_up(moves.lots);
  const auto link_to = [&](int peer) {
    PairLink link = options.link_to(peer);
    link.stopped = &progress.failed();
    return link;
  };
  std::deque<StreamSender> senders;
  std::deque<StreamReceiver> receivers;
  for (const auto& [to, stream] : moves.sends) {
    senders.emplace_back(link_to(to), stream, work);
  }
  for (const auto& [from, stream] : moves.receives) {
    receivers.emplace_back(link_to(from), stream, work);
  }
  const auto note = [&](const Result<void>& outcome) {
    if (!outcome.ok()) progress.fail(outcome.error());
  };
  Conductor conductor(moves, old, storage, work);
  std::vector<std::function<void()>> ends;
  for (StreamSender& one : senders) ends.emplace_back([&] { note(one.run()); });
  for (StreamReceiver& one : receivers) ends.emplace_back([&] { note(one.run()); });
  const Result<void> begun = on_threads(ends, [&] { note(conductor.run()); });
  if (!begun.ok()) {
    progress.fail(begun.error());
    refuse_streams(moves, options);
  }
  note(writer.finish());
  for (StreamReceiver& one : receivers) {
    if (!progress.failed()) note(one.check_seals());
  }
  released = held.released();
  HOLDFAST_TRY(progress.outcome());
  MoveCounts counts{.copied = conductor.copied(), .peak = memory.most()};
  for (const StreamSender& one : senders) {
    counts.sent[static_cast<size_t>(one.carrier())] += one.sent();
  }
  for (const StreamReceiver& one : receivers) {
    counts.received[static_cast<size_t>(one.carrier())] += one.received();
  }
  return counts;
}

}  // namespace holdfast
