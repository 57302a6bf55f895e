// Fuzz target: any text as a cadence, curve or failure model must end in a value or an
// error.
#include <cstdint>
#include <string_view>

#include "holdfast/schedule/cadence.h"
#include "holdfast/simulate/spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto cadence = parse_cadence(text); cadence.ok()) {
    HOLDFAST_CHECK(parse_cadence(to_string(*cadence)).ok(), "{}", text);
  }
  if (const auto curve = parse_curve(text); curve.ok()) {
    HOLDFAST_CHECK(curve->drop(0, 1000) >= 0, "{}", text);
  }
  (void)parse_curve_points(text, "points").ok();
  (void)parse_workers(text).ok();
  (void)parse_failures(text).ok();
  (void)parse_trace(text, "trace").ok();
  (void)parse_schedule(text, "schedule").ok();
  (void)parse_stops(text, true).ok();
  (void)parse_tier(text).ok();
  return 0;
}
