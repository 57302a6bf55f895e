// Changes single bits of stored tensors, in place.
//
//   Flip       which bits: a tensor, an element of it, and a mask
//   Patch      which bytes of which files that means, with the bytes before and after
//   FileEdit   how the code of a format plans a patch (file_edit.h)
//   apply_patch()  carries a patch out, so that a crash leaves the old or the new bytes
//
// A format computes a patch (Format::plan_patch) and writes nothing. One executor
// carries out the patches of all formats. It keeps a journal beside the named file, or in
// the named folder:
//
//   0. The files are locked (file_locks.h). Whoever plans the patch locks them before,
//      so that nobody changes them between the plan and the patch.
//   1. The sizes and the old bytes of all files are compared with the patch.
//   2. The journal, which has the whole patch, is written under another name, synced
//      and renamed; then its folder is synced.
//   3. The new bytes are written, and the files are synced.
//   4. The journal is removed, and its folder is synced.   <- the commit point
//
// A crash before step 4 leaves a journal: the next apply_patch() or repair_patch() puts
// the old bytes back. They do so only with the locks of the files that the journal names,
// so the journal of a process that is at work is left alone. A journal has its name only after it is durable, so a journal that
// does not match its own digest is damage, and nothing is done with it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/contents/file_locks.h"
#include "holdfast/env/env.h"

namespace holdfast {

// Bits of one element of a tensor that change.
struct Flip {
  std::string tensor{};  // its name or an alias
  // The element in canonical order: row-major in the tensor's shape, however the file
  // stores it.
  int64_t element = 0;
  // XORed with the canonical bytes of the element, which are little-endian: bit b of the
  // element is bit b % 8 of byte b / 8. Bytes after the element must be 0. A complex
  // number is its real part followed by its imaginary part.
  std::array<std::byte, 16> mask{};

  friend bool operator==(const Flip&, const Flip&) = default;
};

// What happens to the checksums that cover changed bytes.
enum class Checksums {
  // They stay as they are and so are wrong, as after a fault of the disk. A compressed
  // unit is encoded anew, and the checksum of its decoded bytes stays the old one.
  kRaw,
  // They are made right, as after a fault of the memory before the file was written. A
  // checksum that the writer left out stays absent.
  kConsistent,
};

// Replaces bytes of one file. `before` and `after` have the same length, except in a
// change that reaches the end of the file, which then moves.
struct Change {
  int64_t offset = 0;
  Bytes before{};
  Bytes after{};

  friend bool operator==(const Change&, const Change&) = default;
};

struct FilePatch {
  Path file{};
  int64_t size_before = 0;
  int64_t size_after = 0;
  // In order of offset and without overlaps.
  std::vector<Change> changes{};

  friend bool operator==(const FilePatch&, const FilePatch&) = default;
};

struct Patch {
  // A file, or a folder of files, which ends in '/'. It says where the journal lies.
  Path path{};
  // All files are in the folder that `path` is or is in, or below it. Each is there once.
  std::vector<FilePatch> files{};

  // How many bytes the changes write.
  int64_t bytes() const;
  friend bool operator==(const Patch&, const Patch&) = default;
};

// The patch that undoes this one, to the bit.
Patch inverse(const Patch& patch);

// Carries the patch out. On return the new bytes are durable. First undoes what a crash
// left of an earlier patch of this path. Needs 3 syncs and one for each file. Failures
// that leave all files as they were:
//   kInvalid   the patch contradicts itself or names files elsewhere
//   kConflict  a file has other bytes or another size than the patch expects, has
//              several hard links (the others would change too), is a symbolic link, or
//              is locked by somebody else, whom the error names
//   kCorrupt   the journal of an earlier patch is damaged or belongs to other files
// A write that fails is undone at once. If that fails too, or if a sync fails, the
// journal stays, and the error names it. `locks` are those that the caller has taken.
Result<void> apply_patch(Env& env, const Patch& patch, FileLocks& locks);
Result<void> apply_patch(Env& env, const Patch& patch);

// Undoes what a crash left of patches of this path, of the folder that it is, and of the
// folder that it is in. Returns whether there was a journal. Fails with kCorrupt, and
// changes nothing, if the journal is damaged, or if a file has bytes that are neither
// the old nor the new ones; with kConflict, naming the process, while the patch is being
// carried out.
Result<bool> repair_patch(Env& env, const Path& path, FileLocks& locks);
Result<bool> repair_patch(Env& env, const Path& path);

// Fails with kConflict if repair_patch() would find a journal: names the process that
// carries the patch out, or else the journal. Calls that only read use it.
Result<void> check_no_journal(Env& env, const Path& path);

// Where the journal of a patch lies: ".model.pt.holdfast-patch" beside model.pt, and
// "shards/.holdfast-patch" for the folder "shards/".
Path journal_of(const Path& path);

}  // namespace holdfast
