// The same step in another tier, as a source of right bytes.
#include <algorithm>

#include "holdfast/env/source_sink.h"
#include "holdfast/repair/copy_source.h"
#include "holdfast/shard/chunk_reader.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/manifest.h"

namespace holdfast {
namespace {

class TierCopies : public CopySource {
 public:
  explicit TierCopies(StorageTier& tier) : tier_(tier), name_("tier " + tier.name()) {}

  std::string_view rung() const override { return "tier"; }
  const std::string& name() const override { return name_; }

  Result<Bytes> read_chunk(const WantedChunk& wanted) override {
    const auto source = HOLDFAST_TRY(open(wanted.step, wanted.shard.name));
    const ByteExtent place = place_of(wanted.shard, wanted.number);
    return source->read_bytes(place.offset, place.bytes);
  }

  Result<Bytes> read_file(const StepParts& step, const ManifestFile& file) override {
    const auto source = HOLDFAST_TRY(open(step, file.name));
    if (source->size() != file.bytes) {
      return corrupt("has {} bytes; expected {}", source->size(), file.bytes);
    }
    return source->read_bytes(0, file.bytes);
  }

  // Takes a manifest of the same step and run that is the only one: without our manifest
  // nobody knows which attempt the folder holds.
  Result<Bytes> read_manifest(const Path& folder) override {
    const auto name = parse_step_name(folder.filename().native());
    const TierStep* found = nullptr;
    for (const TierStep& step : *HOLDFAST_TRY(steps())) {
      if (!name || step.manifest.step != name->step) continue;
      if (found != nullptr) {
        return conflict("has several steps {}; expected one", name->step);
      }
      found = &step;
    }
    if (found == nullptr) return not_found("does not have the step");
    return found->manifest_bytes;
  }

 private:
  Result<const std::vector<TierStep>*> steps() {
    if (!steps_) steps_ = tier_.steps();
    if (!steps_->ok()) return steps_->error();
    return &**steps_;
  }

  Result<std::shared_ptr<const Source>> open(const StepParts& step,
                                             const std::string& file) {
    const std::string key = hex64(step.manifest.attempt) + " " + file;
    if (key == open_key_) return open_;
    const std::vector<TierStep>& all = *HOLDFAST_TRY(steps());
    const auto same = std::ranges::find_if(all, [&](const TierStep& one) {
      return one.manifest.step == step.manifest.step &&
             one.manifest.run == step.manifest.run &&
             one.manifest.attempt == step.manifest.attempt;
    });
    if (same == all.end()) return not_found("does not have the step");
    open_ = HOLDFAST_TRY(tier_.open(*same, file));
    open_key_ = key;
    return open_;
  }

  StorageTier& tier_;
  const std::string name_;
  std::optional<Result<std::vector<TierStep>>> steps_;
  // The file that was opened last. Shared with the tier.
  std::string open_key_;
  std::shared_ptr<const Source> open_;
};

class OutOfReach : public CopySource {
 public:
  OutOfReach(const std::string& tier, Error error)
      : name_("tier " + tier), error_(std::move(error)) {}

  std::string_view rung() const override { return "tier"; }
  const std::string& name() const override { return name_; }
  Result<Bytes> read_chunk(const WantedChunk&) override { return error_; }
  Result<Bytes> read_file(const StepParts&, const ManifestFile&) override {
    return error_;
  }
  Result<Bytes> read_manifest(const Path&) override { return error_; }

 private:
  const std::string name_;
  const Error error_;
};

}  // namespace

std::unique_ptr<CopySource> copies_out_of_reach(const std::string& tier, Error error) {
  return std::make_unique<OutOfReach>(tier, std::move(error));
}

Result<Bytes> CopySource::read_manifest(const Path&) {
  return not_found("has no manifests");
}

std::unique_ptr<CopySource> copies_in_tier(StorageTier& tier) {
  return std::make_unique<TierCopies>(tier);
}

}  // namespace holdfast
