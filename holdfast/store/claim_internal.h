// Names of the claim files that owners of a run write (see owner.h). For the code that
// lists and sweeps a run directory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/env/env.h"

namespace holdfast {

// Upper limit for reading an owner file. No valid owner file is this large.
inline constexpr int64_t kOwnerLimit = int64_t{1} << 20;

// Example: "owner-00000003.json".
std::string claim_name(int64_t epoch);
// Returns nullopt if `name` is not the name of a claim file.
std::optional<int64_t> parse_claim_name(std::string_view name);
// Epochs of all claims in the run, smallest first.
Result<std::vector<int64_t>> list_claims(Env& env, const Path& run);

}  // namespace holdfast
