#include "holdfast/mpi/mpi_transport.h"

#include <limits>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/mpi/mpi_loop_internal.h"
#include "holdfast/transport/mailbox.h"

namespace holdfast {
namespace {

constexpr int64_t kMostBytes = std::numeric_limits<int>::max() - int64_t{64};

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(std::unique_ptr<Mailbox> mailbox)
      : mailbox_(std::move(mailbox)) {}
  ~MpiTransport() override { mailbox_->close(); }

  int rank() const override { return mailbox_->rank(); }
  int size() const override { return mailbox_->size(); }
  Result<void> send(int to, Tag tag, ByteView bytes, Instant deadline) override {
    HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
    return mailbox_->send(to, tag, std::make_shared<const Bytes>(copy_of(bytes)),
                          deadline);
  }
  Result<void> send_in_place(int to, Tag tag, ByteView bytes,
                             Instant deadline) override {
    HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
    return mailbox_->send_in_place(to, tag, bytes, deadline);
  }
  Result<Bytes> recv(int from, Tag tag, Instant deadline) override {
    HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
    return mailbox_->recv(from, tag, deadline);
  }
  Result<size_t> recv_into(int from, Tag tag, ByteSpan into,
                           Instant deadline) override {
    HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
    const std::optional<size_t> size =
        HOLDFAST_TRY(mailbox_->land(from, tag, into, deadline));
    if (size.has_value()) return *size;
    return Transport::recv_into(from, tag, into, deadline);
  }
  Result<void> barrier(Instant deadline) override {
    HOLDFAST_TRY(mailbox_->gather(*this, {}, deadline).within("barrier"));
    return {};
  }
  Result<std::vector<Bytes>> all_gather(ByteView bytes, Instant deadline) override {
    return mailbox_->gather(*this, bytes, deadline).within("all_gather");
  }

 private:
  const std::unique_ptr<Mailbox> mailbox_;
};

Result<void> check_initialised() {
  int initialised = 0, finalised = 0, level = 0;
  HOLDFAST_TRY(check_mpi(MPI_Initialized(&initialised), "MPI_Initialized"));
  HOLDFAST_TRY(check_mpi(MPI_Finalized(&finalised), "MPI_Finalized"));
  if (initialised == 0 || finalised != 0) {
    return invalid("mpi: is {}; expected a call of MPI_Init_thread before",
                   finalised != 0 ? "finalised" : "not initialised");
  }
  HOLDFAST_TRY(check_mpi(MPI_Query_thread(&level), "MPI_Query_thread"));
  if (level >= MPI_THREAD_SERIALIZED) return {};
  return invalid(
      "mpi: level of threads {}; expected MPI_THREAD_MULTIPLE ({}), or "
      "MPI_THREAD_SERIALIZED ({})",
      level, MPI_THREAD_MULTIPLE, MPI_THREAD_SERIALIZED);
}

Result<void> check_communicator(MPI_Comm communicator) {
  if (communicator == MPI_COMM_NULL) {
    return invalid(
        "mpi: the communicator is MPI_COMM_NULL; expected one that this process is in");
  }
  int between_groups = 0;
  HOLDFAST_TRY(check_mpi(MPI_Comm_test_inter(communicator, &between_groups),
                         "MPI_Comm_test_inter"));
  if (between_groups == 0) return {};
  return invalid("mpi: the communicator connects two groups; expected one group");
}

// A communicator that is being made. MPI may write to it as long as the process lives.
struct Making {
  MPI_Comm of = MPI_COMM_NULL;  // the caller's communicator
  MPI_Comm communicator = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;  // of the call that is under way
  bool begun = false;
  bool met = false;  // this rank has come to the barrier
};

// A request that is done stays done.
Result<void> wait_for_all(Env& env, MPI_Request& request, Instant deadline) {
  while (true) {
    int done = 0;
    HOLDFAST_TRY(check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test"));
    if (done != 0) return {};
    if (env.now() >= deadline) break;
    env.sleep_for(std::chrono::milliseconds(1));
  }
  return timed_out("mpi: not all processes have started their transport in time");
}

// What an earlier call has begun for this communicator, or a new object. An object that
// is done stays in the list, as its communicator stays in MPI.
Making& making_for(MPI_Comm communicator) {
  static Mutex mutex;
  static std::list<Making>& all = *new std::list<Making>;
  MutexLock lock(mutex);
  for (Making& making : all) {
    if (making.of == communicator) return making;
  }
  return all.emplace_back(Making{.of = communicator});
}

// A communicator for the messages of one transport. Waits until all ranks have come. MPI
// cannot give up what it has begun with the other ranks, so a call goes on with what an
// earlier one had to leave: a rank that comes late would else match that call alone, and
// the others would wait for it in another one. For the same reason the ranks meet at a
// barrier: the communicator is also made for a late rank when no other waits any more.
Result<MPI_Comm> duplicate(Env& env, MPI_Comm communicator, Instant deadline) {
  Making& making = making_for(communicator);
  if (!making.begun) {
    HOLDFAST_TRY(
        check_mpi(MPI_Comm_idup(communicator, &making.communicator, &making.request),
                  "MPI_Comm_idup"));
    making.begun = true;
  }
  HOLDFAST_TRY(wait_for_all(env, making.request, deadline));
  if (!making.met) {
    HOLDFAST_TRY(
        check_mpi(MPI_Ibarrier(making.communicator, &making.request), "MPI_Ibarrier"));
    making.met = true;
  }
  HOLDFAST_TRY(wait_for_all(env, making.request, deadline));
  return std::exchange(making, Making()).communicator;
}

}  // namespace

Result<std::unique_ptr<Transport>> start_mpi_transport(Env& env, MPI_Comm communicator,
                                                       Instant deadline,
                                                       const MpiOptions& options) {
  HOLDFAST_CHECK(options.most_bytes <= kMostBytes, "messages of {} bytes, limit {}",
                 options.most_bytes, kMostBytes);
  HOLDFAST_TRY(check_initialised());
  HOLDFAST_TRY(check_communicator(communicator));
  int rank = 0, size = 0;
  HOLDFAST_TRY(check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank"));
  HOLDFAST_TRY(check_mpi(MPI_Comm_size(communicator, &size), "MPI_Comm_size"));
  MPI_Comm own = HOLDFAST_TRY(duplicate(env, communicator, deadline));
  HOLDFAST_TRY(check_mpi(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN),
                         "MPI_Comm_set_errhandler"));
  const MailboxLimits limits{
      .queue = {static_cast<int64_t>(options.queue), options.queue_bytes},
      .most_bytes = options.most_bytes};
  auto mailbox = std::make_unique<Mailbox>(env, rank, size, limits);
  for (int r = 0; r < size; ++r) mailbox->on_up(r);
  mailbox->set_loop(
      std::make_unique<MpiLoop>(own, rank, size, options.most_bytes, *mailbox));
  return std::unique_ptr<Transport>(new MpiTransport(std::move(mailbox)));
}

}  // namespace holdfast
