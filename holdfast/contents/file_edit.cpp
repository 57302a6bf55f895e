#include "holdfast/contents/file_edit.h"

#include <algorithm>
#include <unordered_map>

#include "holdfast/state/box_index.h"

namespace holdfast {
namespace {

size_t as_size(int64_t n) { return static_cast<size_t>(n); }

// The box of one element, given by its place in row-major order.
Box box_of_element(const Shape& shape, int64_t element) {
  std::array<Extent, kMaxRank> extents{};
  for (int k = shape.rank() - 1; k >= 0; --k) {
    const int64_t at = element % shape[k];
    extents[as_size(k)] = {at, at + 1};
    element /= shape[k];
  }
  return Box::create(std::span(extents).first(as_size(shape.rank()))).value();
}

// The boxes of one tensor, to find those that have an element.
class TensorBoxes {
 public:
  TensorBoxes(const Layout& layout, TensorId tensor)
      : slices_(layout.slices(tensor)), boxes_(layout.boxes(tensor)), index_(boxes_) {}

  template <typename Visit>
  void for_each_slice(const Box& box, Visit&& visit) const {
    index_.for_each_hit(box, [&](uint32_t hit) { visit(slices_[hit]); });
  }

 private:
  const std::span<const Slice> slices_;
  const std::vector<Box> boxes_;
  const BoxIndex index_;
};

// Carries out one call of place_flips().
class FlipPlacer {
 public:
  using Visit = std::function<Result<void>(const PlacedFlip&)>;

  FlipPlacer(const Contents& contents, const Visit& visit)
      : contents_(contents), visit_(visit) {}

  Result<void> place(const Flip& flip) {
    const auto tensor = contents_.collection.find(flip.tensor);
    if (!tensor) {
      const std::string* line = find_left_out(contents_, flip.tensor);
      if (line != nullptr) return unsupported("{}", *line);
      return not_found("{}: there is no tensor of this name", flip.tensor);
    }
    const Tensor& of = contents_.collection.tensor(*tensor);
    HOLDFAST_TRY(check(flip, of));
    const Box box = box_of_element(of.shape, flip.element);
    bool found = false;
    Result<void> placed;
    boxes_of(*tensor).for_each_slice(box, [&](const Slice& slice) {
      for (PieceId piece = slice.first; piece < slice.last && placed.ok(); ++piece) {
        found = true;
        placed = visit_place(flip, *tensor, piece, box);
      }
    });
    if (found) return placed;
    return not_found("{}: no file has the element {}", flip.tensor, flip.element);
  }

 private:
  static Result<void> check(const Flip& flip, const Tensor& of) {
    if (flip.element < 0 || flip.element >= of.shape.elements()) {
      return invalid("{}: has no element {}; expected one of {}", flip.tensor,
                     flip.element, of.shape.elements());
    }
    const auto beyond = ByteView(flip.mask).subspan(as_size(bytes_of(of.dtype)));
    if (std::ranges::all_of(beyond, [](std::byte b) { return b == std::byte{0}; })) {
      return {};
    }
    return invalid("{}: the mask is longer than an element; expected {} bytes for {}",
                   flip.tensor, bytes_of(of.dtype), name_of(of.dtype));
  }

  const TensorBoxes& boxes_of(TensorId tensor) {
    auto& boxes = boxes_[tensor];
    if (!boxes) {
      boxes = std::make_unique<TensorBoxes>(contents_.collection.layout(), tensor);
    }
    return *boxes;
  }

  Result<void> visit_place(const Flip& flip, TensorId tensor, PieceId piece,
                           const Box& box) const {
    const Layout& layout = contents_.collection.layout();
    const int64_t bytes = bytes_of(contents_.collection.tensor(tensor).dtype);
    const Map map = layout.map(piece, bytes);
    return visit_({.flip = &flip,
                   .tensor = tensor,
                   .holder = layout.holder(piece),
                   .offset = map.offset_of(layout.box(piece), box),
                   .mask = ByteView(flip.mask).first(as_size(bytes))});
  }

