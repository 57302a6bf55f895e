#include "holdfast/checkpoint/ring_share.h"

#include <algorithm>

#include "holdfast/env/free_memory.h"

namespace holdfast {

Result<int> ranks_here(Env& env, Transport* transport,
                       const std::optional<Identity>& self, Duration at_most) {
  if (transport == nullptr) return 1;
  const Result<Identity> found =
      self.has_value() ? Result<Identity>(*self) : this_process(env);
  const std::string boot = found.ok() ? found->boot : "";
  const std::vector<Bytes> all =
      HOLDFAST_TRY(transport->all_gather(bytes_of(boot), env.now() + at_most));
  return static_cast<int>(std::ranges::count_if(
      all, [&](const Bytes& other) { return text_of(other) == boot; }));
}

int64_t ring_share(Env& env, int ranks_here) {
  return free_memory(env) / 4 / ranks_here;
}

}  // namespace holdfast
