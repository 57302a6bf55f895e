#include "holdfast/models/parallel.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "holdfast/base/checked.h"
#include "holdfast/base/number_text.h"

namespace holdfast {
namespace {

constexpr std::array<std::string_view, 4> kShardNames{"tensor", "layer", "stage",
                                                      "rows"};
constexpr std::array<std::string_view, 4> kQkvNames{"interleaved", "blocked",
                                                    "megatron0", "megatron1"};
constexpr std::array<std::string_view, 2> kSplitNames{"even", "chunk"};

struct NumberKey {
  std::string_view name;
  int64_t Parallel::*field;
  int64_t least, most;
};
constexpr std::array kNumberKeys{
    NumberKey{"tp", &Parallel::tp, 1, kMaxPositions},
    NumberKey{"pp", &Parallel::pp, 1, kMaxPositions},
    NumberKey{"dp", &Parallel::dp, 1, kMaxPositions},
    NumberKey{"ep", &Parallel::ep, 1, kMaxPositions},
    NumberKey{"etp", &Parallel::etp, 0, kMaxPositions},
    NumberKey{"zero", &Parallel::zero, 0, 3},
    NumberKey{"vpp", &Parallel::vpp, 1, kMaxPositions},
};

// The text as a message quotes it: at most 40 characters.
std::string_view quoted(std::string_view text) { return text.substr(0, 40); }

Result<int64_t> parse_number(std::string_view key, std::string_view text, int64_t least,
                             int64_t most) {
  const auto number = number_in<int64_t>(text);
  if (number && *number >= least && *number <= most) return *number;
  return invalid("parallel: {}={}; expected an integer from {} to {}", key, quoted(text),
                 least, most);
}

template <typename Enum, size_t n>
Result<Enum> parse_choice(std::string_view key, std::string_view text,
                          const std::array<std::string_view, n>& names) {
  for (size_t i = 0; i < n; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  return invalid("parallel: {}={}; expected one of {}", key, quoted(text),
                 fmt::join(names, ", "));
}

std::vector<std::string_view> fields_of(std::string_view text, char separator) {
  std::vector<std::string_view> fields;
  while (true) {
    const size_t end = text.find(separator);
    fields.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return fields;
    text.remove_prefix(end + 1);
  }
}

Result<std::vector<int64_t>> parse_counts(std::string_view text) {
  std::vector<int64_t> counts;
  for (const std::string_view field : fields_of(text, '/')) {
    counts.push_back(HOLDFAST_TRY(parse_number("layers", field, 0, kMaxPositions)));
  }
  return counts;
}

// Reads "0-3" or "8".
Result<Extent> parse_range(std::string_view text) {
  const size_t dash = text.find('-');
  const std::string_view first = text.substr(0, dash);
  const std::string_view last =
      dash == std::string_view::npos ? first : text.substr(dash + 1);
  const int64_t lo = HOLDFAST_TRY(parse_number("stages", first, 0, kMaxPositions - 1));
  const int64_t hi = HOLDFAST_TRY(parse_number("stages", last, 0, kMaxPositions - 1));
  if (hi < lo)
    return invalid("parallel: stages has {}; expected a range from low to high",
                   quoted(text));
  return Extent{lo, hi + 1};
}

// Reads the layers of each stage. A stage without layers is empty: "stages=/0-3/4-7".
Result<std::vector<std::vector<int64_t>>> parse_stages(std::string_view text) {
  std::vector<std::vector<int64_t>> stages;
  int64_t total = 0;
  for (const std::string_view stage : fields_of(text, '/')) {
    stages.emplace_back();
    if (stage.empty()) continue;
    for (const std::string_view field : fields_of(stage, '+')) {
      const Extent range = HOLDFAST_TRY(parse_range(field));
      total += range.size();
      if (total > kMaxPositions) {
        return invalid("parallel: stages lists more than {} layers", kMaxPositions);
      }
      for (int64_t i = range.lo; i < range.hi; ++i) stages.back().push_back(i);
    }
  }
  return stages;
}

Result<void> read_field(std::string_view key, std::string_view text, Parallel& out) {
  for (const NumberKey& number : kNumberKeys) {
    if (number.name != key) continue;
    const int64_t least =
        key == "zero" ? 0 : 1;  // etp=0 is only the default, unwritten
    out.*number.field = HOLDFAST_TRY(parse_number(key, text, least, number.most));
    return {};
  }
  if (key == "shard") {
    out.shard = HOLDFAST_TRY(parse_choice<ShardUnit>(key, text, kShardNames));
  } else if (key == "qkv") {
    out.qkv = HOLDFAST_TRY(parse_choice<QkvLayout>(key, text, kQkvNames));
  } else if (key == "split") {
    out.split = HOLDFAST_TRY(parse_choice<SplitRule>(key, text, kSplitNames));
  } else if (key == "layers") {
    out.layer_counts = HOLDFAST_TRY(parse_counts(text));
  } else if (key == "stages") {
    out.stage_layers = HOLDFAST_TRY(parse_stages(text));
  } else if (key == "world") {
    out.world = HOLDFAST_TRY(parse_number(key, text, 1, kMaxPositions));
  } else {
    return invalid(
        "parallel: unknown key \"{}\"; expected tp, pp, dp, ep, etp, zero, vpp, shard, "
        "qkv, split, layers, stages or world",
        quoted(key));
  }
  return {};
}

Result<void> check_experts(const Parallel& p) {
  const auto experts = checked_mul(p.ep, p.expert_tp());
  if (!experts || (p.tp * p.dp) % *experts != 0) {
    return invalid(
        "parallel: ep x etp = {} x {} does not divide tp x dp = {} x {}; expected a "
        "divisor (etp is tp unless set)",
        p.ep, p.expert_tp(), p.tp, p.dp);
  }
  return {};
}

Result<void> check_stages(const Parallel& p) {
  if (!p.layer_counts.empty() && !p.stage_layers.empty()) {
    return invalid("parallel: layers and stages are both given; expected one of them");
  }
  const auto chunks = checked_mul(p.pp, p.vpp);
  if (!chunks || *chunks > kMaxPositions) {
    return invalid("parallel: pp x vpp = {} x {}; expected at most {}", p.pp, p.vpp,
                   kMaxPositions);
  }
  if (!p.layer_counts.empty() && std::ssize(p.layer_counts) != *chunks) {
    return invalid("parallel: layers has {} counts; expected pp x vpp = {}",
                   p.layer_counts.size(), *chunks);
  }
  if (std::ranges::any_of(p.layer_counts, [](int64_t n) { return n < 0; })) {
    return invalid("parallel: layers has a negative count");
  }
  if (!p.stage_layers.empty() && std::ssize(p.stage_layers) != p.pp) {
    return invalid("parallel: stages has {} stages; expected pp = {}",
                   p.stage_layers.size(), p.pp);
  }
  if (!p.stage_layers.empty() && p.vpp != 1) {
    return invalid(
        "parallel: stages is given with vpp={}; expected vpp=1, because stages already "
        "says which stage has which layers",
        p.vpp);
  }
  return {};
}

Result<std::vector<int64_t>> stages_from_lists(const Parallel& p, int64_t layers) {
  std::vector<int64_t> stage_of(static_cast<size_t>(layers), -1);
  for (int64_t stage = 0; stage < p.pp; ++stage) {
    for (const int64_t layer : p.stage_layers[static_cast<size_t>(stage)]) {
      if (layer < 0 || layer >= layers) {
        return invalid("parallel: stages names layer {}, but the model has {}", layer,
                       layers);
      }
      int64_t& slot = stage_of[static_cast<size_t>(layer)];
      if (slot != -1) return invalid("parallel: stages names layer {} twice", layer);
      slot = stage;
    }
  }
  const auto missing = std::ranges::find(stage_of, -1);
  if (missing != stage_of.end()) {
    return invalid("parallel: stages does not name layer {}",
                   missing - stage_of.begin());
  }
  return stage_of;
}

Result<std::vector<int64_t>> stages_from_counts(const Parallel& p, int64_t layers) {
  std::vector<int64_t> stage_of;
  int64_t total = 0;
  for (size_t chunk = 0; chunk < p.layer_counts.size(); ++chunk) {
    const int64_t count = p.layer_counts[chunk];
    if (count > layers - total) {
      return invalid("parallel: layers add up to more than {}, which the model has",
                     layers);
    }
    total += count;
    stage_of.resize(static_cast<size_t>(total), static_cast<int64_t>(chunk) % p.pp);
  }
  if (total != layers) {
    return invalid("parallel: layers add up to {}, but the model has {}", total,
                   layers);
  }
  return stage_of;
}

// Writes the layers 3, 4, 5, 8 as "3-5+8".
std::string ranges_text(const std::vector<int64_t>& layers) {
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    text += fmt::format("{}{}", i > 0 ? "+" : "", layers[i]);
    if (end - i > 1) text += fmt::format("-{}", layers[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace

Result<Parallel> parse_parallel(std::string_view text) {
  Parallel parallel;
  std::set<std::string_view> seen;
  for (const std::string_view field : fields_of(text, ',')) {
    const size_t equals = field.find('=');
    if (equals == std::string_view::npos) {
      return invalid("parallel: \"{}\"; expected key=value as in tp=4,pp=2,dp=1",
                     quoted(field));
    }
    const std::string_view key = field.substr(0, equals);
    if (!seen.insert(key).second) {
      return invalid("parallel: key \"{}\" is given twice", quoted(key));
    }
    HOLDFAST_TRY(read_field(key, field.substr(equals + 1), parallel));
  }
  HOLDFAST_TRY(check(parallel));
  return parallel;
}

std::string to_string(const Parallel& p) {
  std::string text = fmt::format("tp={},pp={},dp={}", p.tp, p.pp, p.dp);
  const auto add = [&](std::string_view key, const auto& value, bool given) {
    if (given) text += fmt::format(",{}={}", key, value);
  };
  add("ep", p.ep, p.ep != 1);
  add("etp", p.etp, p.etp != 0);
  add("zero", p.zero, p.zero != 0);
  add("vpp", p.vpp, p.vpp != 1);
  add("shard", kShardNames[static_cast<size_t>(p.shard)],
      p.shard != ShardUnit::kTensor);
  add("qkv", kQkvNames[static_cast<size_t>(p.qkv)], p.qkv != QkvLayout::kInterleaved);
  add("split", kSplitNames[static_cast<size_t>(p.split)], p.split != SplitRule::kEven);
  add("layers", fmt::format("{}", fmt::join(p.layer_counts, "/")),
      !p.layer_counts.empty());
  std::vector<std::string> stages;
  for (const auto& layers : p.stage_layers) stages.push_back(ranges_text(layers));
  add("stages", fmt::format("{}", fmt::join(stages, "/")), !stages.empty());
  if (p.world) text += fmt::format(",world={}", *p.world);
  return text;
}

Result<void> check(const Parallel& p) {
  for (const NumberKey& number : kNumberKeys) {
    const int64_t value = p.*number.field;
    if (value < number.least || value > number.most) {
      return invalid("parallel: {}={}; expected {} to {}", number.name, value,
                     number.least, number.most);
    }
  }
  // Each factor is at most 2^20, so the product of the three fits in 64 bits.
  if (p.positions() > kMaxPositions) {
    return invalid("parallel: tp x pp x dp = {} x {} x {} = {}; expected at most {}",
                   p.tp, p.pp, p.dp, p.positions(), kMaxPositions);
  }
  if (p.world && *p.world != p.positions()) {
    return invalid("parallel: world={}, but tp x pp x dp = {} x {} x {} = {}", *p.world,
                   p.tp, p.pp, p.dp, p.positions());
  }
  HOLDFAST_TRY(check_experts(p));
  return check_stages(p);
}

Extent split(int64_t n, int64_t t, int64_t parts, SplitRule rule) {
  HOLDFAST_CHECK(0 <= t && t < parts && n >= 0, "part {} of {} of {}", t, parts, n);
  if (rule == SplitRule::kChunk) {
    const int64_t block = divide_up(n, parts);
    return {std::min(t * block, n), std::min((t + 1) * block, n)};
  }
  // floor(n * i / parts), computed without the product n * i, which may overflow.
  const auto at = [&](int64_t i) { return n / parts * i + n % parts * i / parts; };
  return {at(t), at(t + 1)};
}

Result<std::vector<int64_t>> stages_of_layers(const Parallel& p, int64_t layers) {
  HOLDFAST_TRY(check_stages(p));
  if (!p.stage_layers.empty()) return stages_from_lists(p, layers);
  if (!p.layer_counts.empty()) return stages_from_counts(p, layers);
  const int64_t chunks = p.pp * p.vpp;
  if (chunks > 1 && chunks > layers) {
    return invalid("parallel: pp x vpp = {} x {} is more than the model's {} layers",
                   p.pp, p.vpp, layers);
  }
  std::vector<int64_t> stage_of;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const Extent part = split(layers, chunk, chunks, SplitRule::kEven);
    stage_of.resize(static_cast<size_t>(part.hi), chunk % p.pp);
  }
  return stage_of;
}

}  // namespace holdfast
