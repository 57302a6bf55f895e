// The sockets of a TcpTransport and the one thread that serves them. Only this thread
// reads from sockets and writes to them. Other threads leave orders (dial, send, stop)
// and learn through FrameEvents what happened.
//
// The thread never asks the time and never waits for one peer: frames to send wait in
// memory. Deadlines are kept by the callers.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/transport/frame_loop.h"
#include "holdfast/transport/tcp_address_internal.h"

namespace holdfast {

// An open file descriptor. The destructor closes it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int number() const { return number_; }
  bool open() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

// The system's words for an error number.
inline std::string text_of_errno(int number) {
  return std::generic_category().message(number);
}
// True for errors after which the call may be made again, now or when the socket is
// ready.
inline bool is_temporary(int number) {
  return number == EAGAIN || number == EWOULDBLOCK || number == EINTR;
}

class TcpLoop : public FrameLoop {
 public:
  // Listens and starts the thread. `events` must outlive the loop.
  static Result<std::unique_ptr<TcpLoop>> start(int rank, int size,
                                                const TcpOptions& options,
                                                FrameEvents& events);
  // Calls stop().
  ~TcpLoop() override;

  const std::string& address() const { return address_; }

  // An order, from any thread.
  void dial(int rank, const SocketAddress& address);
  void send(int rank, Outgoing frame) override;
  void stop() override;
  // See TcpTransport::close_in_child.
  void close_in_child();

 private:
  enum class Stage { kConnecting, kHello, kUp };
  struct Connection {
    Descriptor socket;
    Stage stage = Stage::kHello;
    int peer = -1;  // -1: accepted, and its hello has not come yet
    bool dialed = false;
    std::string address;
    Bytes hello;
    FrameReader reader;
    std::deque<Outgoing> sending;
    size_t sent = 0;          // how many bytes of the first frame were sent
    bool wants_room = false;  // the socket's buffer is full: wait until there is room
    bool ended = false;       // all was sent, and the peer was told so
    uint64_t serial = 0;
  };
  using Connections = std::map<int, Connection>;  // by descriptor

  TcpLoop(int rank, int size, const TcpOptions& options, FrameEvents& events);
  Result<void> listen();
  Result<void> make_helpers();

  void run();
  bool carry_out_orders();
  bool all_delivered();
  void wake();
  void watch(int descriptor, uint32_t events, int operation);

  void accept_all();
  bool accept_one();
  void drop_oldest_stranger();
  void begin_dial(int rank, const SocketAddress& address);
  Connection& add(Descriptor socket);
  void set_options(int socket) const;
  void serve(int descriptor, uint32_t events);
  // Each returns false if it has closed the connection.
  bool finish_dial(Connection& connection);
  bool receive(Connection& connection);
  bool read_hello(Connection& connection, ByteView& bytes);
  bool read_frames(Connection& connection, ByteView bytes);
  bool accept_peer(Connection& connection);
  void flush(Connection& connection);
  void close(Connection& connection, const std::string& why);
  void stop_listening_if_complete();

  const int rank_;
  const int size_;
  const TcpOptions options_;
  FrameEvents& events_;
  std::string address_;

  // Only the thread uses these members, once it runs.
  Descriptor epoll_;
  Descriptor wake_;
  Descriptor listener_;
  bool listening_ = false;
  Connections connections_;
  std::vector<int> by_rank_;  // the descriptor; -1 not connected yet, -2 gone
  int awaited_ = 0;           // how many ranks have not dialed yet
  uint64_t serial_ = 0;
  Bytes buffer_;

  // The descriptors that stay open for long, for close_in_child(): one for each rank,
  // then epoll, wake and listener.
  std::vector<std::atomic<int>> descriptors_;

  Mutex mutex_;
  std::vector<std::pair<int, SocketAddress>> dials_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::pair<int, Outgoing>> outgoing_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Mutex stop_mutex_;
  std::jthread thread_;  // the last member: the thread uses those above
};

}  // namespace holdfast
