#include "holdfast/transport/tcp_transport.h"

#include <optional>
#include <utility>

#include "holdfast/transport/mailbox.h"
#include "holdfast/transport/tcp_loop_internal.h"

namespace holdfast {

TcpTransport::TcpTransport(std::unique_ptr<Mailbox> mailbox, TcpLoop& loop)
    : mailbox_(std::move(mailbox)), loop_(loop) {}

Result<std::unique_ptr<TcpTransport>> TcpTransport::listen(Env& env, int rank, int size,
                                                           const TcpOptions& options) {
  const MailboxLimits limits{
      .queue = {static_cast<int64_t>(options.queue), options.queue_bytes},
      .most_bytes = options.most_bytes};
  auto mailbox = std::make_unique<Mailbox>(env, rank, size, limits);
  std::unique_ptr<TcpLoop> loop =
      HOLDFAST_TRY(TcpLoop::start(rank, size, options, *mailbox));
  TcpLoop& started = *loop;
  mailbox->set_loop(std::move(loop));
  return std::unique_ptr<TcpTransport>(new TcpTransport(std::move(mailbox), started));
}

TcpTransport::~TcpTransport() { close(); }

const std::string& TcpTransport::address() const { return loop_.address(); }

Result<void> TcpTransport::connect(const std::vector<std::string>& addresses,
                                   Instant deadline) {
  if (addresses.size() != static_cast<size_t>(size())) {
    return invalid("connect: {} addresses; expected one for each of {} ranks",
                   addresses.size(), size());
  }
  std::vector<SocketAddress> parsed;
  for (const std::string& address : addresses) {
    parsed.push_back(HOLDFAST_TRY(parse_address(address)));
  }
  for (int to = 0; to < rank(); ++to) loop_.dial(to, parsed[static_cast<size_t>(to)]);
  return mailbox_->wait_until_connected(deadline).within("connect");
}

void TcpTransport::close() { mailbox_->close(); }
void TcpTransport::close_in_child() { loop_.close_in_child(); }

int TcpTransport::rank() const { return mailbox_->rank(); }
int TcpTransport::size() const { return mailbox_->size(); }

Result<void> TcpTransport::send(int to, Tag tag, ByteView bytes, Instant deadline) {
  HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
  const auto message = std::make_shared<const Bytes>(copy_of(bytes));
  return mailbox_->send(to, tag, message, deadline);
}

Result<void> TcpTransport::send_in_place(int to, Tag tag, ByteView bytes,
                                         Instant deadline) {
  HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
  return mailbox_->send_in_place(to, tag, bytes, deadline);
}

Result<Bytes> TcpTransport::recv(int from, Tag tag, Instant deadline) {
  HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
  return mailbox_->recv(from, tag, deadline);
}

Result<size_t> TcpTransport::recv_into(int from, Tag tag, ByteSpan into,
                                       Instant deadline) {
  HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
  const std::optional<size_t> size =
      HOLDFAST_TRY(mailbox_->land(from, tag, into, deadline));
  if (size.has_value()) return *size;
  return Transport::recv_into(from, tag, into, deadline);
}

Result<void> TcpTransport::barrier(Instant deadline) {
  HOLDFAST_TRY(mailbox_->gather(*this, {}, deadline).within("barrier"));
  return {};
}

Result<std::vector<Bytes>> TcpTransport::all_gather(ByteView bytes, Instant deadline) {
  return mailbox_->gather(*this, bytes, deadline).within("all_gather");
}

}  // namespace holdfast
