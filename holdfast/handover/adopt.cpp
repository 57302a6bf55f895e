#include "holdfast/handover/adopt.h"

#include <fmt/format.h>

#include <algorithm>

#include "holdfast/base/crc32c.h"
#include "holdfast/checkpoint/read_pieces.h"
#include "holdfast/exchange/exchange.h"
#include "holdfast/env/mapped_file.h"
#include "holdfast/memory/piece_description.h"

namespace holdfast {
namespace {

// The small files of a step, checked against its manifest.
Result<SmallFiles> read_small_files(Env& env, const Path& folder,
                                    const Manifest& manifest) {
  SmallFiles small;
  const std::vector<std::string> shards = shards_of(manifest);
  for (const ManifestFile& file : manifest.files) {
    if (std::ranges::count(shards, file.name) > 0) continue;
    Bytes bytes = HOLDFAST_TRY(env.read_file(folder / file.name));
    if (xxh3_digest(bytes) != file.digest) {
      return corrupt("{}: has digest {}; expected {}", (folder / file.name).native(),
                     xxh3_digest(bytes), file.digest);
    }
    small[file.name] = std::move(bytes);
  }
  return small;
}

// Holder r is rank r, on the host whose place it sees. Ranks without a place have nothing
// to give, so it does not matter where they are.
LiveHolders holders_on_hosts(const Survey& survey) {
  std::vector<RankIdentity> ranks;
  for (const std::string& place : survey.places) {
    ranks.push_back({.name = fmt::format("rank {}", ranks.size()), .host = place});
  }
  return holders_of(ranks);
}

// The most that the small files of a step may take if a new host needs them. They are
// sent in one message, in which each byte becomes two, and a transport takes 256 MiB.
constexpr int64_t kMostSmallFiles = int64_t{120} << 20;

// The adoption of a step whose shards are on several hosts.
class Adoption {
 public:
  Adoption(const JobRanks& ranks, const SharedPlace& place, const Survey& survey,
           const FoundStep& found, const RestoreOptions& options)
      : ranks_(ranks),
        env_(*ranks.env),
        place_(place),
        survey_(survey),
        found_(found),
        options_(options) {}

  Result<RestoredState> run(const StateFor& into) {
    HOLDFAST_TRY(share_small_files());
    HOLDFAST_TRY(agree_on(open()));
    const Result<const LocalState*> state = into(*step_);
    HOLDFAST_TRY(agree_on(state.ok() ? prepare(**state) : state.error()));
    const Exchanged done = HOLDFAST_TRY(carry_out(**state));
    HOLDFAST_TRY(check_seals(done.seals));
    return result(**state, done);
  }

 private:
  Result<void> agree_on(const Result<void>& own) const {
    return agree(ranks_, own, options_.read_within);
  }

  // Phase 1. One rank that has the small files says them to all.
  Result<void> share_small_files() {
    if (std::ssize(found_.ranks) == ranks_.size()) return {};
    Message said{.kind = "small files"};
    if (ranks_.rank() == found_.ranks.front()) {
      const Result<SmallFiles> own = read_own_small_files();
      if (own.ok()) said.text = pack_files(*own);
      if (!own.ok()) said.error = own.error();
      if (std::ssize(said.text) > kMostSmallFiles) {
        said.error = not_found(
            "handover: the indexes of all ranks take {} bytes; expected at most {} for "
            "hosts that come anew",
            std::exchange(said.text, {}).size(), kMostSmallFiles);
      }
    }
    const std::vector<Message> heard =
        HOLDFAST_TRY(say_and_hear(ranks_, said, options_.read_within));
    const bool lacks_them = std::ranges::count(found_.ranks, ranks_.rank()) == 0;
    const std::string& text = heard[static_cast<size_t>(found_.ranks.front())].text;
    return agree_on(lacks_them ? try_to_keep(text) : Result<void>());
  }
  // A host whose place is somebody else's, or full, cannot take the step. It is passed
  // over then, as one that the hosts do not have.
  Result<void> try_to_keep(const std::string& packed) {
    const Result<void> kept = keep_small_files(packed);
    if (kept.ok()) return kept;
    const ErrorCode code = kept.error().code();
    const bool no_place = code == ErrorCode::kDenied || code == ErrorCode::kNoSpace;
    return no_place ? kept.error().as(ErrorCode::kNotFound) : kept.error();
  }
  Result<SmallFiles> read_own_small_files() {
    const Path folder = HOLDFAST_TRY(folder_of_step(place_, found_.manifest));
    return read_small_files(env_, folder, found_.manifest);
  }
  Result<void> keep_small_files(const std::string& packed) {
    const SmallFiles small = HOLDFAST_TRY(unpack_files(packed));
    HOLDFAST_TRY(place_.make());
    const Path begun =
        HOLDFAST_TRY(place_.begin(found_.manifest.step, found_.manifest.attempt));
    HOLDFAST_TRY(place_.publish(begun, found_.manifest, small));
    return {};
  }

