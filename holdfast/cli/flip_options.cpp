#include "holdfast/cli/flip_options.h"

#include <fmt/ranges.h>


#include "holdfast/base/number_text.h"

namespace holdfast {
namespace {

Result<Fault> read_fault(const FlipArguments& a) {
  using enum Fault::Kind;
  const int given = (a.burst != 0) + !a.mask.empty() + !a.stuck_at.empty() +
                    !a.scale.empty() + !a.value.empty();
  if (given > 1) {
    return invalid(
        "--burst, --mask, --stuck-at, --scale and --value: {} of them are given; "
        "expected at most one",
        given);
  }
  if (a.burst != 0) {
    if (a.burst < 1 || a.burst > 128) {
      return invalid("--burst: {} bits; expected from 1 to 128", a.burst);
    }
    return Fault{.kind = kBurst, .length = static_cast<int>(a.burst)};
  }
  if (!a.mask.empty()) return Fault{.kind = kMask, .pattern = a.mask};
  if (!a.stuck_at.empty()) {
    if (a.stuck_at != "0" && a.stuck_at != "1") {
      return invalid("--stuck-at: \"{}\"; expected 0 or 1", a.stuck_at);
    }
    return Fault{.kind = kStuckAt, .level = a.stuck_at == "1"};
  }
  if (!a.scale.empty()) {
    return Fault{.kind = kScale,
                 .number = HOLDFAST_TRY(read_number("--scale", a.scale))};
  }
  if (!a.value.empty()) {
    return Fault{.kind = kValue,
                 .number = HOLDFAST_TRY(read_number("--value", a.value))};
  }
  return Fault{};
}

// Fails if an option would have no effect beside another one.
Result<void> check_faults_fit(const FlipArguments& a) {
  const FlipArguments none;
  const auto both = [](const char* one, const char* other) {
    return invalid("{} and {}: both are given; expected one of them", one, other);
  };
  if (!a.rate.empty() && a.flips != none.flips) return both("--rate", "--flips");
  if (a.bits == none.bits) return {};
  if (!a.scale.empty()) return both("--scale", "--bits");
  if (!a.value.empty()) return both("--value", "--bits");
  return {};
}

Result<Finite> read_finite(const std::string& text) {
  if (text == "any") return Finite::kAny;
  if (text == "must") return Finite::kMust;
  if (text == "never") return Finite::kNever;
  return invalid("--finite: \"{}\"; expected any, must or never", text);
}

// The options that choose sites or faults and do not have their default values.
std::vector<std::string> given_choices(const FlipArguments& a) {
  const FlipArguments none;
  std::vector<std::string> given;
  for (const auto& [option, differs] : std::vector<std::pair<const char*, bool>>{
           {"--tensors", a.tensors != none.tensors},
           {"--roles", a.roles != none.roles},
           {"--roles-from", a.roles_from != none.roles_from},
           {"--layers", a.layers != none.layers},
           {"--bits", a.bits != none.bits},
           {"--anywhere", a.anywhere},
           {"--flips", a.flips != none.flips},
           {"--rate", a.rate != none.rate},
           {"--burst", a.burst != none.burst},
           {"--mask", a.mask != none.mask},
           {"--stuck-at", a.stuck_at != none.stuck_at},
           {"--scale", a.scale != none.scale},
           {"--value", a.value != none.value},
           {"--finite", a.finite != none.finite},
           {"--sampling", a.sampling != none.sampling},
           {"--seed", a.seed != none.seed}}) {
    if (differs) given.emplace_back(option);
  }
  return given;
}

}  // namespace

Result<double> read_number(const std::string& option, const std::string& text) {
  if (const auto number = number_in<double>(text)) return *number;
  return invalid("{}: \"{}\" is no number; expected one such as 0.001", option, text);
}

Result<void> check_without_sites(const FlipArguments& a, const std::string& option) {
  for (const std::string& other : given_choices(a)) {
    if (other == option) continue;
    if (option == "--anywhere" && (other == "--flips" || other == "--seed")) continue;
    return invalid("{} and {}: both are given; expected one of them", option, other);
  }
  return {};
}

Result<PlanRequest> read_request(const FlipArguments& a) {
  if (a.anywhere) HOLDFAST_TRY(check_without_sites(a, "--anywhere"));
  PlanRequest request{.count = a.flips, .seed = a.seed};
  request.sites.tensors = a.tensors;
  for (const std::string& role : a.roles) {
    request.sites.roles.push_back(HOLDFAST_TRY(parse_role(role)));
  }
  request.sites.layers = a.layers;
  request.sites.bits = HOLDFAST_TRY(parse_bit_choice(a.bits));
  request.fault = HOLDFAST_TRY(read_fault(a));
  HOLDFAST_TRY(check_faults_fit(a));
  if (!a.rate.empty()) request.rate = HOLDFAST_TRY(read_number("--rate", a.rate));
  request.finite = HOLDFAST_TRY(read_finite(a.finite));
  if (a.sampling != "bits" && a.sampling != "legacy") {
    return invalid("--sampling: \"{}\"; expected bits or legacy", a.sampling);
  }
  if (a.sampling == "legacy") request.sampling = Sampling::kLegacy;
  return request;
}

Result<RoleMap> read_role_map(Env& env, const std::string& path) {
  if (path.empty()) return RoleMap{};
  return parse_role_map(HOLDFAST_TRY(env.read_text(path)), path);
}

Result<FlipPlan> read_plan_file(Env& env, const std::string& path) {
  return decode_flip_plan(HOLDFAST_TRY(env.read_text(path)), path);
}

std::vector<std::pair<std::string, std::string>> settings_of(const FlipArguments& a) {
  const auto joined = [](const std::vector<std::string>& words) {
    return fmt::format("{}", fmt::join(words, " "));
  };
  return {{"tensors", joined(a.tensors)},
          {"roles", joined(a.roles)},
          {"layers", joined(a.layers)},
          {"bits", a.bits},
          {"flips", fmt::format("{}", a.flips)},
          {"rate", a.rate},
          {"finite", a.finite},
          {"sampling", a.sampling}};
}

void add_flip_options(FlipArguments& a, std::vector<Option>& options) {
  for (Option& option : std::vector<Option>{
           {"--checksums",
            "What happens to digests: raw, consistent or sealed",
            &a.checksums,
            false,
            {"raw", "consistent", "sealed"}},
           {"--tensors", "Patterns of names", &a.tensors},
           {"--roles",
            "Roles: parameter, slot, master, buffer, counter",
            &a.roles,
            false,
            {"parameter", "slot", "master", "buffer", "counter"}},
           {"--roles-from", "Your own roles: JSON of roles and patterns of names",
            &a.roles_from},
           {"--layers", "Layers by name: first, middle, last, or numbers from 0",
            &a.layers},
           {"--bits", "all, sign, exponent, top-exponent, mantissa, 30, 23-30, 0-29,31",
            &a.bits},
           {"--anywhere", "Any bit of the files, not only of tensors", &a.anywhere},
           {"--flips", "How many faults", &a.flips},
           {"--rate", "Or the probability that a site is struck", &a.rate},
           {"--burst", "A fault flips so many neighbouring bits", &a.burst},
           {"--mask", "A fault flips the bits of a pattern such as 1011", &a.mask},
           {"--stuck-at", "A fault makes a bit 0 or 1", &a.stuck_at},
           {"--scale", "A fault multiplies a number", &a.scale},
           {"--value", "A fault replaces a number", &a.value},
           {"--finite",
            "Whether numbers stay finite: any, must, never",
            &a.finite,
            false,
            {"any", "must", "never"}},
           {"--sampling", "bits or legacy", &a.sampling, false, {"bits", "legacy"}},
           {"--seed", "Chooses the sites", &a.seed}}) {
    options.push_back(std::move(option));
  }
}

}  // namespace holdfast
