#include "holdfast/mpi/mpi_loop_internal.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <string_view>

namespace holdfast {
namespace {

constexpr int kTag = 1;          // of all MPI messages; our own tags are in the frames
constexpr int kYields = 100;     // so many rounds without a message do not sleep
constexpr int kLinger = 1000;    // so many rounds wait for others to leave
constexpr size_t kSpares = 8;    // buffers that are kept
constexpr size_t kSpareBytes = size_t{2} << 20;  // longer buffers are not kept
constexpr std::chrono::nanoseconds kShortest = std::chrono::microseconds(20);
constexpr std::chrono::nanoseconds kLongest = std::chrono::milliseconds(1);

// The frame in memory of its own. A body that is lent goes back to its owner afterwards.
Bytes flatten(const Outgoing& frame) {
  Bytes bytes;
  bytes.reserve(frame.size());
  const auto append = [&](ByteView part) {
    bytes.insert(bytes.end(), part.begin(), part.end());
  };
  append(frame.head);
  if (frame.lent != nullptr) {
    frame.lent->use(append);
  } else if (frame.body != nullptr) {
    append(*frame.body);
  }
  return bytes;
}

}  // namespace

Result<void> check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return {};
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return io_error("{}: {}", call,
                  std::string_view(text.data(), static_cast<size_t>(length)));
}

MpiLoop::MpiLoop(MPI_Comm communicator, int rank, int size, int64_t most_bytes,
                 FrameEvents& events)
    : communicator_(communicator), rank_(rank), events_(events) {
  peers_.reserve(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    peers_.emplace_back(most_bytes).reader.set_find_landing(
        [this, r](int64_t tag, size_t length) {
          return events_.find_landing(r, tag, length);
        });
  }
  thread_ = std::jthread([this] { run(); });
}

MpiLoop::~MpiLoop() { MpiLoop::stop(); }

void MpiLoop::send(int rank, Outgoing frame) {
  MutexLock lock(mutex_);
  orders_.emplace_back(rank, std::move(frame));
  changed_.notify_all();
}

void MpiLoop::stop() {
  MutexLock stopping(stop_mutex_);
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void MpiLoop::run() {
  int idle = 0, lingered = 0;
  while (true) {
    Orders orders;
    const bool stopping = take_orders(orders);
    const Result<bool> worked = work(orders, stopping);
    if (!worked.ok()) {
      broken_ = true;
      for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
        lose(r, worked.error().message());
      }
    }
    const bool busy = worked.ok() && *worked;
    if (stopping && (is_done() || (!busy && ++lingered > kLinger))) break;
    idle = busy ? 0 : idle + 1;
    rest(idle);
  }
  leave();
}

bool MpiLoop::take_orders(Orders& orders) {
  MutexLock lock(mutex_);
  orders.swap(orders_);
  return stopping_;
}

Result<bool> MpiLoop::work(Orders& orders, bool stopping) {
  // After a failure the orders are only dropped, which gives back what was lent.
  if (broken_) return false;
  const bool ordered = !orders.empty();
  for (auto& [rank, frame] : orders) {
    const Outgoing next = std::move(frame);
    if (peers_[static_cast<size_t>(rank)].gone) continue;
    HOLDFAST_TRY(post(rank, flatten(next)));
  }
  if (stopping && !said_goodbye_) HOLDFAST_TRY(say_goodbye());
  const bool sent = HOLDFAST_TRY(finish_sends());
  const bool accepted = HOLDFAST_TRY(accept_messages());
  const bool delivered = HOLDFAST_TRY(deliver_messages());
  return ordered || sent || accepted || delivered;
}

Result<void> MpiLoop::post(int rank, Bytes bytes) {
  const auto size = static_cast<int>(bytes.size());
  Transfer& transfer = sending_.emplace_back();
  transfer.bytes = std::move(bytes);
  return check_mpi(MPI_Isend(transfer.bytes.data(), size, MPI_BYTE, rank, kTag,
                             communicator_, &transfer.request),
                   "MPI_Isend");
}

Result<void> MpiLoop::say_goodbye() {
  said_goodbye_ = true;
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    // A rank that has left still receives for a while, and waits for this.
    if (r != rank_) HOLDFAST_TRY(post(r, {}));
  }
  return {};
}

