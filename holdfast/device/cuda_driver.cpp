#include "holdfast/device/cuda_driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "holdfast/device/cuda_copier_internal.h"
#include "holdfast/device/cuda_sealer_internal.h"

namespace holdfast {
namespace {

// The declarations of the driver's functions, copied here so that no cuda.h is needed
// to build. The driver's binary interface is stable.
using Status = int;
constexpr Status kSuccess = 0;
constexpr Status kInvalidValue = 1;
constexpr Status kOutOfMemory = 2;
constexpr Status kNotReady = 600;
constexpr Status kNotSupported = 801;

constexpr int kMemoryTypeOf = 2;  // pointer attributes
constexpr int kOrdinalOf = 9;
constexpr unsigned kHostMemory = 1;  // memory types
constexpr unsigned kUnifiedMemory = 4;
constexpr unsigned kNonBlocking = 1;        // a flag of streams
constexpr unsigned kSleepNoTiming = 1 | 2;  // flags of events
constexpr unsigned kPortable = 1;           // a flag of pinning: for all devices

struct Copy2D {
  size_t from_x = 0;
  size_t from_y = 0;
  unsigned from_type = kUnifiedMemory;
  const void* from_host = nullptr;
  DeviceAddress from = 0;
  void* from_array = nullptr;
  size_t from_pitch = 0;
  size_t to_x = 0;
  size_t to_y = 0;
  unsigned to_type = kUnifiedMemory;
  void* to_host = nullptr;
  DeviceAddress to = 0;
  void* to_array = nullptr;
  size_t to_pitch = 0;
  size_t width = 0;
  size_t height = 0;
};

struct Functions {
  Status (*init)(unsigned);
  Status (*error_text)(Status, const char**);
  Status (*device_count)(int*);
  Status (*device_get)(int*, int);
  Status (*pointer_attribute)(void*, int, DeviceAddress);
  Status (*retain)(CudaContext*, int);
  Status (*release)(int);
  Status (*push)(CudaContext);
  Status (*pop)(CudaContext*);
  Status (*memory_info)(size_t*, size_t*);
  Status (*allocate)(DeviceAddress*, size_t);
  Status (*free)(DeviceAddress);
  Status (*pin)(void*, size_t, unsigned);
  Status (*unpin)(void*);
  Status (*priorities)(int*, int*);
  Status (*stream_create)(CudaStream*, unsigned, int);
  Status (*stream_destroy)(CudaStream);
  Status (*stream_context)(CudaStream, CudaContext*);
  Status (*stream_wait)(CudaStream, CudaEvent, unsigned);
  Status (*copy)(DeviceAddress, DeviceAddress, size_t, CudaStream);
  Status (*copy_2d)(const Copy2D*, CudaStream);
  Status (*load_module)(void**, const void*);
  Status (*find_kernel)(CudaKernel*, void*, const char*);
  Status (*launch)(CudaKernel, unsigned, unsigned, unsigned, unsigned, unsigned,
                   unsigned, unsigned, CudaStream, void**, void**);
  Status (*event_create)(CudaEvent*, unsigned);
  Status (*event_destroy)(CudaEvent);
  Status (*event_record)(CudaEvent, CudaStream);
  Status (*event_query)(CudaEvent);
  Status (*event_wait)(CudaEvent);
};

// The driver's shared library. It is never closed, because the driver has threads of
// its own.
class Library {
 public:
  Library() : handle_(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {}

  bool open() const { return handle_ != nullptr; }

  template <typename Function>
  Result<void> find(const char* name, Function& function) const {
    void* const found = ::dlsym(handle_, name);
    if (found == nullptr)
      return unsupported("libcuda.so.1: no function {}; expected CUDA 11 or newer",
                         name);
    function = reinterpret_cast<Function>(found);
    return {};
  }

 private:
  void* handle_;
};

Result<Functions> find_all(const Library& library) {
  Functions f{};
  HOLDFAST_TRY(library.find("cuInit", f.init));
  HOLDFAST_TRY(library.find("cuGetErrorString", f.error_text));
  HOLDFAST_TRY(library.find("cuDeviceGetCount", f.device_count));
  HOLDFAST_TRY(library.find("cuDeviceGet", f.device_get));
  HOLDFAST_TRY(library.find("cuPointerGetAttribute", f.pointer_attribute));
  HOLDFAST_TRY(library.find("cuDevicePrimaryCtxRetain", f.retain));
  HOLDFAST_TRY(library.find("cuDevicePrimaryCtxRelease_v2", f.release));
  HOLDFAST_TRY(library.find("cuCtxPushCurrent_v2", f.push));
  HOLDFAST_TRY(library.find("cuCtxPopCurrent_v2", f.pop));
  HOLDFAST_TRY(library.find("cuMemGetInfo_v2", f.memory_info));
  HOLDFAST_TRY(library.find("cuMemAlloc_v2", f.allocate));
  HOLDFAST_TRY(library.find("cuMemFree_v2", f.free));
  HOLDFAST_TRY(library.find("cuMemHostRegister_v2", f.pin));
  HOLDFAST_TRY(library.find("cuMemHostUnregister", f.unpin));
  HOLDFAST_TRY(library.find("cuCtxGetStreamPriorityRange", f.priorities));
  HOLDFAST_TRY(library.find("cuStreamCreateWithPriority", f.stream_create));
  HOLDFAST_TRY(library.find("cuStreamDestroy_v2", f.stream_destroy));
  HOLDFAST_TRY(library.find("cuStreamGetCtx", f.stream_context));
  HOLDFAST_TRY(library.find("cuStreamWaitEvent", f.stream_wait));
  HOLDFAST_TRY(library.find("cuMemcpyAsync", f.copy));
  HOLDFAST_TRY(library.find("cuMemcpy2DAsync_v2", f.copy_2d));
  HOLDFAST_TRY(library.find("cuModuleLoadData", f.load_module));
  HOLDFAST_TRY(library.find("cuModuleGetFunction", f.find_kernel));
  HOLDFAST_TRY(library.find("cuLaunchKernel", f.launch));
  HOLDFAST_TRY(library.find("cuEventCreate", f.event_create));
  HOLDFAST_TRY(library.find("cuEventDestroy_v2", f.event_destroy));
  HOLDFAST_TRY(library.find("cuEventRecord", f.event_record));
  HOLDFAST_TRY(library.find("cuEventQuery", f.event_query));
  HOLDFAST_TRY(library.find("cuEventSynchronize", f.event_wait));
  return f;
}

ErrorCode code_of(Status status) {
  switch (status) {
    case kInvalidValue: return ErrorCode::kInvalid;
    case kOutOfMemory: return ErrorCode::kNoSpace;
    case kNotSupported: return ErrorCode::kUnsupported;
    default: return ErrorCode::kIo;
  }
}

class LoadedDriver : public CudaDriver {
 public:
  explicit LoadedDriver(const Functions& functions) : f_(functions) {}

