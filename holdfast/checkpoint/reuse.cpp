#include "holdfast/checkpoint/reuse.h"

#include <fmt/format.h>

#include "holdfast/shard/step_name.h"

namespace holdfast {

ReusableStep::ReusableStep(const Path& folder, uint64_t attempt,
                           const ShardIndex& index)
    : name_(folder.filename().native()) {
  for (size_t f = 0; f < index.files.size(); ++f) {
    ReusableFile& reusable = files_.emplace_back(
        ReusableFile{.path = folder / index.files[f].name, .file = index.files[f]});
    // The step's own shard is the first file. Linked shards already have a name that
    // says which step wrote them.
    if (f > 0) continue;
    reusable.file.name =
        fmt::format("{}.{}.{}", name_, hex64(attempt), reusable.file.name);
  }
  for (const StoredPiece& piece : index.pieces) {
    if (!piece.xxh3.has_value()) continue;
    pieces_.emplace(std::pair(index.tensors[piece.tensor].name, piece.box),
                    ReusablePiece{.file = piece.file,
                                  .offset = piece.offset,
                                  .seal = piece.seal,
                                  .digest = *piece.xxh3});
  }
}

const ReusablePiece* ReusableStep::find(const std::string& tensor, const Box& box,
                                        const Digest128& digest) const {
  const auto found = pieces_.find({tensor, box});
  if (found == pieces_.end() || found->second.digest != digest) return nullptr;
  return &found->second;
}

std::string ReuseHistory::choose() {
  MutexLock lock(mutex_);
  chosen_.clear();
  if (stopped_ || steps_.empty()) return chosen_;
  if (++since_full_ >= full_every_) since_full_ = 0;
  if (since_full_ != 0) chosen_ = steps_.back()->name();
  return chosen_;
}

std::string ReuseHistory::chosen() const {
  MutexLock lock(mutex_);
  return chosen_;
}

void ReuseHistory::taken() {
  MutexLock lock(mutex_);
  chosen_.clear();
}

std::shared_ptr<const ReusableStep> ReuseHistory::find(const std::string& name) const {
  MutexLock lock(mutex_);
  for (const auto& step : steps_) {
    if (step->name() == name) return step;
  }
  return nullptr;
}

void ReuseHistory::remember(const Path& folder, uint64_t attempt,
                            const ShardIndex& index) {
  if (!on_) return;
  auto step = std::make_shared<const ReusableStep>(folder, attempt, index);
  MutexLock lock(mutex_);
  steps_.push_back(std::move(step));
  if (steps_.size() > 2) steps_.pop_front();
}

void ReuseHistory::stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
}

}  // namespace holdfast
