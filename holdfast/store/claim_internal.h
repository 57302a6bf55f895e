// Claim files of owners (owner.h), for what lists and sweeps a run directory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/env/env.h"

namespace holdfast {

// More than any owner file has.
inline constexpr int64_t kOwnerLimit = int64_t{1} << 20;

std::string claim_name(int64_t epoch);  // owner-00000003.json
std::optional<int64_t> parse_claim_name(std::string_view name);
// Epochs of all claims in the run, smallest first.
Result<std::vector<int64_t>> list_claims(Env& env, const Path& run);

}  // namespace holdfast
