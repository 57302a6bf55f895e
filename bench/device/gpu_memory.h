// What the programs of this folder share: memory of the first GPU with known bytes, and
// times of work on it.
#pragma once

#include <functional>
#include <random>
#include <vector>

#include "figures.h"
#include "holdfast/device/device.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/memory/local_state.h"

namespace holdfast {

// Random bytes on the host. Memory of the GPU is filled with windows of them, so that the
// host can compute what the GPU should.
class Pattern {
 public:
  explicit Pattern(size_t bytes, uint64_t seed = 1) : bytes_(bytes) {
    std::mt19937_64 random(seed);
    for (size_t at = 0; at + 8 <= bytes; at += 8) {
      const uint64_t value = random();
      std::memcpy(bytes_.data() + at, &value, 8);
    }
  }
  ByteView window(size_t first, size_t size) const {
    return ByteView(bytes_).subspan(first, size);
  }

 private:
  Bytes bytes_;
};

// The first GPU of this machine.
struct Gpu {
  Gpu() : driver(load_cuda_driver().value()), device(Device::open(*driver, 0).value()) {}

  void write(ByteSpan memory, ByteView from) const {
    device->write(plain_bytes(std::ssize(from)), memory, 0, from).value();
  }
  Bytes read(ByteView memory) const {
    Bytes bytes(memory.size());
    device->read(plain_bytes(std::ssize(memory)), memory, 0, bytes).value();
    wait();
    return bytes;
  }
  void wait() const { device->mark().value().wait().value(); }
  // Seconds that the work takes, from an idle GPU to its end.
  double seconds(const std::function<void()>& work) const {
    wait();
    const Instant start = std::chrono::steady_clock::now();
    work();
    wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  std::unique_ptr<CudaDriver> driver;
  std::unique_ptr<Device> device;
};

// Whole copies of memory inside the GPU, by the driver and by Holdfast's kernel. seconds()
// is the time of the faster one.
class DeviceCopy {
 public:
  DeviceCopy(const Gpu& gpu, ByteView from, ByteSpan to) : gpu_(gpu), by_kernel_(*gpu.device) {
    by_kernel_.add(plain_bytes(std::ssize(from)), from, to);
    context_ = gpu.driver->retain_context(0).value();
    gpu.driver->enter(context_).value();
    stream_ = gpu.driver->create_stream().value();
    done_ = gpu.driver->create_event().value();
    by_driver_ = {.to = address_of(to.data()), .from = address_of(from.data()),
                  .bytes = std::ssize(from)};
  }
  ~DeviceCopy() {
    gpu_.driver->destroy_event(done_);
    gpu_.driver->destroy_stream(stream_);
    gpu_.driver->leave();
    gpu_.driver->release_context(0);
  }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  double seconds() const {
    const double kernel = gpu_.seconds([&] { by_kernel_.run().value(); });
    const double driver = gpu_.seconds([&] {
      gpu_.driver->copy(by_driver_.to, by_driver_.from, by_driver_.bytes, stream_).value();
      gpu_.driver->record(done_, stream_).value();
      gpu_.driver->wait(done_).value();
    });
    return std::min(kernel, driver);
  }

 private:
  const Gpu& gpu_;
  Device::InsideCopies by_kernel_;
  CudaCopy by_driver_;
  CudaContext context_;
  CudaStream stream_;
  CudaEvent done_;
};

// Writes the figures as the program was asked to. Returns its exit code.
inline int finish(const Report& figures, int count, char** arguments) {
  const auto env = make_posix_env();
  if (count > 1) figures.write_json(*env, arguments[1]).value();
  return figures.passed() ? 0 : 1;
}

}  // namespace holdfast
