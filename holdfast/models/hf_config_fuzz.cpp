// model_from_config over arbitrary bytes: it must return a model or an error, and a
// model that is accepted has a sane size.
#include <cstddef>
#include <cstdint>

#include "holdfast/base/json.h"
#include "holdfast/models/hf_config.h"
#include "holdfast/models/model_testing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  const auto config =
      parse_json({reinterpret_cast<const char*>(data), size}, "config.json");
  if (!config.ok()) return 0;
  const auto model = model_from_config(JsonPlace(*config, "config.json"));
  if (!model.ok()) return 0;
  HOLDFAST_CHECK(0 < tests::parameter_count(*model) &&
                     tests::parameter_count(*model) < int64_t{1} << 54,
                 "{} parameters", tests::parameter_count(*model));
  return 0;
}
