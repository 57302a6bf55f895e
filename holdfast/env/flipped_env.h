// An Env that shows one byte of one file changed, to try what a repair would give before
// anything is written. It passes every other call on. A test can also use it as a disk
// that returns a wrong bit a few times.
#pragma once

#include <atomic>
#include <limits>

#include "holdfast/env/env_wrapper.h"

namespace holdfast {

struct FlippedByte {
  Path path{};
  int64_t offset = 0;
  std::byte mask{};  // XORed with the byte
};

class FlippedEnv : public EnvWrapper {
 public:
  // `inner` must outlive this Env, and this Env its files. Only the first `reads` reads of
  // the byte show it changed.
  FlippedEnv(Env& inner, FlippedByte byte,
             int64_t reads = std::numeric_limits<int64_t>::max())
      : EnvWrapper(inner), byte_(std::move(byte)), left_(reads) {}

  Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) override;

  // Shows another byte from now on. No file may be open.
  void show(FlippedByte byte) { byte_ = std::move(byte); }

 private:
  class OpenFile;
  FlippedByte byte_;
  std::atomic<int64_t> left_;
};

}  // namespace holdfast