  // Phase 2.
  Result<void> open() {
    folder_ = HOLDFAST_TRY(folder_of_step(place_, found_.manifest));
    step_.emplace(HOLDFAST_TRY(open_step(env_, folder_)));
    objects_ = HOLDFAST_TRY(read_objects(env_, *step_));
    if (step_->manifest.world == ranks_.size()) {
      own_objects_ = HOLDFAST_TRY(read_objects(env_, *step_, ranks_.rank()));
    }
    return {};
  }

  // Phase 3, and the two layouts.
  Result<void> prepare(const LocalState& state) {
    HOLDFAST_TRY(check_tensors(*step_, state));
    const LiveHolders live = holders_on_hosts(survey_);
    choose_adopters();
    HOLDFAST_TRY(map_shards());
    source_.emplace(HOLDFAST_TRY(source_layout(state, live.holders)));
    target_.emplace(HOLDFAST_TRY(target_layout(*state.collection, live.holders)));
    plan_.emplace(HOLDFAST_TRY(plan(*source_, *target_, live.topology)));
    return {};
  }

  // The rank that had written the shard, if its host has it, and else the one that has
  // adopted the fewest bytes. All ranks choose the same.
  void choose_adopters() {
    std::vector<int64_t> load(static_cast<size_t>(ranks_.size()));
    for (const ShardFile& file : step_->files) {
      const std::vector<int>& able = found_.shards.at(file.name);
      int chosen = *std::ranges::min_element(
          able, {}, [&](int rank) { return load[static_cast<size_t>(rank)]; });
      for (const int rank : able) {
        if (shard_name(rank, false) == file.name) chosen = rank;
      }
      load[static_cast<size_t>(chosen)] += file.bytes;
      adopters_.push_back(chosen);
    }
  }

  // Maps the shards that this rank adopts, and checks every byte of them.
  Result<void> map_shards() {
    mapped_.resize(step_->files.size());
    for (size_t f = 0; f < adopters_.size(); ++f) {
      if (adopters_[f] != ranks_.rank()) continue;
      const ShardFile& file = step_->files[f];
      const Path path = folder_ / file.name;
      if (!file.packed.empty()) {
        return unsupported("{}: is compressed; expected a plain shard", path.native());
      }
      mapped_[f].emplace(HOLDFAST_TRY(MappedFile::open(path, file.bytes)));
      HOLDFAST_TRY(check_chunks(path, file, mapped_[f]->memory()));
    }
    return {};
  }
  static Result<void> check_chunks(const Path& path, const ShardFile& file,
                                   ByteView memory) {
    for (size_t c = 0; c < file.chunks.size(); ++c) {
      const ByteView bytes = memory.subspan(static_cast<size_t>(file.chunks[c].offset),
                                            static_cast<size_t>(file.chunks[c].bytes));
      HOLDFAST_TRY(check_chunk(
          path, file, {.number = c, .bytes = bytes, .crc = crc32c(bytes)}));
    }
    return {};
  }

  // The state as it lies in the shards, whose holders are the ranks that adopt them. The
  // rank's own pieces are collected in `old_`.
  Result<Collection> source_layout(const LocalState& state,
                                   const std::vector<Holder>& holders) {
    const Collection& stored = step_->collection;
    std::vector<Tensor> tensors(stored.tensors().begin(), stored.tensors().end());
    name_as_here(*state.collection, tensors);
    LayoutBuilder builder(tensors, holders);
    std::vector<int64_t> used(holders.size());
    const Layout& layout = stored.layout();
    for (TensorId t = 0; t < tensors.size(); ++t) {
      const auto shared = std::make_shared<const Tensor>(tensors[t]);
      const int64_t element = bytes_of(tensors[t].dtype);
      for (const Slice& slice : layout.slices(t)) {
        for (PieceId p = slice.first; p < slice.last; ++p) {
          const HolderId file = layout.holder(p);
          const auto adopter = static_cast<HolderId>(adopters_[file]);
          builder.add(t, slice.box, adopter, used[adopter]);
          used[adopter] += slice.box.elements() * element;
          if (!mapped_[file]) continue;
          old_.edit().push_back(HOLDFAST_TRY(
              piece_in(file, shared, slice.box, layout.map(p, element).offset)));
        }
      }
    }
    Layout built = HOLDFAST_TRY(std::move(builder).build());
    return Collection::create(std::move(tensors), std::move(built));
  }

  // Gives tensors of the step the names here as aliases, where only an alias here is
  // their name.
  void name_as_here(const Collection& here, std::vector<Tensor>& tensors) const {
    for (const Tensor& tensor : here.tensors()) {
      const std::optional<TensorId> found = find_in(*step_, tensor);
      if (!found || step_->collection.find(tensor.name)) continue;
      tensors[*found].aliases.push_back(tensor.name);
    }
  }

