// How the code of a format plans a patch: it edits files in memory, and the difference
// is the patch.
//
//   PatchPlan plan(env, path);
//   FileEdit& file = *HOLDFAST_TRY(plan.edit(path));
//   place_flips(contents, flips, [&](const PlacedFlip& at) {
//     return file.flip(at.offset, at.mask);       // and the checksums that cover it
//   });
//   return std::move(plan).finish();
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "holdfast/contents/contents.h"
#include "holdfast/contents/patch.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

// A file as it will be after the patch. The file itself is only read. As a Source it
// gives the edited bytes, so that checksums can be computed from it. Unlike other
// sources it changes, and it is not safe from several threads.
class FileEdit : public Source {
 public:
  // `inner` is the file. Shared, because the code of a format may read it too.
  explicit FileEdit(std::shared_ptr<const Source> inner)
      : inner_(std::move(inner)), size_(inner_->size()) {}

  const std::string& name() const override { return inner_->name(); }
  int64_t size() const override { return size_; }

  // XORs bytes of the file with a mask. Fails with kCorrupt outside the file.
  Result<void> flip(int64_t offset, ByteView mask);
  // Replaces bytes. They may reach beyond the end of the file, which then moves, but may
  // not begin behind it.
  Result<void> write(int64_t offset, ByteView bytes);
  // Replaces everything from this offset to the end of the file, which may move in either
  // direction.
  Result<void> write_tail(int64_t offset, ByteView bytes);

  // What was changed. Bytes that are the same again are left out.
  FilePatch patch() const;

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override;

 private:
  struct Piece {
    Bytes before;
    Bytes after;
    // The two differ in length if the end of the file moves.
    int64_t extent() const { return std::max(std::ssize(before), std::ssize(after)); }
  };

  // The piece that covers these bytes. If there is none, makes one from the file and
  // from the pieces that overlap it. Moves the end of the file if they reach beyond it.
  Result<std::map<int64_t, Piece>::iterator> cover(int64_t offset, int64_t count);

  const std::shared_ptr<const Source> inner_;
  int64_t size_;
  // By offset. Pieces do not overlap.
  std::map<int64_t, Piece> pieces_;
};

// Collects the edits of all files of a patch.
class PatchPlan {
 public:
  // `env` must outlive the plan.
  PatchPlan(Env& env, Path path) : env_(env), path_(std::move(path)) {}

  // The edit of this file, which is opened when it is asked for first. It stays valid as
  // long as the plan.
  Result<FileEdit*> edit(const Path& file);
  Patch finish() &&;

 private:
  Env& env_;
  Path path_;
  std::map<Path, std::unique_ptr<FileEdit>> edits_;
};

// One place of a flip: the bytes of a file that it changes.
struct PlacedFlip {
  const Flip* flip = nullptr;
  TensorId tensor = 0;
  HolderId holder = 0;  // of contents.collection.layout(), and so of contents.sources
  int64_t offset = 0;   // of the element's first byte in the holder
  ByteView mask{};      // of the whole element
};

// Calls `visit` for each place of each flip, in the order of the flips. An element that
// several files hold has several places, and all must change. Failures, besides those of
// `visit`:
//   kNotFound  no tensor has this name, or no file has the element
//   kInvalid   the element is outside the tensor, or the mask is longer than an element
Result<void> place_flips(const Contents& contents, std::span<const Flip> flips,
                         const std::function<Result<void>(const PlacedFlip&)>& visit);

// The patch of a format without checksums whose sources are files: each flip changes
// just the bytes of its element.
Result<Patch> plan_plain_patch(Env& env, const Path& path, const Contents& contents,
                               std::span<const Flip> flips);

}  // namespace holdfast
