// A CUDA driver without a device, for tests. Its device memory is host memory. Its
// streams do their work only when somebody waits, in the most inconvenient order that
// the rules allow. Only for *_test.cpp.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "holdfast/base/mutex.h"
#include "holdfast/device/cuda_driver.h"
#include "holdfast/device/device.h"
#include "holdfast/state/seal.h"

namespace holdfast {

// The streams that do all the work they can before the others do any: those that the
// library created, or those of the training.
enum class First { kOurs, kTrainings };

class FakeCuda : public CudaDriver {
 public:
  explicit FakeCuda(First first = First::kTrainings) : first_(first) {}
  ~FakeCuda() override {
    HOLDFAST_CHECK(retained_ == 0, "{} contexts are not released", retained_);
    HOLDFAST_CHECK(events_.empty(), "{} events are left", events_.size());
    HOLDFAST_CHECK(pinned_.empty(), "{} blocks are left pinned", pinned_.size());
    HOLDFAST_CHECK(allocated_.empty(), "{} allocations are left", allocated_.size());
  }

  // What the training does: tensors, streams and kernels.
  ByteSpan new_tensor(size_t bytes, int device = 0) {
    MutexLock lock(mutex_);
    Bytes& memory = tensors_.emplace_back(bytes);
    ranges_[address_of(memory.data())] = {bytes, device};
    return memory;
  }
  CudaStream new_stream(int device = 0) {
    MutexLock lock(mutex_);
    return add_stream(device, false);
  }
  // Runs a kernel that sets all bytes of a tensor. A null stream is the default stream
  // of the tensor's device.
  void set(CudaStream stream, ByteSpan tensor, std::byte value) {
    MutexLock lock(mutex_);
    const int device = range_of(address_of(tensor.data())).second;
    find(stream, device).work.push_back({.run = [=] {
      std::fill(tensor.begin(), tensor.end(), value);
    }});
  }
  void run_all() {
    MutexLock lock(mutex_);
    while (advance()) continue;
  }
  // How often a stream was made to wait. A null stream is the default stream of device
  // 0.
  int waits_of(CudaStream stream) {
    MutexLock lock(mutex_);
    return find(stream, 0).waits;
  }

  int64_t free_memory = int64_t{1} << 40;
  int allocations = 0;
  int pins_left = 1 << 30;
  int copies_until_failure = 1 << 30;
  int unpinned_copies = 0;
  int copies = 0;
  int launches = 0;
  bool has_copier = true;
  bool has_sealer = true;
  int seals = 0;  // runs that were sealed

  Result<int> device_count() override { return 2; }
  Result<std::optional<int>> device_of(DeviceAddress address) override {
    MutexLock lock(mutex_);
    const auto [range, device] = range_of(address);
    return range == 0 ? std::optional<int>() : device;
  }
  Result<CudaContext> retain_context(int device) override {
    MutexLock lock(mutex_);
    ++retained_;
    return context_of_device(device);
  }
  void release_context(int) override {
    MutexLock lock(mutex_);
    --retained_;
  }
  Result<void> enter(CudaContext context) override {
    MutexLock lock(mutex_);
    entered_[std::this_thread::get_id()].push_back(context);
    return {};
  }
  void leave() override {
    MutexLock lock(mutex_);
    entered_[std::this_thread::get_id()].pop_back();
  }

  Result<CudaMemory> memory() override {
    MutexLock lock(mutex_);
    check_entered();
    return CudaMemory{free_memory, int64_t{1} << 40};
  }
  Result<DeviceAddress> allocate(int64_t bytes) override {
    MutexLock lock(mutex_);
    check_entered();
    ++allocations;
    free_memory -= bytes;
    Bytes memory(static_cast<size_t>(bytes), std::byte{0xee});
    const DeviceAddress address = address_of(memory.data());
    ranges_[address] = {memory.size(), device_now()};
    allocated_[address] = std::move(memory);
    return address;
  }
  void free(DeviceAddress memory) override {
    MutexLock lock(mutex_);
    check_entered();
    free_memory += static_cast<int64_t>(ranges_.at(memory).first);
    ranges_.erase(memory);
    allocated_.erase(memory);
  }
  Result<void> pin(void* memory, int64_t bytes) override {
    MutexLock lock(mutex_);
    check_entered();
    if (pins_left-- <= 0) return no_space("no more to pin");
    pinned_[address_of(memory)] = static_cast<size_t>(bytes);
    return {};
  }
  void unpin(void* memory) override {
    MutexLock lock(mutex_);
    check_entered();
    HOLDFAST_CHECK(pinned_.erase(address_of(memory)) == 1, "was not pinned");
  }

