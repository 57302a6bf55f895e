#include "holdfast/inspect/training_objects.h"

#include <map>

#include "holdfast/base/number_text.h"
#include "holdfast/checkpoint/step_files.h"
#include "holdfast/env/patient_env.h"
#include "holdfast/shard/step_name.h"

namespace holdfast {

Result<std::optional<TrainingObjects>> read_training_objects(Env& env,
                                                             const Found& found,
                                                             const Object& objects) {
  const bool made_here = found.step() && find_key(objects, "kinds") != nullptr &&
                         find_key(objects, "format") != nullptr;
  if (!made_here) return std::optional<TrainingObjects>();
  PatientEnv patient(env);
  const StepFiles step = HOLDFAST_TRY(open_step(patient, found.path));
  std::map<int, Object> by_rank;
  for (const ManifestFile& file : step.manifest.files) {
    const std::optional<int> rank = rank_of_objects(file.name);
    if (!rank) continue;
    by_rank[*rank] = HOLDFAST_TRY(read_objects(patient, step, *rank));
  }
  TrainingObjects read{.all = objects};
  for (auto& [rank, own] : by_rank) read.ranks.push_back(std::move(own));
  return std::optional(std::move(read));
}

RankName split_rank(std::string_view name) {
  constexpr std::string_view kMark = "@rank";
  const size_t at = name.rfind(kMark);
  if (at == name.npos) return {name};
  const std::string_view digits = name.substr(at + kMark.size());
  const int rank = number_in<int>(digits).value_or(-1);
  return rank >= 0 ? RankName{name.substr(0, at), rank} : RankName{name};
}

}  // namespace holdfast
