// The CUDA driver, as far as it is used: loaded when it is asked for, so that the library
// is built and runs where there is none.
//
// An interface, so that a test can put a fake in its place. All addresses are of the one
// address space that CUDA has for host and devices. Streams and events are the driver's
// own handles: those of PyTorch and of the runtime can be passed as they are.
//
// Errors name the call. kNoSpace: no memory is left, on the device or to pin; kUnsupported:
// no driver, or an old one; kInvalid: the driver did not like an argument; kIo: the rest.
// After an error of a kernel, which is not ours, every call fails with it.
//
// Threads: all calls are safe at once. Those that say so need a context, which each thread
// enters for itself.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "holdfast/base/result.h"

namespace holdfast {

using DeviceAddress = uint64_t;
using CudaContext = void*;
using CudaStream = void*;  // null is the default stream
using CudaEvent = void*;
using CudaKernel = void*;

inline DeviceAddress address_of(const void* pointer) {
  return static_cast<DeviceAddress>(reinterpret_cast<uintptr_t>(pointer));
}

// `rows` runs of `bytes`, at these distances.
struct CudaRows {
  DeviceAddress to = 0;
  int64_t to_pitch = 0;
  DeviceAddress from = 0;
  int64_t from_pitch = 0;
  int64_t bytes = 0;
  int64_t rows = 0;
};

// Inside one device. Addresses are multiples of kAlignment.
struct CudaCopy {
  static constexpr DeviceAddress kAlignment = 16;

  DeviceAddress to = 0;
  DeviceAddress from = 0;
  int64_t bytes = 0;
};

struct CudaMemory {
  int64_t free = 0;
  int64_t total = 0;
};

class CudaDriver {
 public:
  virtual ~CudaDriver() = default;

  virtual Result<int> device_count() = 0;
  // The number of the device whose memory it is; nothing for the host's, pinned or not.
  virtual Result<std::optional<int>> device_of(DeviceAddress address) = 0;

  // The context that the runtime and PyTorch use too; made if it is not there yet. Each
  // retain is released once.
  virtual Result<CudaContext> retain_context(int device) = 0;
  virtual void release_context(int device) = 0;
  // Makes it this thread's, until it leaves. Nests.
  virtual Result<void> enter(CudaContext context) = 0;
  virtual void leave() = 0;

  // In a context. Allocating and freeing may wait for the device.
  virtual Result<CudaMemory> memory() = 0;
  virtual Result<DeviceAddress> allocate(int64_t bytes) = 0;
  virtual void free(DeviceAddress memory) = 0;
  // Host memory that the device reads and writes by itself; slow, and keeps others from
  // the driver meanwhile.
  virtual Result<void> pin(void* memory, int64_t bytes) = 0;
  virtual void unpin(void* memory) = 0;

  // In a context. A stream that does not wait for the default one.
  virtual Result<CudaStream> create_stream() = 0;
  virtual void destroy_stream(CudaStream stream) = 0;
  // The one that it was made in; this thread's for the default one.
  virtual Result<CudaContext> context_of(CudaStream stream) = 0;
  // Copies in the stream's order. What is host memory is pinned, or the call waits.
  virtual Result<void> copy(DeviceAddress to, DeviceAddress from, int64_t bytes,
                            CudaStream stream) = 0;
  // Pitches of 0 up to 2^31 - 1, no shorter than a row.
  virtual Result<void> copy_rows(const CudaRows& rows, CudaStream stream) = 0;

  // In a context, and for as long as that is there: what copy_all() runs. Takes a moment,
  // for it is compiled for the device.
  virtual Result<CudaKernel> load_copier() = 0;
  // Copies inside the context's device, in the stream's order, by a launch for a hundred or
  // more: copy() keeps the calling thread for microseconds each.
  virtual Result<void> copy_all(CudaKernel copier, std::span<const CudaCopy> copies,
                                CudaStream stream) = 0;

  // In a context. Events begin as if they had been reached.
  virtual Result<CudaEvent> create_event() = 0;
  virtual void destroy_event(CudaEvent event) = 0;
  // Both of the context.
  virtual Result<void> record(CudaEvent event, CudaStream stream) = 0;
  // The stream goes on when the event, as recorded last, is reached. Nobody waits here.
  virtual Result<void> make_wait(CudaStream stream, CudaEvent event) = 0;
  virtual Result<bool> reached(CudaEvent event) = 0;
  // Sleeps until then.
  virtual Result<void> wait(CudaEvent event) = 0;
};

// libcuda.so.1 of this machine. kUnsupported if there is none, or no device.
Result<std::unique_ptr<CudaDriver>> load_cuda_driver();

}  // namespace holdfast
