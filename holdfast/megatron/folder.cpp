// Finds the folders of the ranks of a checkpoint of Megatron.
#include <algorithm>
#include <cctype>
#include <set>

#include "holdfast/base/json_text.h"
#include "holdfast/base/number_text.h"
#include "holdfast/megatron/megatron.h"

namespace holdfast {
namespace {

constexpr const char* kTracker = "latest_checkpointed_iteration.txt";
constexpr std::string_view kRankPrefix = "mp_rank_";
constexpr int64_t kMostRanks = 4096;

struct RankName {
  int64_t tensor = 0;
  int64_t stage = 0;
  bool staged = false;
  bool experts = false;  // the name also has a rank of expert parallelism
};

std::optional<int64_t> number_of(std::string_view text, size_t digits) {
  const auto number = count_in(text);
  return number && text.size() >= digits && *number < kMostRanks ? number : std::nullopt;
}

// Reads mp_rank_XX and mp_rank_XX_YYY, and with experts mp_rank_XX_YYY_ZZZ. Without stages
// the name of a rank of experts is mp_rank_XX_ZZZ, which only `args` can tell apart.
std::optional<RankName> parse_rank(std::string_view name) {
  if (!name.starts_with(kRankPrefix)) return std::nullopt;
  name.remove_prefix(kRankPrefix.size());
  const size_t bar = name.find('_');
  const auto tensor = number_of(name.substr(0, bar), 2);
  if (!tensor) return std::nullopt;
  if (bar == name.npos) return RankName{.tensor = *tensor};
  name.remove_prefix(bar + 1);
  const size_t second = name.find('_');
  const auto stage = number_of(name.substr(0, second), 3);
  if (!stage) return std::nullopt;
  RankName rank{.tensor = *tensor, .stage = *stage, .staged = true};
  if (second == name.npos) return rank;
  if (!number_of(name.substr(second + 1), 3)) return std::nullopt;
  rank.experts = true;
  return rank;
}

// The folder of the iteration that the tracker names.
Result<Path> newest_iteration(Env& env, const Path& folder) {
  std::string text = HOLDFAST_TRY(env.read_text(folder / kTracker, 64));
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.pop_back();
  }
  if (text == "release") return folder / text;
  const auto number = count_in(text);
  if (number) return folder / fmt::format("iter_{:07}", *number);
  return corrupt("{}: has the text {}; expected the number of an iteration",
                 (folder / kTracker).native(), shown(text));
}

// The ranks whose folders are there. Empty if the folder is none of Megatron.
Result<std::vector<RankName>> list_ranks(Env& env, const Path& folder) {
  std::vector<RankName> ranks;
  std::set<std::pair<int64_t, int64_t>> seen;
  const Result<std::vector<std::string>> names = env.list(folder);
  if (!names.ok()) return ranks;
  for (const std::string& name : *names) {
    const auto rank = parse_rank(name);
    if (!rank) continue;
    if (rank->experts) {
      return unsupported("{}: is a rank of experts; expected files saved without expert "
                         "parallelism",
                         (folder / name).native());
    }
    if (env.info(folder / name / "distrib_optim.pt").ok()) {
      return unsupported(
          "{}: has the state of the distributed optimizer; expected files saved without "
          "--use-distributed-optimizer",
          (folder / name).native());
    }
    // Such as mp_rank_00 of another save beside mp_rank_00_000.
    if (!seen.emplace(rank->tensor, rank->stage).second) {
      return invalid("{}: is a second folder of rank {} of stage {}; expected one",
                     (folder / name).native(), rank->tensor, rank->stage);
    }
    ranks.push_back(*rank);
  }
  return ranks;
}

Result<void> check_all_there(Env& env, const MegatronFolder& folder) {
  for (int64_t stage = 0; stage < folder.pp; ++stage) {
    for (int64_t tensor = 0; tensor < folder.tp; ++tensor) {
      const Path file = folder.path / folder.rank_name(tensor, stage) / kMegatronFile;
      if (env.info(file).ok()) continue;
      return not_found("{}: is missing; expected the files of {} x {} ranks",
                       file.native(), folder.tp, folder.pp);
    }
  }
  return {};
}

}  // namespace

std::string MegatronFolder::rank_name(int64_t tensor, int64_t stage) const {
  if (!staged) return fmt::format("{}{:02}", kRankPrefix, tensor);
  return fmt::format("{}{:02}_{:03}", kRankPrefix, tensor, stage);
}

Result<std::optional<MegatronFolder>> find_megatron(Env& env, const Path& path) {
  MegatronFolder found{.path = path};
  if (env.info(path / kTracker).ok()) {
    found.path = HOLDFAST_TRY(newest_iteration(env, path));
    if (!env.info(found.path).ok()) {
      return not_found("{}: is missing; expected the iteration that {} names",
                       found.path.native(), (path / kTracker).native());
    }
  }
  const auto ranks = HOLDFAST_TRY(list_ranks(env, found.path));
  if (ranks.empty()) return std::optional<MegatronFolder>();
  for (const RankName& rank : ranks) {
    found.tp = std::max(found.tp, rank.tensor + 1);
    found.pp = std::max(found.pp, rank.stage + 1);
    found.staged |= rank.staged;
  }
  HOLDFAST_TRY(check_all_there(env, found));
  return std::optional(std::move(found));
}

}  // namespace holdfast
