#include "holdfast/repair/reference_checkpoint.h"

#include <algorithm>

#include "holdfast/corruption/alter.h"
#include "holdfast/formats/format.h"
#include "holdfast/state/element.h"

namespace holdfast {
namespace {

constexpr int64_t kWindow = int64_t{4} << 20;
// Each difference that is compared with a byte takes a patch.
constexpr size_t kMostCompared = 4096;

size_t as_size(int64_t n) { return static_cast<size_t>(n); }

}  // namespace

Result<ReferenceCheckpoint> ReferenceCheckpoint::open(Env& env, const Path& path) {
  OpenedAny opened = HOLDFAST_TRY(open_any(env, path));
  return ReferenceCheckpoint(path, std::move(opened));
}

Result<TensorId> ReferenceCheckpoint::find(const Tensor& tensor) const {
  const auto id = opened_.contents.collection.find(tensor.name);
  if (!id) {
    return not_found("{}: has no tensor {}; expected a copy", path_.native(), tensor.name);
  }
  const Tensor& other = opened_.contents.collection.tensor(*id);
  if (other.dtype == tensor.dtype && other.shape == tensor.shape) return *id;
  return conflict("{}: {} is {} {}; expected {} {}", path_.native(), tensor.name,
                  name_of(other.dtype), to_string(other.shape), name_of(tensor.dtype),
                  to_string(tensor.shape));
}

Result<std::vector<PlannedFlip>> ReferenceCheckpoint::differences(
    const Contents& contents, const std::string& name) const {
  const auto own = contents.collection.find(name);
  if (!own) return not_found("{}: there is no tensor of this name", name);
  const Tensor& tensor = contents.collection.tensor(*own);
  const TensorId other = HOLDFAST_TRY(find(tensor));
  const int64_t size = bytes_of(tensor.dtype);
  std::vector<PlannedFlip> flips;
  for (int64_t at = 0; at < tensor.bytes(); at += kWindow) {
    Bytes seen(as_size(std::min(kWindow, tensor.bytes() - at))), right(seen.size());
    HOLDFAST_TRY(read_canonical(contents, *own, at, seen));
    HOLDFAST_TRY(read_canonical(opened_.contents, other, at, right));
    if (seen == right) continue;
    for (int64_t i = 0; i < std::ssize(seen); i += size) {
      const ByteView a = ByteView(seen).subspan(as_size(i), as_size(size));
      const ByteView b = ByteView(right).subspan(as_size(i), as_size(size));
      if (std::ranges::equal(a, b)) continue;
      if (std::ssize(flips) == kMostDifferent) {
        return corrupt("{}: {} differs in more than {} elements; expected a copy",
                       path_.native(), name, kMostDifferent);
      }
      const int64_t element = (at + i) / size;
      flips.push_back({.tensor = name,
                       .element = element,
                       .index = index_of(tensor.shape, element),
                       .dtype = tensor.dtype,
                       .before = element_bits(a),
                       .after = element_bits(b)});
    }
  }
  return flips;
}

Result<Seal> ReferenceCheckpoint::seal_of(const std::string& name) const {
  const auto id = opened_.contents.collection.find(name);
  if (!id) return not_found("{}: has no tensor {}; expected a copy", path_.native(), name);
  return seal_of_tensor(opened_.contents, *id,
                        opened_.contents.collection.tensor(*id).bytes());
}

Result<bool> ReferenceCheckpoint::confirms(Env& env, const Found& found,
                                           const Contents& contents,
                                           std::span<const std::string> tensors,
                                           const PlannedByte& byte) const {
  if (!found.format->can_patch()) return false;
  const std::vector<NamedFile> files = HOLDFAST_TRY(files_of(env, found));
  const auto own = std::ranges::find(files, byte.file, &NamedFile::name);
  for (const std::string& name : tensors) {
    const auto flips = differences(contents, name);
    if (!flips.ok() || flips->size() > kMostCompared) continue;
    for (const PlannedFlip& flip : *flips) {
      const Flip one{flip.tensor, flip.element, flip.mask()};
      const Patch patch = HOLDFAST_TRY(
          found.format->plan_patch(env, found.path, {&one, 1}, Checksums::kRaw));
      for (const FilePatch& file : patch.files) {
        if (own != files.end() && own->path != file.file) continue;
        for (const Change& change : file.changes) {
          const int64_t at = byte.offset - change.offset;
          if (at < 0 || at >= std::ssize(change.after)) continue;
          if (change.after[as_size(at)] == byte.after) return true;
        }
      }
    }
  }
  return false;
}

}  // namespace holdfast
