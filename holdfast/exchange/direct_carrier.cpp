// Carriers between two ranks of one process. The sender lends its memory: it says how
// far its stream may be read, and the receiver copies from there to its own memory.
#include <map>

#include "holdfast/base/mutex.h"
#include "holdfast/base/number_text.h"
#include "holdfast/exchange/carrier.h"

namespace holdfast {
namespace {

constexpr int64_t kDirectWindow = int64_t{1} << 20;
constexpr Duration kLookAgain = std::chrono::milliseconds(50);

// Both sides have a reference to it.
struct Channel {
  explicit Channel(const PairStream* of_sender) : stream(of_sender) {}

  const PairStream* const stream;  // the sender's
  Mutex mutex;
  Condition changed;
  int64_t lent HOLDFAST_GUARDED_BY(mutex) = 0;   // the receiver may read so many bytes
  int64_t taken HOLDFAST_GUARDED_BY(mutex) = 0;  // it has read so many
  bool reading HOLDFAST_GUARDED_BY(mutex) = false;
  bool given_up HOLDFAST_GUARDED_BY(mutex) = false;
};

// The channels of this process, by random numbers. A number that is not there is one of
// another process.
class Channels {
 public:
  static Channels& get() {
    static Channels& channels = *new Channels;
    return channels;
  }
  void add(uint64_t number, const std::shared_ptr<Channel>& channel) {
    MutexLock lock(mutex_);
    std::erase_if(channels_, [](const auto& one) { return one.second.expired(); });
    channels_[number] = channel;
  }
  std::shared_ptr<Channel> find(uint64_t number) {
    MutexLock lock(mutex_);
    const auto found = channels_.find(number);
    return found == channels_.end() ? nullptr : found->second.lock();
  }

 private:
  Mutex mutex_;
  // Weak, so that a channel goes with its two sides.
  std::map<uint64_t, std::weak_ptr<Channel>> channels_ HOLDFAST_GUARDED_BY(mutex_);
};

// Waits for a change, or for a moment. Fails as check_link() does.
Result<void> wait_a_moment(const PairLink& link, Channel& channel)
    HOLDFAST_REQUIRES(channel.mutex);
Result<void> wait_a_moment(const PairLink& link, Channel& channel) {
  channel.changed.wait_for(channel.mutex, kLookAgain);
  return check_link(link);
}

class DirectOutlet : public Outlet {
 public:
  DirectOutlet(const PairLink& link, std::shared_ptr<Channel> channel)
      : link_(link), channel_(std::move(channel)) {}
  // The receiver must not read memory that is about to go.
  ~DirectOutlet() override { give_up(); }

  Carrier carrier() const override { return Carrier::kDirect; }
  int64_t window_bytes() const override { return kDirectWindow; }
  Result<ByteView> send(const PairStream&, int64_t first, int64_t size) override {
    MutexLock lock(channel_->mutex);
    channel_->lent = first + size;
    channel_->changed.notify_all();
    return ByteView();
  }
  Result<void> flush() override {
    MutexLock lock(channel_->mutex);
    while (channel_->taken < channel_->lent) {
      HOLDFAST_TRY(wait_a_moment(link_, *channel_));
    }
    return {};
  }
  void give_up() override {
    MutexLock lock(channel_->mutex);
    channel_->given_up = true;
    channel_->changed.notify_all();
    while (channel_->reading) channel_->changed.wait(channel_->mutex);
  }

 private:
  const PairLink link_;
  const std::shared_ptr<Channel> channel_;
};

class DirectInlet : public Inlet {
 public:
  DirectInlet(const PairLink& link, std::shared_ptr<Channel> channel)
      : link_(link), channel_(std::move(channel)) {
    // A receiver whose rank has failed goes on until the sender gives up.
    link_.stopped = nullptr;
  }

  Carrier carrier() const override { return Carrier::kDirect; }
  int64_t window_bytes() const override { return kDirectWindow; }
  Result<void> receive(const PairStream& stream, int64_t first, int64_t size,
                       PieceWriter& writer, Result<void>& put) override {
    HOLDFAST_TRY(begin(first + size));
    put = stream.copy_from(*channel_->stream, first, size, writer);
    end(first + size);
    return {};
  }
  Result<void> skip(int64_t size) override {
    HOLDFAST_TRY(begin(taken_ + size));
    end(taken_ + size);
    return {};
  }

 private:
  Result<void> begin(int64_t until) {
    MutexLock lock(channel_->mutex);
    while (channel_->lent < until) {
      if (channel_->given_up) return gave_up(link_);
      HOLDFAST_TRY(wait_a_moment(link_, *channel_));
    }
    if (channel_->given_up) return gave_up(link_);
    channel_->reading = true;
    return {};
  }
  void end(int64_t until) {
    taken_ = until;
    MutexLock lock(channel_->mutex);
    channel_->reading = false;
    channel_->taken = until;
    channel_->changed.notify_all();
  }

  PairLink link_;
  const std::shared_ptr<Channel> channel_;
  int64_t taken_ = 0;
};

}  // namespace

AddressedOutlet direct_outlet(const PairLink& link, const PairStream& stream) {
  const auto channel = std::make_shared<Channel>(&stream);
  const uint64_t number = link.env->random64();
  Channels::get().add(number, channel);
  return {.outlet = std::make_unique<DirectOutlet>(link, channel),
          .address = fmt::format("{}", number)};
}

Result<std::unique_ptr<Inlet>> direct_inlet(const PairLink& link,
                                            std::string_view address) {
  const auto number = number_in<uint64_t>(address);
  const std::shared_ptr<Channel> channel =
      number ? Channels::get().find(*number) : nullptr;
  if (channel == nullptr) {
    return not_found("rank {}: is in another process; expected one in this process",
                     link.peer);
  }
  return std::unique_ptr<Inlet>(std::make_unique<DirectInlet>(link, channel));
}

}  // namespace holdfast
