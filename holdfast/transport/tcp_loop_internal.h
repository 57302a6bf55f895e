// The sockets of a TcpTransport and the one thread that serves them. It alone reads and
// writes; others leave orders and are told what happened.
//
// No time is asked for and nothing waits for a peer: what goes in order waits in memory,
// and deadlines are the callers' business.
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
#include "holdfast/transport/tcp_address_internal.h"
#include "holdfast/transport/tcp_frame_internal.h"

namespace holdfast {

// An open descriptor, closed at the end.
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

// In words.
inline std::string text_of_errno(int number) {
  return std::generic_category().message(number);
}
// The call may be made again, now or when the socket is ready.
inline bool is_passing(int number) {
  return number == EAGAIN || number == EWOULDBLOCK || number == EINTR;
}

// What happens at the sockets, called by the loop's thread without any lock of its own.
class TcpEvents {
 public:
  virtual ~TcpEvents() = default;
  virtual void on_up(int rank) = 0;
  // The peer is closed if this fails.
  virtual Result<void> on_frame(int rank, Frame frame) = 0;
  // The last of that rank. Also for one that could not be reached.
  virtual void on_gone(int rank, const std::string& why) = 0;
};

class TcpLoop {
 public:
  // Listens, and starts. `events` must outlive it.
  static Result<std::unique_ptr<TcpLoop>> start(int rank, int size,
                                                const TcpOptions& options,
                                                TcpEvents& events);
  // stop()
  ~TcpLoop();
  TcpLoop(const TcpLoop&) = delete;
  TcpLoop& operator=(const TcpLoop&) = delete;

  const std::string& address() const { return address_; }

  // Orders, from any thread. A frame for a rank that is not up is lost.
  void dial(int rank, const SocketAddress& address);
  void send(int rank, Outgoing frame);
  // Sends what there is, if it goes (see TcpTransport::close), and ends the thread.
  void stop();
  void close_in_child();

 private:
  enum class Stage { kConnecting, kHello, kUp };
  struct Connection {
    Descriptor socket;
    Stage stage = Stage::kHello;
    int peer = -1;  // not known of one that was accepted before its hello
    bool dialed = false;
    std::string address;
    Bytes hello;
    FrameReader reader;
    std::deque<Outgoing> sending;
    size_t sent = 0;  // bytes of the first
    bool wants_room = false;
    bool ended = false;  // nothing more goes out
    uint64_t serial = 0;
  };
  using Connections = std::map<int, Connection>;  // by descriptor

  TcpLoop(int rank, int size, const TcpOptions& options, TcpEvents& events);
  Result<void> listen();
  Result<void> make_helpers();

  void run();
  bool take_orders();
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
  // Each false when the connection is closed.
  bool finish_dial(Connection& connection);
  bool receive(Connection& connection);
  bool take_hello(Connection& connection, ByteView& bytes);
  bool take_frames(Connection& connection, ByteView bytes);
  bool accept_peer(Connection& connection);
  void flush(Connection& connection);
  void close(Connection& connection, const std::string& why);
  void stop_listening_if_complete();

  const int rank_;
  const int size_;
  const TcpOptions options_;
  TcpEvents& events_;
  std::string address_;

  // Of the thread, once it runs.
  Descriptor epoll_;
  Descriptor wake_;
  Descriptor listener_;
  bool listening_ = false;
  Connections connections_;
  std::vector<int> by_rank_;  // descriptors of those that are up; -1
  int awaited_ = 0;           // ranks that have yet to dial
  uint64_t serial_ = 0;
  Bytes buffer_;

  std::vector<std::atomic<int>> descriptors_;  // all that are long open, for a child

  Mutex mutex_;
  std::vector<std::pair<int, SocketAddress>> dials_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::pair<int, Outgoing>> outgoing_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Mutex stop_mutex_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace holdfast