  Result<void> start() { return outcome(f_.init(0), "cuInit"); }

  Result<int> device_count() override {
    int count = 0;
    HOLDFAST_TRY(outcome(f_.device_count(&count), "cuDeviceGetCount"));
    return count;
  }

  Result<std::optional<int>> device_of(DeviceAddress address) override {
    unsigned type = 0;
    const Status known = f_.pointer_attribute(&type, kMemoryTypeOf, address);
    // The driver does not know the address, so it is ordinary host memory.
    if (known == kInvalidValue) return std::optional<int>();
    HOLDFAST_TRY(outcome(known, "cuPointerGetAttribute"));
    if (type == kHostMemory) return std::optional<int>();
    int ordinal = 0;
    HOLDFAST_TRY(outcome(f_.pointer_attribute(&ordinal, kOrdinalOf, address),
                         "cuPointerGetAttribute"));
    return std::optional<int>(ordinal);
  }

  Result<CudaContext> retain_context(int device) override {
    CudaContext context = nullptr;
    int handle = 0;
    HOLDFAST_TRY(outcome(f_.device_get(&handle, device), "cuDeviceGet"));
    HOLDFAST_TRY(outcome(f_.retain(&context, handle), "cuDevicePrimaryCtxRetain"));
    return context;
  }
  void release_context(int device) override {
    int handle = 0;
    if (f_.device_get(&handle, device) == kSuccess) ignore(f_.release(handle));
  }
  Result<void> enter(CudaContext context) override {
    return outcome(f_.push(context), "cuCtxPushCurrent");
  }
  void leave() override {
    CudaContext left = nullptr;
    ignore(f_.pop(&left));
  }

  Result<CudaMemory> memory() override {
    size_t free = 0, total = 0;
    HOLDFAST_TRY(outcome(f_.memory_info(&free, &total), "cuMemGetInfo"));
    return CudaMemory{static_cast<int64_t>(free), static_cast<int64_t>(total)};
  }
  Result<DeviceAddress> allocate(int64_t bytes) override {
    DeviceAddress memory = 0;
    HOLDFAST_TRY(
        outcome(f_.allocate(&memory, static_cast<size_t>(bytes)), "cuMemAlloc"));
    return memory;
  }
  void free(DeviceAddress memory) override { ignore(f_.free(memory)); }
  Result<void> pin(void* memory, int64_t bytes) override {
    return outcome(f_.pin(memory, static_cast<size_t>(bytes), kPortable),
                   "cuMemHostRegister");
  }
  void unpin(void* memory) override { ignore(f_.unpin(memory)); }