  Result<CudaStream> create_stream() override {
    MutexLock lock(mutex_);
    return add_stream(device_now(), true);
  }
  Result<CudaContext> context_of(CudaStream stream) override {
    MutexLock lock(mutex_);
    return context_of_device(find(stream, device_now()).device);
  }
  void destroy_stream(CudaStream stream) override {
    MutexLock lock(mutex_);
    check_entered();
    HOLDFAST_CHECK(streams_.at(stream).work.empty(), "a stream that has work");
    streams_.erase(stream);
  }
  Result<void> copy(DeviceAddress to, DeviceAddress from, int64_t bytes,
                    CudaStream stream) override {
    return copy_rows({.to = to, .from = from, .bytes = bytes, .rows = 1}, stream);
  }
  Result<CudaKernel> load_copier() override {
    if (!has_copier) return unsupported("no compiler");
    return reinterpret_cast<CudaKernel>(&copier_);
  }
  Result<void> copy_all(CudaKernel copier, std::span<const CudaCopy> all,
                        CudaStream stream) override {
    HOLDFAST_CHECK(copier == &copier_, "a kernel that was not loaded");
    ++launches;
    for (const CudaCopy& one : all) {
      HOLDFAST_CHECK((one.to | one.from) % CudaCopy::kAlignment == 0, "not aligned");
      HOLDFAST_CHECK(device_of(one.to)->has_value(), "not inside the device");
      HOLDFAST_TRY(copy(one.to, one.from, one.bytes, stream));
    }
    return {};
  }
  Result<CudaKernel> load_row_copier() override { return load_copier(); }
  Result<void> copy_all_rows(CudaKernel copier, std::span<const CudaRows> all,
                             CudaStream stream) override {
    HOLDFAST_CHECK(copier == &copier_, "a kernel that was not loaded");
    ++launches;
    for (const CudaRows& one : all) {
      const auto numbers = {static_cast<int64_t>(one.to), static_cast<int64_t>(one.from),
                            one.to_pitch, one.from_pitch, one.bytes};
      for (const int64_t number : numbers) {
        HOLDFAST_CHECK(number % int64_t{CudaCopy::kAlignment} == 0, "not aligned");
      }
      HOLDFAST_CHECK(one.bytes > 0 && device_of(one.to)->has_value(), "not inside");
      HOLDFAST_TRY(copy_rows(one, stream));
    }
    return {};
  }
  Result<CudaKernel> load_sealer() override {
    if (!has_sealer) return unsupported("no compiler");
    return reinterpret_cast<CudaKernel>(&sealer_);
  }
  // The first place of a run gets its sums, and the others get none.
  Result<void> seal_all(CudaKernel sealer, std::span<const CudaSealRun> runs,
                        DeviceAddress sums, CudaStream stream) override {
    HOLDFAST_CHECK(sealer == &sealer_, "a kernel that was not loaded");
    HOLDFAST_CHECK(device_of(sums)->has_value(), "sums that are not on the device");
    MutexLock lock(mutex_);
    check_entered();
    for (const CudaSealRun& run : runs) {
      ++seals;
      auto* const to = reinterpret_cast<CudaSealSum*>(sums);
      streams_.at(stream).work.push_back({.run = [run, to] {
        std::fill_n(to, CudaSealRun::kSums, CudaSealSum{});
        for (int64_t row = 0; row < run.rows; ++row) {
          const auto* from = reinterpret_cast<const std::byte*>(run.from) + row * run.from_pitch;
          const Seal seal = seal_bytes({from, static_cast<size_t>(run.bytes)},
                                       run.offset + static_cast<uint64_t>(row * run.offset_pitch));
          for (size_t lane = 0; lane < 2; ++lane) to->lanes[lane] += seal.lanes[lane];
        }
      }});
      sums += CudaSealRun::kSums * sizeof(CudaSealSum);
    }
    return {};
  }
  Result<void> copy_rows(const CudaRows& rows, CudaStream stream) override {
    MutexLock lock(mutex_);
    check_entered();
    ++copies;
    if (--copies_until_failure < 0) return io_error("copy: the device is lost");
    const auto reach = [&](int64_t pitch) {
      return static_cast<size_t>((rows.rows - 1) * pitch + rows.bytes);
    };
    const bool at_once = !is_known(rows.to, reach(rows.to_pitch)) ||
                         !is_known(rows.from, reach(rows.from_pitch));
    streams_.at(stream).work.push_back({.run = [=] {
      for (int64_t i = 0; i < rows.rows; ++i) {
        std::memcpy(
            reinterpret_cast<void*>(rows.to + static_cast<uint64_t>(i * rows.to_pitch)),
            reinterpret_cast<void*>(rows.from +
                                    static_cast<uint64_t>(i * rows.from_pitch)),
            static_cast<size_t>(rows.bytes));
      }
    }});
    if (!at_once) return {};
    ++unpinned_copies;
    while (!streams_.at(stream).work.empty()) {
      HOLDFAST_CHECK(advance(), "streams wait for each other");
    }
    return {};
  }

