// The functions of the CUDA driver that Holdfast uses. The driver is loaded when it is
// first needed, so that the library can be built and run on machines without one.
//
// It is an interface, so that a test can put a fake in its place. All addresses are in
// the one address space that CUDA has for host and devices. Streams and events are the
// driver's own handles: those of PyTorch and of the CUDA runtime can be passed as they
// are.
//
// Errors name the call. kNoSpace: no memory is left, on the device or to pin;
// kUnsupported: no driver, or an old one; kInvalid: the driver refused an argument;
// kIo: all others. If a kernel of the training fails, all later calls fail with its
// error.
//
// Threads: all calls are safe from several threads at once. Calls "in a context" need
// one, which each thread must enter for itself.
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

// A copy of `rows` rows of `bytes` bytes each. The pitches are the distances between
// the starts of neighbouring rows.
struct CudaRows {
  DeviceAddress to = 0;
  int64_t to_pitch = 0;
  DeviceAddress from = 0;
  int64_t from_pitch = 0;
  int64_t bytes = 0;
  int64_t rows = 0;
};

// A copy inside one device. Both addresses must be multiples of kAlignment.
struct CudaCopy {
  static constexpr DeviceAddress kAlignment = 16;

  DeviceAddress to = 0;
  DeviceAddress from = 0;
  int64_t bytes = 0;
};

// Bytes of one device that belong to one seal (state/seal.h): `rows` rows of `bytes` bytes
// each. The pitches are the distances between the starts of neighbouring rows, in memory
// and in the tensor. The addresses may have any alignment.
struct CudaSealRun {
  static constexpr int64_t kSums = 8;  // so many sums are written for each run

  DeviceAddress from = 0;
  uint64_t offset = 0;  // of the first byte in the tensor
  int64_t bytes = 0;
  int64_t rows = 1;
  int64_t from_pitch = 0;
  int64_t offset_pitch = 0;
};

// A part of the sums of a run. The sums of all parts add up to the seal of the run.
struct CudaSealSum {
  uint64_t lanes[2];
};

struct CudaMemory {
  int64_t free = 0;
  int64_t total = 0;
};

class CudaDriver {
 public:
  virtual ~CudaDriver() = default;

  virtual Result<int> device_count() = 0;
  // The number of the device whose memory this is; nothing for host memory, pinned or
  // not.
  virtual Result<std::optional<int>> device_of(DeviceAddress address) = 0;

  // The context that the CUDA runtime and PyTorch use too. It is created if it does not
  // exist yet. Each call needs one release_context().
  virtual Result<CudaContext> retain_context(int device) = 0;
  virtual void release_context(int device) = 0;
  // Makes this the context of the calling thread until leave(). The two nest.
  virtual Result<void> enter(CudaContext context) = 0;
  virtual void leave() = 0;

  // In a context. Allocating and freeing may wait for the device.
  virtual Result<CudaMemory> memory() = 0;
  virtual Result<DeviceAddress> allocate(int64_t bytes) = 0;
  virtual void free(DeviceAddress memory) = 0;
  // In a context. Makes host memory such that the device reads and writes it by itself.
  // This is slow, and blocks other threads' calls of the driver meanwhile.
  virtual Result<void> pin(void* memory, int64_t bytes) = 0;
  virtual void unpin(void* memory) = 0;

  // In a context. A new stream, which does not wait for the default stream.
  virtual Result<CudaStream> create_stream() = 0;
  virtual void destroy_stream(CudaStream stream) = 0;
  // The context that the stream was created in. For the default stream: the context of
  // this thread.
  virtual Result<CudaContext> context_of(CudaStream stream) = 0;
  // Puts a copy into the stream. If it uses host memory that is not pinned, the call
  // waits until the copy is done.
  virtual Result<void> copy(DeviceAddress to, DeviceAddress from, int64_t bytes,
                            CudaStream stream) = 0;
  // The same for rows. Pitches must be at least as long as a row, and below 2^31.
  virtual Result<void> copy_rows(const CudaRows& rows, CudaStream stream) = 0;

  // In a context. Loads the kernel that copy_all() runs; it is valid as long as the
  // context exists. Takes a moment, because the driver compiles the kernel for the
  // device.
  virtual Result<CudaKernel> load_copier() = 0;
  // Puts copies inside the context's device into the stream. One launch makes a hundred
  // copies or more, because copy() keeps the calling thread for microseconds each time.
  virtual Result<void> copy_all(CudaKernel copier, std::span<const CudaCopy> copies,
                                CudaStream stream) = 0;

  // The same for rows: addresses, pitches and bytes must be multiples of
  // CudaCopy::kAlignment, and rows must have a byte at least.
  virtual Result<CudaKernel> load_row_copier() = 0;
  virtual Result<void> copy_all_rows(CudaKernel copier, std::span<const CudaRows> copies,
                                     CudaStream stream) = 0;

  // In a context. Loads the kernel that seal_all() runs.
  virtual Result<CudaKernel> load_sealer() = 0;
  // Puts the computation of the sums of all runs into the stream. `sums` is memory of the
  // device, aligned to 16 bytes, for CudaSealRun::kSums times as many CudaSealSum as there
  // are runs. Runs of more than a few MiB, or with fewer bytes than rows, are slow.
  virtual Result<void> seal_all(CudaKernel sealer, std::span<const CudaSealRun> runs,
                                DeviceAddress sums, CudaStream stream) = 0;

  // In a context. A new event counts as reached.
  virtual Result<CudaEvent> create_event() = 0;
  virtual void destroy_event(CudaEvent event) = 0;
  // Event and stream must belong to the context.
  virtual Result<void> record(CudaEvent event, CudaStream stream) = 0;
  // Later work in the stream waits until the event, as recorded last, is reached. The
  // calling thread does not wait.
  virtual Result<void> make_wait(CudaStream stream, CudaEvent event) = 0;
  virtual Result<bool> reached(CudaEvent event) = 0;
  // Sleeps until the event is reached.
  virtual Result<void> wait(CudaEvent event) = 0;
};

// libcuda.so.1 of this machine. kUnsupported if there is none, or no device.
Result<std::unique_ptr<CudaDriver>> load_cuda_driver();

}  // namespace holdfast
