// The thread of an MPI transport. Only this thread calls MPI; others leave orders.
//
//   1. A frame is one MPI message. Messages of one sender are delivered in the order in
//      which MPI matched them, which is the order in which they were sent.
//   2. A rank that stops sends a message without bytes to all others: it has left.
//   3. It goes on receiving until all others have left, too, for at most about a second,
//      so that none of them is left with a message that MPI cannot deliver.
#pragma once

#include <mpi.h>

#include <deque>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/transport/frame_loop.h"

namespace holdfast {

// Fails with MPI's words for the code, unless it says that the call has succeeded.
Result<void> check_mpi(int code, const char* call);

class MpiLoop : public FrameLoop {
 public:
  // The communicator belongs to the loop from now on. Its errors must return. `events`
  // must outlive the loop.
  MpiLoop(MPI_Comm communicator, int rank, int size, int64_t most_bytes,
          FrameEvents& events);
  // Calls stop().
  ~MpiLoop() override;

  void send(int rank, Outgoing frame) override;
  void stop() override;

 private:
  // A message that MPI sends from this memory, or receives into it.
  struct Transfer {
    Bytes bytes;
    size_t size = 0;  // the buffer may be longer
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Peer {
    explicit Peer(int64_t most_bytes) : reader(most_bytes) {}

    FrameReader reader;
    std::deque<Transfer> arriving;  // the oldest first
    bool gone = false;
  };
  using Orders = std::vector<std::pair<int, Outgoing>>;

  void run();
  // Takes the orders, and returns true if no more will come.
  bool take_orders(Orders& orders);
  // Each returns true if something has happened.
  Result<bool> work(Orders& orders, bool stopping);
  Result<bool> finish_sends();
  Result<bool> accept_messages();
  Result<bool> deliver_messages();

  Result<void> post(int rank, Bytes bytes);
  Result<void> say_goodbye();
  void deliver(int rank, ByteView bytes);
  void lose(int rank, const std::string& why);
  bool is_done() const;
  void rest(int idle);
  void leave();
  Bytes take_buffer(size_t size);

  // Only the thread uses these members, once it runs.
  MPI_Comm communicator_;
  const int rank_;
  FrameEvents& events_;
  std::vector<Peer> peers_;
  std::list<Transfer> sending_;
  std::vector<Bytes> spare_;  // buffers to receive into
  bool said_goodbye_ = false;
  bool broken_ = false;  // MPI has failed

  Mutex mutex_;
  Condition changed_;
  Orders orders_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Mutex stop_mutex_;
  std::jthread thread_;  // the last member: the thread uses those above
};

}  // namespace holdfast