  const Contents& contents_;
  const Visit& visit_;
  std::unordered_map<TensorId, std::unique_ptr<TensorBoxes>> boxes_;
};

// Leaves out bytes at both ends of a change that are the same before and after. The
// bytes at the end stay if the end of the file moves.
void trim(Change& change) {
  const auto [b, a] = std::ranges::mismatch(change.before, change.after);
  const auto front = b - change.before.begin();
  change.before.erase(change.before.begin(), b);
  change.after.erase(change.after.begin(), a);
  change.offset += front;
  if (change.before.size() != change.after.size()) return;
  while (!change.before.empty() && change.before.back() == change.after.back()) {
    change.before.pop_back();
    change.after.pop_back();
  }
}

}  // namespace

Result<std::map<int64_t, FileEdit::Piece>::iterator> FileEdit::cover(int64_t offset,
                                                                     int64_t count) {
  const int64_t end = offset + count;
  auto first = pieces_.upper_bound(offset);
  if (first != pieces_.begin()) {
    const auto before = std::prev(first);
    if (end <= before->first + std::ssize(before->second.after)) return before;
    if (before->first + before->second.extent() > offset) first = before;
  }
  const auto last = pieces_.lower_bound(end);
  int64_t lo = offset, hi = end;
  for (auto at = first; at != last; ++at) {
    lo = std::min(lo, at->first);
    hi = std::max(hi, at->first + at->second.extent());
  }
  const int64_t new_size = std::max(size_, end);
  Piece piece;
  if (const int64_t stored = std::min(inner_->size(), hi) - lo; stored > 0) {
    piece.before = HOLDFAST_TRY(inner_->read_bytes(lo, stored));
  }
  piece.after = piece.before;
  piece.after.resize(as_size(std::min(hi, new_size) - lo));
  for (auto at = first; at != last; ++at) {
    std::ranges::copy(at->second.after, piece.after.begin() + (at->first - lo));
  }
  pieces_.erase(first, last);
  size_ = new_size;
  return pieces_.insert_or_assign(lo, std::move(piece)).first;
}

Result<void> FileEdit::flip(int64_t offset, ByteView mask) {
  if (offset < 0 || offset > size_ - std::ssize(mask)) {
    return corrupt("{}: {} bytes at {} are to change; expected a range inside its {}",
                   name(), mask.size(), offset, size_);
  }
  if (mask.empty()) return {};
  const auto piece = HOLDFAST_TRY(cover(offset, std::ssize(mask)));
  Bytes& after = piece->second.after;
  for (size_t i = 0; i < mask.size(); ++i) {
    after[as_size(offset - piece->first) + i] ^= mask[i];
  }
  return {};
}

Result<void> FileEdit::write(int64_t offset, ByteView bytes) {
  if (offset < 0 || offset > size_) {
    return corrupt("{}: {} bytes at {} are to change; expected a place in its {}",
                   name(), bytes.size(), offset, size_);
  }
  if (bytes.empty()) return {};
  const auto piece = HOLDFAST_TRY(cover(offset, std::ssize(bytes)));
  std::ranges::copy(bytes, piece->second.after.begin() + (offset - piece->first));
  return {};
}

Result<void> FileEdit::write_tail(int64_t offset, ByteView bytes) {
  if (offset < 0 || offset > size_) {
    return corrupt("{}: its end from {} on is to change; expected a place in its {}",
                   name(), offset, size_);
  }
  // One piece, which begins where the piece around `offset` begins, has everything up to
  // the end of the file before and after.
  auto first = pieces_.upper_bound(offset);
  if (first != pieces_.begin()) {
    const auto around = std::prev(first);
    if (around->first + around->second.extent() >= offset) first = around;
  }
  const int64_t lo = first == pieces_.end() ? offset : std::min(offset, first->first);
  Piece piece;
  if (lo < inner_->size()) {
    piece.before = HOLDFAST_TRY(inner_->read_bytes(lo, inner_->size() - lo));
  }
  piece.after = HOLDFAST_TRY(read_bytes(lo, offset - lo));
  piece.after.insert(piece.after.end(), bytes.begin(), bytes.end());
  pieces_.erase(first, pieces_.end());
  pieces_.insert_or_assign(lo, std::move(piece));
  size_ = offset + std::ssize(bytes);
  return {};
}

Result<void> FileEdit::read_inside(int64_t offset, ByteSpan into) const {
  const int64_t end = offset + std::ssize(into);
  if (const int64_t stored = std::min(inner_->size(), end) - offset; stored > 0) {
    HOLDFAST_TRY(inner_->read(offset, into.first(as_size(stored))));
  }
  auto at = pieces_.upper_bound(offset);
  if (at != pieces_.begin()) --at;
  for (; at != pieces_.end() && at->first < end; ++at) {
    const Bytes& after = at->second.after;
    const int64_t from = std::max(offset, at->first);
    const int64_t count = std::min(end, at->first + std::ssize(after)) - from;
    if (count <= 0) continue;
    std::copy_n(after.begin() + (from - at->first), count,
                into.begin() + (from - offset));
  }
  return {};
}

FilePatch FileEdit::patch() const {
  FilePatch patch{.file = name(), .size_before = inner_->size(), .size_after = size_};
  for (const auto& [offset, piece] : pieces_) {
    const bool touches =
        !patch.changes.empty() &&
        patch.changes.back().offset + std::ssize(patch.changes.back().after) == offset;
    if (!touches) patch.changes.push_back({.offset = offset});
    Change& change = patch.changes.back();
    change.before.insert(change.before.end(), piece.before.begin(), piece.before.end());
    change.after.insert(change.after.end(), piece.after.begin(), piece.after.end());
  }
  std::ranges::for_each(patch.changes, trim);
  std::erase_if(patch.changes, [](const Change& change) {
    return change.before.empty() && change.after.empty();
  });
  return patch;
}

Result<FileEdit*> PatchPlan::edit(const Path& file) {
  auto found = edits_.find(file);
  if (found == edits_.end()) {
    std::shared_ptr<const Source> source = HOLDFAST_TRY(FileSource::open(env_, file));
    found = edits_.emplace(file, std::make_unique<FileEdit>(std::move(source))).first;
  }
  return found->second.get();
}

Patch PatchPlan::finish() && {
  Patch patch{.path = std::move(path_)};
  for (const auto& [file, edit] : edits_) {
    FilePatch one = edit->patch();
    one.file = file;
    if (!one.changes.empty()) patch.files.push_back(std::move(one));
  }
  return patch;
}

Result<void> place_flips(const Contents& contents, std::span<const Flip> flips,
                         const std::function<Result<void>(const PlacedFlip&)>& visit) {
  FlipPlacer placer(contents, visit);
  for (const Flip& flip : flips) HOLDFAST_TRY(placer.place(flip));
  return {};
}

Result<Patch> plan_plain_patch(Env& env, const Path& path, const Contents& contents,
                               std::span<const Flip> flips) {
  PatchPlan plan(env, path);
  std::vector<FileEdit*> edits(contents.sources.size());
  HOLDFAST_TRY(place_flips(contents, flips, [&](const PlacedFlip& at) -> Result<void> {
    FileEdit*& edit = edits[at.holder];
    if (edit == nullptr) {
      edit = HOLDFAST_TRY(plan.edit(contents.sources[at.holder]->name()));
    }
    return edit->flip(at.offset, at.mask);
  }));
  return std::move(plan).finish();
}

}  // namespace holdfast
