#include "holdfast/handover/survey.h"

#include <algorithm>

#include "holdfast/shard/shard_index.h"
#include "holdfast/state/box.h"

namespace holdfast {
namespace {

// The names of sentences among manifests.
constexpr const char* kRefused = "refused";
constexpr std::string_view kDamaged = "damaged ";  // and a number

std::string file_key(const Manifest& manifest, const std::string& file) {
  return hex64(manifest.attempt) + "/" + file;
}

// True for an error that does not say what is there. To restore an older step then would
// lose the one that is there.
bool is_unknown(const Error& error) {
  return cannot_tell(error) && error.code() != ErrorCode::kDenied;
}

// The steps of the place. Fails if it cannot be told now which ones are there.
Result<StepList> known_steps(const SharedPlace& place) {
  StepList list = HOLDFAST_TRY(place.list_steps());
  for (const SkippedStep& one : list.skipped) {
    if (is_unknown(one.error)) return one.error;
  }
  return list;
}

// What this rank says: the manifests of the steps on its host by their attempts, and the
// shards that are there with their sizes.
Message describe(Env& env, const SharedPlace& place) {
  Message said{.kind = ""};
  SmallFiles manifests;
  const Result<StepList> list = known_steps(place);
  if (!list.ok() && is_unknown(list.error())) {
    said.error = list.error();
  } else if (!list.ok()) {
    manifests[kRefused] = copy_of(bytes_of(list.error().message()));
  } else if (const Result<std::string> identity = place.identity(); identity.ok()) {
    said.kind = *identity;
    for (const SkippedStep& one : list->skipped) {
      manifests[fmt::format("{}{}", kDamaged, manifests.size())] =
          copy_of(bytes_of(one.error.message()));
    }
    for (const Step& step : list->steps) {
      manifests[hex64(step.manifest.attempt)] = encode_manifest(step.manifest);
      for (const std::string& shard : shards_of(step.manifest)) {
        const Result<FileInfo> info = env.info(step.folder / shard);
        if (!info.ok() || info->folder) continue;
        said.files.push_back({.name = file_key(step.manifest, shard),
                              .bytes = info->size});
      }
    }
  }
  said.text = pack_files(manifests);
  return said;
}

// Collects what all ranks say about the places of their hosts.
class Found {
 public:
  Result<void> add(int rank, const Message& said) {
    for (const auto& [name, bytes] : HOLDFAST_TRY(unpack_files(said.text))) {
      if (name == kRefused) {
        refused_.insert(std::string(text_of(bytes)));
        continue;
      }
      if (name.starts_with(kDamaged)) {
        damaged_.insert(std::string(text_of(bytes)));
        continue;
      }
      const Manifest manifest = HOLDFAST_TRY(
          decode_manifest(bytes, fmt::format("memory of the host of rank {}", rank)));
      add_step(rank, manifest, said.files);
    }
    return {};
  }

  Survey survey(std::vector<std::string> places) && {
    Survey survey{.places = std::move(places)};
    for (auto& [attempt, step] : steps_) survey.steps.push_back(std::move(step));
    std::ranges::sort(survey.steps, std::greater(),
                      [](const FoundStep& step) { return age_of(step.manifest); });
    survey.refused.assign(refused_.begin(), refused_.end());
    survey.damaged.assign(damaged_.begin(), damaged_.end());
    return survey;
  }

 private:
  void add_step(int rank, const Manifest& manifest,
                const std::vector<ManifestFile>& files) {
    FoundStep& step = steps_[manifest.attempt];
    if (step.ranks.empty()) step.manifest = manifest;
    if (step.manifest != manifest) return;  // not the same step
    step.ranks.push_back(rank);
    for (const ManifestFile& file : manifest.files) {
      const auto there = std::ranges::find(files, file_key(manifest, file.name),
                                           &ManifestFile::name);
      if (there == files.end() || there->bytes != file.bytes) continue;
      step.shards[file.name].push_back(rank);
    }
  }

  std::map<uint64_t, FoundStep> steps_;
  std::set<std::string> refused_, damaged_;
};

// The index of a shard, from the small files in the folder of its step.
Result<ShardIndex> index_of(Env& env, const Path& folder, const Manifest& manifest,
                            const std::string& shard) {
  for (const ManifestFile& file : manifest.files) {
    if (!is_index_name(file.name)) continue;
    const Bytes bytes = HOLDFAST_TRY(env.read_file(folder / file.name));
    ShardIndex index =
        HOLDFAST_TRY(decode_shard_index(bytes, (folder / file.name).native()));
    if (index.files.front().name == shard) return index;
  }
  return not_found("{}: has no index of {}; expected one", folder.native(), shard);
}

// A box that is in the shard, in words.
std::string box_in(Env& env, const SharedPlace& place, const Manifest& manifest,
                   const std::string& shard) {
  const Result<Path> folder = folder_of_step(place, manifest);
  if (!folder.ok()) return "";
  const Result<ShardIndex> index = index_of(env, *folder, manifest, shard);
  if (!index.ok() || index->pieces.empty()) return "";
  const StoredPiece& piece = index->pieces.front();
  return fmt::format("{} {}", index->tensors[piece.tensor].name, to_string(piece.box));
}

}  // namespace

std::optional<std::string> FoundStep::lost() const {
  for (const std::string& shard : shards_of(manifest)) {
    if (!shards.contains(shard)) return shard;
  }
  return std::nullopt;
}

bool Survey::is_one_place() const {
  return !places[0].empty() &&
         std::ranges::count(places, places[0]) == std::ssize(places);
}

Result<Survey> survey_memory(const JobRanks& ranks, const SharedPlace& place,
                             Duration at_most) {
  const std::vector<Message> heard =
      HOLDFAST_TRY(say_and_hear(ranks, describe(*ranks.env, place), at_most));
  Found found;
  std::vector<std::string> places;
  for (size_t rank = 0; rank < heard.size(); ++rank) {
    places.push_back(heard[rank].kind);
    HOLDFAST_TRY(found.add(static_cast<int>(rank), heard[rank]));
  }
  return std::move(found).survey(std::move(places));
}

Result<std::string> name_lost_box(const JobRanks& ranks, const SharedPlace& place,
                            const FoundStep& step, Duration at_most) {
  const std::string shard = step.lost().value_or("");
  Message said{.kind = "lost"};
  if (ranks.rank() == step.ranks.front()) {
    said.text = box_in(*ranks.env, place, step.manifest, shard);
  }
  const std::vector<Message> heard = HOLDFAST_TRY(say_and_hear(ranks, said, at_most));
  const std::string& box = heard[static_cast<size_t>(step.ranks.front())].text;
  return fmt::format("{} was in {}, which no host of this job has in its memory",
                     box.empty() ? "a part" : box, shard);
}

Result<Path> folder_of_step(const SharedPlace& place, const Manifest& manifest) {
  const StepList list = HOLDFAST_TRY(place.list_steps());
  for (const Step& step : list.steps) {
    if (step.manifest.attempt == manifest.attempt) return step.folder;
  }
  return not_found("{}: has no step {}; expected it there", place.path().native(),
                   manifest.step);
}

}  // namespace holdfast