  // The stream has the lowest priority, so that the training's work comes first where
  // both could run.
  Result<CudaStream> create_stream() override {
    CudaStream stream = nullptr;
    int least = 0, greatest = 0;
    HOLDFAST_TRY(
        outcome(f_.priorities(&least, &greatest), "cuCtxGetStreamPriorityRange"));
    HOLDFAST_TRY(outcome(f_.stream_create(&stream, kNonBlocking, least),
                         "cuStreamCreateWithPriority"));
    return stream;
  }
  void destroy_stream(CudaStream stream) override { ignore(f_.stream_destroy(stream)); }
  Result<CudaContext> context_of(CudaStream stream) override {
    CudaContext context = nullptr;
    HOLDFAST_TRY(outcome(f_.stream_context(stream, &context), "cuStreamGetCtx"));
    return context;
  }

  Result<void> copy(DeviceAddress to, DeviceAddress from, int64_t bytes,
                    CudaStream stream) override {
    return outcome(f_.copy(to, from, static_cast<size_t>(bytes), stream),
                   "cuMemcpyAsync");
  }
  Result<void> copy_rows(const CudaRows& rows, CudaStream stream) override {
    Copy2D copy;
    copy.from = rows.from;
    copy.from_pitch = static_cast<size_t>(rows.from_pitch);
    copy.to = rows.to;
    copy.to_pitch = static_cast<size_t>(rows.to_pitch);
    copy.width = static_cast<size_t>(rows.bytes);
    copy.height = static_cast<size_t>(rows.rows);
    return outcome(f_.copy_2d(&copy, stream), "cuMemcpy2DAsync");
  }

  Result<CudaKernel> load_copier() override { return load(kCopier, kCopierName); }
  Result<CudaKernel> load_sealer() override {
    return load(make_sealer().c_str(), kSealerName);
  }

  // Long copies are cut, so that all blocks of a launch have about the same work.
  Result<void> copy_all(CudaKernel copier, std::span<const CudaCopy> copies,
                        CudaStream stream) override {
    constexpr int64_t kPart = int64_t{2} << 20;
    CopyTable table;
    size_t count = 0;
    for (const CudaCopy& copy : copies) {
      for (int64_t at = 0; at < copy.bytes; at += kPart) {
        const auto first = static_cast<DeviceAddress>(at);
        table.entries[count++] = {
            copy.to + first, copy.from + first,
            static_cast<uint64_t>(std::min(kPart, copy.bytes - at))};
        if (count < kCopiesPerLaunch) continue;
        HOLDFAST_TRY(launch(copier, &table, count, stream));
        count = 0;
      }
    }
    return count == 0 ? Result<void>() : launch(copier, &table, count, stream);
  }

  Result<CudaKernel> load_row_copier() override {
    return load(make_row_copier().c_str(), kRowCopierName);
  }

  // Many rows are cut likewise, and so are long ones: the kernel counts in 32 bits.
  Result<void> copy_all_rows(CudaKernel copier, std::span<const CudaRows> copies,
                             CudaStream stream) override {
    constexpr int64_t kPart = int64_t{4} << 20;
    std::vector<RowCopyTable::Entry> entries;
    for (const CudaRows& copy : copies) {
      for (int64_t at = 0; at < copy.bytes; at += kPart) {
        const int64_t bytes = std::min(kPart, copy.bytes - at);
        add_rows(copy, at, bytes, kPart / bytes, entries);
      }
    }
    for (size_t first = 0; first < entries.size(); first += kRowCopiesPerLaunch) {
      const size_t count = std::min(kRowCopiesPerLaunch, entries.size() - first);
      RowCopyTable table;
      std::copy_n(entries.begin() + static_cast<std::ptrdiff_t>(first), count,
                  table.entries);
      HOLDFAST_TRY(launch(copier, &table, count, stream));
    }
    return {};
  }

  Result<void> seal_all(CudaKernel sealer, std::span<const CudaSealRun> runs,
                        DeviceAddress sums, CudaStream stream) override {
    while (!runs.empty()) {
      const auto some = runs.first(std::min(runs.size(), kSealRunsPerLaunch));
      HOLDFAST_TRY(launch(sealer, some, sums, stream));
      sums += some.size() * CudaSealRun::kSums * sizeof(CudaSealSum);
      runs = runs.subspan(some.size());
    }
    return {};
  }

