#include "holdfast/shard/step_name.h"

#include <algorithm>
#include <limits>

#include "holdfast/base/number_text.h"

namespace holdfast {
namespace {

constexpr std::string_view kParityEnd = ".parity";

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kAttemptSuffix = ".tmp";
constexpr std::string_view kTrashSuffix = ".trash";
constexpr std::string_view kRankPrefix = "rank-";
constexpr std::string_view kIndexSuffix = ".index.json";
constexpr std::string_view kObjectsName = "objects.json";

std::string step_text(int64_t step) {
  return fmt::format("{}{:08}", kStepPrefix, step);
}

std::string rank_text(int rank) { return fmt::format("{}{:04}", kRankPrefix, rank); }

// Splits "a.<16 digits>" at the dot.
std::optional<std::pair<std::string_view, uint64_t>> split_mark(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return std::nullopt;
  const std::optional<uint64_t> mark = parse_hex64(name.substr(dot + 1));
  if (!mark) return std::nullopt;
  return std::pair(name.substr(0, dot), *mark);
}

std::optional<std::string_view> without_suffix(std::string_view name,
                                               std::string_view suffix) {
  if (!name.ends_with(suffix)) return std::nullopt;
  return name.substr(0, name.size() - suffix.size());
}

}  // namespace

std::string hex64(uint64_t number) { return fmt::format("{:016x}", number); }

std::optional<uint64_t> parse_hex64(std::string_view digits) {
  const auto number = number_in<uint64_t>(digits, 16);
  return number && hex64(*number) == digits ? number : std::nullopt;
}

std::string StepName::text() const {
  const std::string text = step_text(step);
  return generation == 1 ? text : fmt::format("{}.g{}", text, generation);
}

std::optional<StepName> parse_step_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const size_t dot = std::min(name.find('.'), name.size());
  const auto step =
      count_in(name.substr(kStepPrefix.size(), dot - kStepPrefix.size()));
  if (!step) return std::nullopt;
  StepName parsed{.step = *step};
  if (dot < name.size()) {
    if (!name.substr(dot).starts_with(".g")) return std::nullopt;
    const auto generation = count_in(name.substr(dot + 2));
    if (!generation || *generation < 2) return std::nullopt;
    parsed.generation = *generation;
  }
  // Each step has exactly one name: no signs, no other number of zeros, no ".g1".
  if (parsed.text() != name) return std::nullopt;
  return parsed;
}

std::string AttemptName::text() const {
  return fmt::format("{}.{}{}", step_text(step), hex64(attempt), kAttemptSuffix);
}

std::optional<AttemptName> parse_attempt_name(std::string_view name) {
  const auto stem = without_suffix(name, kAttemptSuffix);
  if (!stem) return std::nullopt;
  const auto parts = split_mark(*stem);
  if (!parts) return std::nullopt;
  const auto step = parse_step_name(parts->first);
  if (!step || step->generation != 1) return std::nullopt;
  return AttemptName{.step = step->step, .attempt = parts->second};
}

std::string trash_name(const StepName& step, uint64_t mark) {
  return fmt::format("{}.{}{}", step.text(), hex64(mark), kTrashSuffix);
}

std::optional<StepName> parse_trash_name(std::string_view name) {
  const auto stem = without_suffix(name, kTrashSuffix);
  const auto parts = stem ? split_mark(*stem) : std::nullopt;
  return parts ? parse_step_name(parts->first) : std::nullopt;
}

std::string pin_name(const StepName& step) { return step.text() + ".pin"; }

std::string event_log_name(int rank) {
  return fmt::format("events/{}.jsonl", rank_text(rank));
}

std::string shard_name(int rank, bool compressed) {
  return rank_text(rank) + (compressed ? ".packed" : ".safetensors");
}

std::string index_name(int rank) {
  return fmt::format("{}{}", rank_text(rank), kIndexSuffix);
}

std::string parity_name(std::string_view shard) {
  return std::string(shard) + std::string(kParityEnd);
}

std::optional<std::string> shard_of_parity(std::string_view name) {
  if (!name.ends_with(kParityEnd) || name.size() == kParityEnd.size()) {
    return std::nullopt;
  }
  return std::string(name.substr(0, name.size() - kParityEnd.size()));
}

bool is_index_name(std::string_view name) { return name.ends_with(kIndexSuffix); }

std::string objects_name(std::optional<int> rank) {
  if (!rank.has_value()) return std::string(kObjectsName);
  return fmt::format("{}.{}", rank_text(*rank), kObjectsName);
}

std::optional<int> rank_of_objects(std::string_view name) {
  const size_t dot = std::min(name.find('.'), name.size());
  if (!name.starts_with(kRankPrefix)) return std::nullopt;
  const auto rank =
      count_in(name.substr(kRankPrefix.size(), dot - kRankPrefix.size()));
  if (!rank || *rank > std::numeric_limits<int>::max()) return std::nullopt;
  // Each file has exactly one name.
  if (objects_name(static_cast<int>(*rank)) != name) return std::nullopt;
  return static_cast<int>(*rank);
}

Result<void> check_file_name(std::string_view name) {
  constexpr size_t kLongest = 255;
  if (name.empty() || name.size() > kLongest) {
    return invalid("the file name has {} bytes; expected 1 to {}", name.size(),
                   kLongest);
  }
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f && c != '/' && c != '\\';
  });
  if (plain && name != "." && name != "..") return {};
  return invalid(
      "the file name is not a plain name in its folder; expected one like "
      "\"rank-0000.safetensors\"");
}

}  // namespace holdfast
