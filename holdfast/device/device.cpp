#include "holdfast/device/device.h"

#include <limits>

namespace holdfast {
namespace {

constexpr int64_t kMostPitch = std::numeric_limits<int32_t>::max();

bool is_pitch(int64_t stride, int64_t run) {
  return stride >= run && stride <= kMostPitch;
}

bool is_aligned(const CudaCopy& copy) {
  return (copy.to | copy.from) % CudaCopy::kAlignment == 0;
}

}  // namespace

// While this object lives, the device's context is the context of the calling thread.
class Device::Entered {
 public:
  explicit Entered(const Device& device)
      : driver_(device.driver_), outcome_(driver_.enter(device.context_)) {}
  ~Entered() {
    if (outcome_.ok()) driver_.leave();
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

  const Result<void>& outcome() const { return outcome_; }

 private:
  CudaDriver& driver_;
  const Result<void> outcome_;
};

Result<bool> DeviceMark::done() const {
  const Device::Entered entered(*device_);
  HOLDFAST_TRY(entered.outcome());
  return device_->driver_.reached(event_.get());
}

Result<void> DeviceMark::wait() const {
  const Device::Entered entered(*device_);
  HOLDFAST_TRY(entered.outcome());
  return device_->driver_.wait(event_.get());
}

Result<std::unique_ptr<Device>> Device::open(CudaDriver& driver, int number) {
  CudaContext context = HOLDFAST_TRY(driver.retain_context(number));
  std::unique_ptr<Device> device(new Device(driver, number, context));
  const Entered entered(*device);
  HOLDFAST_TRY(entered.outcome());
  device->stream_ = HOLDFAST_TRY(driver.create_stream());
  // If the kernel cannot be loaded, copies inside the device are made one by one.
  if (const Result<CudaKernel> copier = driver.load_copier(); copier.ok()) {
    device->copier_ = *copier;
  }
  return device;
}

Device::~Device() {
  if (stream_ != nullptr) {
    if (const Result<DeviceMark> last = mark(); last.ok()) {
      static_cast<void>(last->wait());
    }
    const Entered entered(*this);
    if (entered.outcome().ok()) driver_.destroy_stream(stream_);
  }
  {
    const Entered entered(*this);
    MutexLock lock(spare_mutex_);
    for (CudaEvent const event : spare_) driver_.destroy_event(event);
  }
  driver_.release_context(number_);
}

// The stream itself if it belongs to this device, else this device's default stream.
// Must be called in the device's context. A stream whose context the driver cannot tell
// is used as it is.
CudaStream Device::stream_on_this_device(CudaStream stream) const {
  if (stream == nullptr || stream == stream_) return stream;
  const Result<CudaContext> context = driver_.context_of(stream);
  return context.ok() && *context != context_ ? nullptr : stream;
}

// A spare event, or a new one. Must be called in the device's context. A stream may
// still wait for an earlier record of a spare event. Recording the event again does not
// disturb that wait, because a wait refers to the record that the event had at that
// time.
Result<CudaEvent> Device::take_event() const {
  {
    MutexLock lock(spare_mutex_);
    if (!spare_.empty()) {
      CudaEvent const event = spare_.back();
      spare_.pop_back();
      return event;
    }
  }
  return driver_.create_event();
}

Result<DeviceMark> Device::mark(CudaStream stream) const {
  const Entered entered(*this);
  HOLDFAST_TRY(entered.outcome());
  const auto give_back = [this](CudaEvent event) {
    MutexLock lock(spare_mutex_);
    spare_.push_back(event);
  };
  const DeviceMark mark(this, {HOLDFAST_TRY(take_event()), give_back});
  HOLDFAST_TRY(driver_.record(mark.event_.get(), stream_on_this_device(stream)));
  return mark;
}

Result<void> Device::make_wait(CudaStream stream, const DeviceMark& mark) const {
  const Entered entered(*this);
  HOLDFAST_TRY(entered.outcome());
  return driver_.make_wait(stream_on_this_device(stream), mark.event_.get());
}

Result<void> Device::read(const BoxMemory& from, ByteView memory, int64_t first,
                          ByteSpan into) const {
  const Entered entered(*this);
  HOLDFAST_TRY(entered.outcome());
  for (const StridedCopy& part :
       plan_gather(from, first, static_cast<int64_t>(into.size()))) {
    HOLDFAST_TRY(copy(part, memory, into));
  }
  return {};
}

Result<void> Device::write(const BoxMemory& to, ByteSpan memory, int64_t first,
                           ByteView from) const {
  const Entered entered(*this);
  HOLDFAST_TRY(entered.outcome());
  for (const StridedCopy& part :
       plan_scatter(to, first, static_cast<int64_t>(from.size()))) {
    HOLDFAST_TRY(copy(part, from, memory));
  }
  return {};
}

void Device::InsideCopies::add(const BoxMemory& from, ByteView memory, ByteSpan into) {
  // Most boxes have no gaps. They skip plan_gather(), because training waits for this.
  if (from.map == Map::dense(from.box, from.element_bytes, from.map.offset)) {
    add(StridedCopy{.from = from.map.offset, .run = std::ssize(into)}, memory, into);
    return;
  }
  for (const StridedCopy& part : plan_gather(from, 0, std::ssize(into))) {
    add(part, memory, into);
  }
}

void Device::InsideCopies::add(const StridedCopy& part, ByteView memory,
                               ByteSpan into) {
  const CudaCopy run{.to = address_of(into.data() + part.to),
                     .from = address_of(memory.data() + part.from),
                     .bytes = part.run};
  if (device_->copier_ == nullptr || part.loops > 0 || !is_aligned(run)) {
    scattered_.push_back({.copy = part, .from = memory, .to = into});
    return;
  }
  check_copy(part, memory.size(), into.size());
  runs_.push_back(run);
}

Result<void> Device::InsideCopies::run() const {
  const Entered entered(*device_);
  HOLDFAST_TRY(entered.outcome());
  for (const Strided& one : scattered_) {
    HOLDFAST_TRY(device_->copy(one.copy, one.from, one.to));
  }
  if (runs_.empty()) return {};
  return device_->driver_.copy_all(device_->copier_, runs_, device_->stream_);
}

// Copies between the two spans, which are only used as addresses.
Result<void> Device::copy(const StridedCopy& copy, ByteView from, ByteView to) const {
  if (copy.run == 0) return {};
  check_copy(copy, from.size(), to.size());
  return copy_loops(copy, 0, address_of(from.data() + copy.from),
                    address_of(to.data() + copy.to));
}

Result<void> Device::copy_loops(const StridedCopy& copy, int depth, DeviceAddress from,
                                DeviceAddress to) const {
  if (depth == copy.loops) return driver_.copy(to, from, copy.run, stream_);
  const StridedCopy::Loop& loop = copy.loop[static_cast<size_t>(depth)];
  if (depth == copy.loops - 1 && is_pitch(loop.from_stride, copy.run) &&
      is_pitch(loop.to_stride, copy.run)) {
    return driver_.copy_rows({.to = to,
                              .to_pitch = loop.to_stride,
                              .from = from,
                              .from_pitch = loop.from_stride,
                              .bytes = copy.run,
                              .rows = loop.count},
                             stream_);
  }
  for (int64_t i = 0; i < loop.count; ++i) {
    HOLDFAST_TRY(copy_loops(copy, depth + 1,
                            from + static_cast<DeviceAddress>(i * loop.from_stride),
                            to + static_cast<DeviceAddress>(i * loop.to_stride)));
  }
  return {};
}

Result<ByteSpan> Device::allocate(int64_t bytes, int64_t reserve) const {
  const Entered entered(*this);
  HOLDFAST_TRY(entered.outcome());
  const CudaMemory memory = HOLDFAST_TRY(driver_.memory());
  if (memory.free < reserve || memory.free - reserve < bytes) {
    return no_space("device {}: {} bytes are free; expected {} and a reserve of {}",
                    number_, memory.free, bytes, reserve);
  }
  const DeviceAddress address = HOLDFAST_TRY(driver_.allocate(bytes));
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver gives addresses as numbers.
  return ByteSpan(reinterpret_cast<std::byte*>(static_cast<uintptr_t>(address)),
                  static_cast<size_t>(bytes));
}

void Device::free(ByteSpan memory) const {
  const Entered entered(*this);
  if (entered.outcome().ok()) driver_.free(address_of(memory.data()));
}

Result<void> Device::pin(ByteSpan memory) {
  const Entered entered(*this);
  HOLDFAST_TRY(entered.outcome());
  return driver_.pin(memory.data(), static_cast<int64_t>(memory.size()));
}

void Device::unpin(ByteSpan memory) {
  const Entered entered(*this);
  if (entered.outcome().ok()) driver_.unpin(memory.data());
}

Result<void> follow_stream(std::span<const Device* const> devices, CudaStream stream) {
  for (const Device* device : devices) {
    HOLDFAST_TRY(device->follow(HOLDFAST_TRY(device->mark(stream))));
  }
  return {};
}

Result<Device*> Devices::of(ByteView memory) {
  if (memory.empty()) return nullptr;
  const auto first = HOLDFAST_TRY(driver_.device_of(address_of(memory.data())));
  const auto last = HOLDFAST_TRY(driver_.device_of(address_of(&memory.back())));
  if (first != last) {
    return invalid(
        "memory of {} bytes: begins on device {} and ends on device {} "
        "(-1 is the host)",
        memory.size(), first.value_or(-1), last.value_or(-1));
  }
  if (!first.has_value()) return nullptr;
  MutexLock lock(mutex_);
  for (const std::unique_ptr<Device>& device : open_) {
    if (device->number() == *first) return device.get();
  }
  open_.push_back(HOLDFAST_TRY(Device::open(driver_, *first)));
  return open_.back().get();
}

}  // namespace holdfast