  Result<LocalPiece> piece_in(HolderId file, const std::shared_ptr<const Tensor>& tensor,
                              const Box& box, int64_t offset) const {
    const ByteSpan memory = mapped_[file]->memory();
    const int64_t element = bytes_of(tensor->dtype), bytes = box.elements() * element;
    if (offset < 0 || offset > std::ssize(memory) - bytes) {
      return corrupt("{}: {} ends after the shard; expected it inside",
                     step_->files[file].name, tensor->name);
    }
    return LocalPiece{
        .tensor = tensor,
        .box = box,
        .memory = memory.subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes)),
        .map = Map::dense(box, element)};
  }

  // The layout of the new processes. Tensors have no aliases, because names that are one
  // tensor here may be two equal ones in the step, as check_tensors() has seen.
  static Result<Collection> target_layout(const Collection& here,
                                          const std::vector<Holder>& holders) {
    PiecesOfRanks all(holders);
    const Layout& layout = here.layout();
    for (TensorId t = 0; t < here.tensors().size(); ++t) {
      Tensor tensor = here.tensor(t);
      tensor.aliases.clear();
      for (const Slice& slice : layout.slices(t)) {
        for (PieceId p = slice.first; p < slice.last; ++p) {
          HOLDFAST_TRY(all.add(static_cast<int>(layout.holder(p)), tensor, slice.box));
        }
      }
    }
    return all.build();
  }

  // Phase 4.
  Result<Exchanged> carry_out(const LocalState& state) {
    const auto rank = static_cast<size_t>(ranks_.rank());
    GivenStorage storage(state.pieces);
    return exchange(env_, *ranks_.transport,
                    {.source = &*source_,
                     .target = &*target_,
                     .plan = &*plan_,
                     .holder = source_->layout().holders()[rank].name,
                     .old = old_},
                    storage, {.patience = options_.timeout, .stream = options_.stream});
  }

  // All ranks come to the same result, because they know all seals.
  Result<void> check_seals(const std::vector<Seal>& seals) const {
    for (TensorId t = 0; t < seals.size(); ++t) {
      const std::optional<TensorId> source = source_->find(target_->tensor(t).name);
      const Seal& saved = step_->seals[*source];
      if (saved.bytes != seals[t].bytes || saved == seals[t]) continue;
      return corrupt("{}: {} has another seal; expected the one that was saved",
                     folder_.native(), target_->tensor(t).name);
    }
    return {};
  }

  RestoredState result(const LocalState& state, const Exchanged& done) const {
    RestoredState restored{.step = found_.manifest.step,
                           .folder = folder_,
                           .tier = {},
                           .manifest = step_->manifest,
                           .objects = objects_,
                           .rank_objects = own_objects_,
                           .skipped = {},
                           .unused = unused_tensors(*step_, state),
                           .unverified = {},
                           .mended = {},
                           .in_memory = true,
                           .needed = 0,
                           .read = done.copied};
    for (const int64_t bytes : done.received) restored.read += bytes;
    for (const LocalPiece& piece : state.pieces) restored.needed += piece.bytes();
    return restored;
  }

  const JobRanks ranks_;
  Env& env_;
  const SharedPlace& place_;
  const Survey& survey_;
  const FoundStep& found_;
  const RestoreOptions& options_;
  Path folder_;
  std::optional<StepFiles> step_;
  Object objects_, own_objects_;
  std::vector<int> adopters_;                      // by file of the step
  std::vector<std::optional<MappedFile>> mapped_;  // by file; this rank's
  LocalPieces old_;
  std::optional<Collection> source_, target_;
  std::optional<Plan> plan_;
};

}  // namespace

Result<RestoredState> adopt(const JobRanks& ranks, const SharedPlace& place,
                            const Survey& survey, const FoundStep& found,
                            const StateFor& into, const RestoreOptions& options) {
  if (survey.is_one_place()) {
    RestoreOptions here = options;
    here.step = found.manifest.step;
    here.tiers.clear();
    here.events = nullptr;  // events say that a step is durable
    RestoredState restored = HOLDFAST_TRY(
        restore(*ranks.env, place.path(), into, ranks.transport, here));
    if (restored.manifest.attempt == found.manifest.attempt) {
      restored.skipped.clear();  // the caller knows what is passed over in memory
      return restored;
    }
    // It is damaged, and restore() has taken an older one of the same number. Whether
    // that one is newer than those on disk is for the caller to decide.
    return corrupt("{}: the newest step {} is damaged; expected it whole",
                   place.path().native(), found.manifest.step);
  }
  return Adoption(ranks, place, survey, found, options).run(into);
}

}  // namespace holdfast
