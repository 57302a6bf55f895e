#include "holdfast/device/device.h"

#include <cstdlib>
#include <limits>
#include <new>

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

constexpr int64_t kMostPitch = std::numeric_limits<int32_t>::max();

bool is_pitch(int64_t stride, int64_t run) {
  return stride >= run && stride <= kMostPitch;
}

bool is_aligned(const CudaCopy& copy) {
  return (copy.to | copy.from) % CudaCopy::kAlignment == 0;
}

// True if our kernel can make the copy: everything is a multiple of 16, and the outer loops
// do not make too many single copies.
bool are_aligned_rows(const CudaCopy& first, const StridedCopy& copy) {
  constexpr int64_t kMostCopies = 4096;
  constexpr auto kAlignment = static_cast<int64_t>(CudaCopy::kAlignment);
  if (!is_aligned(first) || copy.run % kAlignment != 0) return false;
  int64_t outer = 1;
  for (int k = 0; k < copy.loops; ++k) {
    const StridedCopy::Loop& loop = copy.loop[static_cast<size_t>(k)];
    if ((loop.from_stride | loop.to_stride) % kAlignment != 0) return false;
    if (loop.from_stride < 0 || loop.to_stride < 0) return false;
    if (k == copy.loops - 1) break;
    if (loop.count > kMostCopies / outer) return false;
    outer *= loop.count;
  }
  return true;
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
  device->load_kernels();
  return device;
}

// If a kernel cannot be loaded, copies inside the device are made one by one, and seals are
// computed on the host.
void Device::load_kernels() {
  if (const Result<CudaKernel> copier = driver_.load_copier(); copier.ok()) {
    copier_ = *copier;
  }
  if (const Result<CudaKernel> copier = driver_.load_row_copier(); copier.ok()) {
    row_copier_ = *copier;
  }
  Result<CudaKernel> sealer = driver_.load_sealer();
  if (sealer.ok()) {
    sealer_ = *sealer;
  } else {
    seal_error_ = std::move(sealer).error();
  }
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
    for (const HeldRoom& held : seal_rooms_) {
      driver_.free(address_of(held.room->on_device_.data()));
      if (held.room->pinned_) driver_.unpin(held.room->on_host_.get());
    }
  }
  driver_.release_context(number_);
}

void SealRoom::Free::operator()(std::byte* memory) const { std::free(memory); }

Result<std::unique_ptr<SealRoom>> Device::make_seal_room(int64_t bytes) const {
  constexpr int64_t kLeast = int64_t{256} << 10;  // whole pages, because it is pinned
  const auto size = static_cast<size_t>(divide_up(std::max<int64_t>(bytes, 1), kLeast) * kLeast);
  auto* const on_host = static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, size));
  if (on_host == nullptr) throw std::bad_alloc();
  auto room = std::make_unique<SealRoom>(ByteSpan(), on_host);
  room->on_device_ = HOLDFAST_TRY(allocate(static_cast<int64_t>(size), 0));
  // Into memory that is not pinned, the copy of the sums is only slower.
  room->pinned_ = driver_.pin(on_host, static_cast<int64_t>(size)).ok();
  return room;
}

Result<SealRoom*> Device::take_seal_room(int64_t bytes) const {
  {
    MutexLock lock(spare_mutex_);
    for (HeldRoom& held : seal_rooms_) {
      if (held.taken || std::ssize(held.room->on_device_) < bytes) continue;
      held.taken = true;
      return held.room.get();
    }
  }
  const Entered entered(*this);
  HOLDFAST_TRY(entered.outcome());
  std::unique_ptr<SealRoom> made = HOLDFAST_TRY(make_seal_room(bytes).within("seals"));
  MutexLock lock(spare_mutex_);
  seal_rooms_.push_back({.room = std::move(made), .taken = true});
  return seal_rooms_.back().room.get();
}

void Device::give_back(SealRoom& room) const {
  MutexLock lock(spare_mutex_);
  for (HeldRoom& held : seal_rooms_) {
    if (held.room.get() == &room) held.taken = false;
  }
}

Result<void> Device::prepare_seal_rooms(size_t count, int64_t bytes) const {
  std::vector<SealRoom*> rooms;
  Result<void> made;
  for (size_t i = 0; i < count && made.ok(); ++i) {
    const Result<SealRoom*> room = take_seal_room(bytes);
    if (room.ok()) rooms.push_back(*room);
    if (!room.ok()) made = room.error();
  }
  for (SealRoom* room : rooms) give_back(*room);
  return made;
}

Result<void> Device::seal(std::span<const CudaSealRun> runs, const SealRoom& room) const {
  if (runs.empty()) return {};
  const Entered entered(*this);
  HOLDFAST_TRY(entered.outcome());
  const DeviceAddress sums = address_of(room.on_device_.data());
  HOLDFAST_TRY(driver_.seal_all(sealer_, runs, sums, stream_));
  const auto bytes =
      std::ssize(runs) * CudaSealRun::kSums * static_cast<int64_t>(sizeof(CudaSealSum));
  return driver_.copy(address_of(room.on_host_.get()), sums, bytes, stream_);
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
  if (part.run == 0) return;
  check_copy(part, memory.size(), into.size());
  if (part.loops > 0 && device_->row_copier_ != nullptr && are_aligned_rows(run, part)) {
    add_rows(part, 0, run.from, run.to);
  } else if (part.loops == 0 && device_->copier_ != nullptr && is_aligned(run)) {
    runs_.push_back(run);
  } else {
    scattered_.push_back({.copy = part, .from = memory, .to = into});
  }
}

// The innermost loop becomes the rows of one copy.
void Device::InsideCopies::add_rows(const StridedCopy& copy, int depth,
                                    DeviceAddress from, DeviceAddress to) {
  const StridedCopy::Loop& loop = copy.loop[static_cast<size_t>(depth)];
  if (depth == copy.loops - 1) {
    rows_.push_back({.to = to,
                     .to_pitch = loop.to_stride,
                     .from = from,
                     .from_pitch = loop.from_stride,
                     .bytes = copy.run,
                     .rows = loop.count});
    return;
  }
  for (int64_t i = 0; i < loop.count; ++i) {
    add_rows(copy, depth + 1, from + static_cast<DeviceAddress>(i * loop.from_stride),
             to + static_cast<DeviceAddress>(i * loop.to_stride));
  }
}

void Device::InsideCopies::clear() {
  runs_.clear();
  rows_.clear();
  scattered_.clear();
}

Result<void> Device::InsideCopies::run() const {
  const Entered entered(*device_);
  HOLDFAST_TRY(entered.outcome());
  for (const Strided& one : scattered_) {
    HOLDFAST_TRY(device_->copy(one.copy, one.from, one.to));
  }
  if (!rows_.empty()) {
    HOLDFAST_TRY(device_->driver_.copy_all_rows(device_->row_copier_, rows_,
                                                device_->stream_));
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