  Result<CudaEvent> create_event() override {
    CudaEvent event = nullptr;
    HOLDFAST_TRY(outcome(f_.event_create(&event, kSleepNoTiming), "cuEventCreate"));
    return event;
  }
  void destroy_event(CudaEvent event) override { ignore(f_.event_destroy(event)); }
  Result<void> record(CudaEvent event, CudaStream stream) override {
    return outcome(f_.event_record(event, stream), "cuEventRecord");
  }
  Result<void> make_wait(CudaStream stream, CudaEvent event) override {
    return outcome(f_.stream_wait(stream, event, 0), "cuStreamWaitEvent");
  }
  Result<bool> reached(CudaEvent event) override {
    const Status status = f_.event_query(event);
    if (status == kNotReady) return false;
    HOLDFAST_TRY(outcome(status, "cuEventQuery"));
    return true;
  }
  Result<void> wait(CudaEvent event) override {
    return outcome(f_.event_wait(event), "cuEventSynchronize");
  }

 private:
  Result<CudaKernel> load(const char* text, const char* name) {
    void* module = nullptr;
    CudaKernel kernel = nullptr;
    HOLDFAST_TRY(outcome(f_.load_module(&module, text), "cuModuleLoadData"));
    HOLDFAST_TRY(outcome(f_.find_kernel(&kernel, module, name), "cuModuleGetFunction"));
    return kernel;
  }

  Result<void> launch(CudaKernel sealer, std::span<const CudaSealRun> runs,
                      DeviceAddress sums, CudaStream stream) const {
    SealTable table;
    for (size_t i = 0; i < runs.size(); ++i) {
      const CudaSealRun& run = runs[i];
      table.entries[i] = {.from = run.from,
                          .offset = run.offset,
                          .bytes = static_cast<uint64_t>(run.bytes),
                          .rows = static_cast<uint64_t>(run.rows),
                          .from_pitch = static_cast<uint64_t>(run.from_pitch),
                          .offset_pitch = static_cast<uint64_t>(run.offset_pitch)};
    }
    void* parameters[] = {&table, &sums};
    return outcome(f_.launch(sealer, CudaSealRun::kSums,
                             static_cast<unsigned>(runs.size()), 1, kSealThreads, 1, 1, 0,
                             stream, parameters, nullptr),
                   "cuLaunchKernel");
  }
  // Adds the bytes [at, at + bytes) of each row, `at_once` rows for each entry.
  static void add_rows(const CudaRows& copy, int64_t at, int64_t bytes, int64_t at_once,
                       std::vector<RowCopyTable::Entry>& entries) {
    for (int64_t row = 0; row < copy.rows; row += at_once) {
      const int64_t to = row * copy.to_pitch + at, from = row * copy.from_pitch + at;
      entries.push_back(
          {.to = copy.to + static_cast<DeviceAddress>(to),
           .from = copy.from + static_cast<DeviceAddress>(from),
           .bytes = static_cast<uint64_t>(bytes),
           .rows = static_cast<uint64_t>(std::min(at_once, copy.rows - row)),
           .to_pitch = static_cast<uint64_t>(copy.to_pitch),
           .from_pitch = static_cast<uint64_t>(copy.from_pitch)});
    }
  }

  // The table of a copier is its only parameter.
  Result<void> launch(CudaKernel copier, void* table, size_t count,
                      CudaStream stream) const {
    constexpr unsigned kBlocks = 4;  // for each copy, so that a device runs all at once
    constexpr unsigned kThreads = 256;
    void* parameters[] = {table};
    return outcome(f_.launch(copier, kBlocks, static_cast<unsigned>(count), 1, kThreads,
                             1, 1, 0, stream, parameters, nullptr),
                   "cuLaunchKernel");
  }

  // For calls that clean up: nobody could do anything about their failure.
  static void ignore(Status) {}

  Result<void> outcome(Status status, const char* call) const {
    if (status == kSuccess) return {};
    const char* text = nullptr;
    if (f_.error_text(status, &text) != kSuccess || text == nullptr) text = "unknown";
    return Error(code_of(status), fmt::format("{}: error {}: {}", call, status, text));
  }

  const Functions f_;
};

}  // namespace

Result<std::unique_ptr<CudaDriver>> load_cuda_driver() {
  const Library library;
  if (!library.open()) return unsupported("cuda: no libcuda.so.1 on this machine");
  const Functions functions = HOLDFAST_TRY(find_all(library));
  auto driver = std::make_unique<LoadedDriver>(functions);
  if (const Result<void> started = driver->start(); !started.ok()) {
    return started.error().as(ErrorCode::kUnsupported).within("cuda");
  }
  const int count = HOLDFAST_TRY(driver->device_count());
  if (count == 0) return unsupported("cuda: no device");
  return std::unique_ptr<CudaDriver>(std::move(driver));
}

}  // namespace holdfast