  Result<CudaEvent> create_event() override {
    MutexLock lock(mutex_);
    check_entered();
    const auto event = reinterpret_cast<CudaEvent>(++last_handle_);
    events_[event] = std::make_shared<bool>(true);
    return event;
  }
  void destroy_event(CudaEvent event) override {
    MutexLock lock(mutex_);
    check_entered();
    events_.erase(event);
  }
  Result<void> record(CudaEvent event, CudaStream stream) override {
    MutexLock lock(mutex_);
    check_entered();
    Stream& found = find(stream, device_now());
    if (found.device != device_now()) return io_error("record: of another context");
    const auto reached = std::make_shared<bool>(false);
    events_.at(event) = reached;
    found.work.push_back({.run = [reached] { *reached = true; }});
    return {};
  }
  Result<void> make_wait(CudaStream stream, CudaEvent event) override {
    MutexLock lock(mutex_);
    check_entered();
    Stream& found = find(stream, device_now());
    found.work.push_back({.run = [] {}, .after = events_.at(event)});
    ++found.waits;
    return {};
  }
  Result<bool> reached(CudaEvent event) override {
    MutexLock lock(mutex_);
    check_entered();
    return *events_.at(event);
  }
  Result<void> wait(CudaEvent event) override {
    MutexLock lock(mutex_);
    check_entered();
    const std::shared_ptr<bool> reached = events_.at(event);
    while (!*reached) HOLDFAST_CHECK(advance(), "streams wait for each other");
    return {};
  }

 private:
  char copier_ = 0;  // its address is the kernel
  char sealer_ = 0;  // likewise
  struct Work {
    std::function<void()> run;
    std::shared_ptr<const bool> after{};
  };
  struct Stream {
    int device = 0;
    bool ours = false;
    int waits = 0;
    std::deque<Work> work{};
  };

  CudaStream add_stream(int device, bool ours) HOLDFAST_REQUIRES(mutex_) {
    const auto stream = reinterpret_cast<CudaStream>(++last_handle_);
    streams_[stream] = {.device = device, .ours = ours};
    return stream;
  }
  // The stream; for null the default stream of the device. No other stream waits for
  // the default stream.
  Stream& find(CudaStream stream, int device) HOLDFAST_REQUIRES(mutex_) {
    if (stream != nullptr) return streams_.at(stream);
    CudaStream& its = defaults_[device];
    if (its == nullptr) its = add_stream(device, false);
    return streams_.at(its);
  }
  static CudaContext context_of_device(int device) {
    return reinterpret_cast<CudaContext>(static_cast<uintptr_t>(device + 1));
  }
  int device_now() HOLDFAST_REQUIRES(mutex_) {
    check_entered();
    const CudaContext context = entered_[std::this_thread::get_id()].back();
    return static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
  }
  void check_entered() HOLDFAST_REQUIRES(mutex_) {
    HOLDFAST_CHECK(!entered_[std::this_thread::get_id()].empty(), "no context");
  }
  // The range of device memory that an address is in: its bytes (0 if there is none)
  // and its device.
  std::pair<size_t, int> range_of(DeviceAddress address) HOLDFAST_REQUIRES(mutex_) {
    auto next = ranges_.upper_bound(address);
    if (next == ranges_.begin()) return {0, -1};
    --next;
    return address < next->first + next->second.first ? next->second
                                                      : std::pair<size_t, int>(0, -1);
  }
  // True if all these bytes are device memory, or pinned.
  bool is_known(DeviceAddress address, size_t bytes) HOLDFAST_REQUIRES(mutex_) {
    if (range_of(address).first > 0 && range_of(address + bytes - 1).first > 0)
      return true;
    auto next = pinned_.upper_bound(address);
    if (next == pinned_.begin()) return false;
    --next;
    return address + bytes <= next->first + next->second;
  }
  // Does one piece of work, of the preferred streams if they have any that can run.
  // False if no stream has work that can run.
  bool advance() HOLDFAST_REQUIRES(mutex_) {
    for (const bool preferred : {true, false}) {
      for (auto& [handle, stream] : streams_) {
        if ((stream.ours == (first_ == First::kOurs)) != preferred) continue;
        if (stream.work.empty()) continue;
        const Work& work = stream.work.front();
        if (work.after != nullptr && !*work.after) continue;
        work.run();
        stream.work.pop_front();
        return true;
      }
    }
    return false;
  }

  const First first_;
  Mutex mutex_;
  std::deque<Bytes> tensors_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<DeviceAddress, std::pair<size_t, int>> ranges_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<DeviceAddress, Bytes> allocated_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<DeviceAddress, size_t> pinned_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<std::thread::id, std::vector<CudaContext>> entered_
      HOLDFAST_GUARDED_BY(mutex_);
  std::map<CudaStream, Stream> streams_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<int, CudaStream> defaults_ HOLDFAST_GUARDED_BY(mutex_);  // by device
  std::map<CudaEvent, std::shared_ptr<bool>> events_ HOLDFAST_GUARDED_BY(mutex_);
  uintptr_t last_handle_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  int retained_ HOLDFAST_GUARDED_BY(mutex_) = 0;
};

}  // namespace holdfast
