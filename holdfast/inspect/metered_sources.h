// Reports how much of opened contents was read, and stops reading on request.
#pragma once

#include <cstdint>
#include <functional>

#include "holdfast/contents/contents.h"
#include "holdfast/store/records.h"

namespace holdfast {

struct Reading {
  Progress progress{};  // called with the bytes of tensors read, and with all bytes
  // Asked at every read, from any thread. If it returns true, the read fails with
  // kUnavailable.
  std::function<bool()> stop{};
};

// From now on, reads of the contents are reported, out of `total` bytes.
void meter_sources(Contents& contents, const Reading& reading, int64_t total);

}  // namespace holdfast
