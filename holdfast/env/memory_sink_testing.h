// A Sink that keeps its bytes in memory, for tests.
#pragma once

#include <utility>

#include "holdfast/env/source_sink.h"

namespace holdfast {

class MemorySink : public Sink {
 public:
  Result<void> append(ByteView bytes) override {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return {};
  }
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }

  const Bytes& bytes() const { return bytes_; }
  Bytes take_bytes() && { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

}  // namespace holdfast