Result<bool> MpiLoop::finish_sends() {
  bool any = false;
  for (auto next = sending_.begin(); next != sending_.end();) {
    int done = 0;
    HOLDFAST_TRY(
        check_mpi(MPI_Test(&next->request, &done, MPI_STATUS_IGNORE), "MPI_Test"));
    any |= done != 0;
    next = done != 0 ? sending_.erase(next) : std::next(next);
  }
  return any;
}

Result<bool> MpiLoop::accept_messages() {
  for (bool any = false;; any = true) {
    int found = 0, size = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status{};
    HOLDFAST_TRY(check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kTag, communicator_, &found,
                                       &message, &status),
                           "MPI_Improbe"));
    if (found == 0) return any;
    HOLDFAST_TRY(check_mpi(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count"));
    Transfer& transfer =
        peers_[static_cast<size_t>(status.MPI_SOURCE)].arriving.emplace_back();
    transfer.size = static_cast<size_t>(size);
    transfer.bytes = take_buffer(transfer.size);
    HOLDFAST_TRY(check_mpi(
        MPI_Imrecv(transfer.bytes.data(), size, MPI_BYTE, &message, &transfer.request),
        "MPI_Imrecv"));
  }
}

// A buffer of at least this size. Those that are used again need not be cleared.
Bytes MpiLoop::take_buffer(size_t size) {
  Bytes buffer;
  if (!spare_.empty()) {
    buffer = std::move(spare_.back());
    spare_.pop_back();
  }
  if (buffer.size() < size) buffer.resize(size);
  return buffer;
}

Result<bool> MpiLoop::deliver_messages() {
  bool any = false;
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    std::deque<Transfer>& arriving = peers_[static_cast<size_t>(r)].arriving;
    while (!arriving.empty()) {
      Transfer& next = arriving.front();
      int done = 0;
      HOLDFAST_TRY(
          check_mpi(MPI_Test(&next.request, &done, MPI_STATUS_IGNORE), "MPI_Test"));
      if (done == 0) break;
      deliver(r, ByteView(next.bytes).first(next.size));
      if (spare_.size() < kSpares && next.bytes.size() <= kSpareBytes) {
        spare_.push_back(std::move(next.bytes));
      }
      arriving.pop_front();
      any = true;
    }
  }
  return any;
}

void MpiLoop::deliver(int rank, ByteView bytes) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.gone) return;
  if (bytes.empty()) return lose(rank, "it has left");
  const Result<void> read = peer.reader.feed(
      bytes, [&](Frame frame) { return events_.on_frame(rank, std::move(frame)); });
  if (!read.ok()) lose(rank, read.error().message());
}

void MpiLoop::lose(int rank, const std::string& why) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (rank == rank_ || peer.gone) return;
  peer.gone = true;
  events_.on_gone(rank, why);
}

// True if MPI has nothing more to do for this rank, and all others have left.
bool MpiLoop::is_done() const {
  if (broken_) return true;
  for (size_t r = 0; r < peers_.size(); ++r) {
    const bool left = peers_[r].gone || r == static_cast<size_t>(rank_);
    if (!left || !peers_[r].arriving.empty()) return false;
  }
  return said_goodbye_ && sending_.empty();
}

// Waits for an order, or for a moment that grows while nothing happens.
void MpiLoop::rest(int idle) {
  if (idle == 0) return;
  if (idle < kYields) return std::this_thread::yield();
  const int doublings = std::min(idle - kYields, 10);
  MutexLock lock(mutex_);
  if (!orders_.empty()) return;
  changed_.wait_for(mutex_, std::min(kShortest * (1 << doublings), kLongest));
}

// MPI may use the memory of unfinished transfers as long as the process lives, so it is
// never freed. Nor is the communicator: all ranks would have to free it together, and a rank
// that stays is not waited for. MPI frees it when the process ends.
void MpiLoop::leave() {
  static Mutex mutex;
  static std::list<Transfer>& unfinished = *new std::list<Transfer>;
  MutexLock lock(mutex);
  unfinished.splice(unfinished.end(), sending_);
  for (Peer& peer : peers_) {
    for (Transfer& one : peer.arriving) unfinished.push_back(std::move(one));
  }
}

}  // namespace holdfast
