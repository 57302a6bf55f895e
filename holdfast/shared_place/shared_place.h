// The place in a host's shared memory where the ranks of a job that was asked to stop
// leave their state for the next processes.
//
//   /dev/shm/holdfast-<run id>/   only its user may enter it (mode 0700)
//     place.json                  whose place it is: the run directory and the boot
//     holdfast.json               a run directory as on disk (run.h), with steps that
//     step-00000400/              have only the shards of this host's ranks, but the
//                                 indexes and objects of all ranks
//
// Everybody may make folders in /dev/shm, so a place is used only if it is a folder of
// this user that nobody else may enter. A place goes with the host: it survives the
// process, not the machine. A copy of a run directory has the id of the original, so it
// may not use the place as long as the original is there.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "holdfast/store/run.h"

namespace holdfast {

inline constexpr std::string_view kSharedMemory = "/dev/shm";

// Files of a step that every host has: indexes and objects, by their names.
using SmallFiles = std::map<std::string, Bytes>;

// The names of the shards of a step among its files.
std::vector<std::string> shards_of(const Manifest& manifest);

class SharedPlace {
 public:
  // `memory` is the folder that the place is in, `run` and `id` are those of the run
  // directory. Env must outlive the place.
  SharedPlace(Env& env, const Path& memory, Path run, std::string id);

  const Path& path() const { return path_; }

  // Makes the place if it is not there. Several ranks may do it at once. Fails with
  // kDenied if the folder of that name is not this user's own, or the place of another
  // run directory with the same id, and with kNotFound if there is no `memory`.
  Result<void> make() const;
  // Text that is equal for two processes if they see the same place: the boot of the
  // machine and the folder. kNotFound if there is no place; fails as make() does.
  Result<std::string> identity() const;
  // The steps in it, newest first, and those that cannot be read. Both are empty if there
  // is no place, or one of another boot. Fails with kDenied as make() does.
  Result<StepList> list_steps() const;
  // The same, but fails if a step cannot be read, too: it may be the newest.
  Result<std::vector<Step>> steps() const;
  // How many bytes of shards fit into it now.
  Result<int64_t> free_bytes() const;

  // A folder for the files of a step that is not whole yet. Ranks of one host get the
  // same one.
  Result<Path> begin(int64_t step, uint64_t attempt) const;
  // Makes the step of a folder from begin() visible. Returns its new folder. Several
  // ranks may call it, and the step is there afterwards in any case. `shards` are those
  // that ranks have written there. Fails with kConflict if one of them is not there any
  // more: another process, which had the run before, may have removed the folder.
  Result<Path> publish(const Path& begun, const Manifest& manifest,
                       const SmallFiles& files,
                       const std::vector<std::string>& shards = {}) const;
  // Removes the steps that are older. A step that cannot be read stays; `damaged` says
  // that those whose manifest is damaged go, too.
  Result<void> remove_older(const std::pair<int64_t, int64_t>& age,
                            bool damaged = false) const;
  // Removes what processes that were killed have left of steps. Only for the owner of the
  // run, as another one may be about to leave a step.
  Result<void> remove_attempts() const;
  // Removes all but the step of this manifest and those that are newer, which another
  // owner of the run has left.
  Result<void> remove_all_but(const Manifest& newest) const;
  // Removes the folder of a step, published or not. It succeeds if it is not there.
  Result<void> discard(const Path& folder) const;
  // Removes the place if no step is in it. If another process puts a step into it
  // meanwhile, the place stays.
  Result<void> remove_if_empty() const;

 private:
  Result<std::vector<std::string>> names() const;
  Result<void> remove(const std::string& name) const;
  Result<void> remove_all_steps() const;
  Result<void> write_all(const Path& folder, const Manifest& manifest,
                         const SmallFiles& files) const;
  Result<void> check_shards(const Path& folder, const Manifest& manifest,
                            const std::vector<std::string>& shards) const;

  Env& env_;
  const Path memory_;
  const Path path_;
  const Path run_;
  const std::string id_;
};

// Removes places in `memory` that no job can use any more: of another boot, or of a run
// that is not there any more although the folder that it was in is, if nobody has used
// the place for a day. Also finishes what a process that was killed in remove_if_empty()
// has begun. Returns their names. With `dry_run` it only tells them. The place
// `own` goes only if it is of another boot, and those that are not this user's own stay.
std::vector<std::string> remove_old_places(Env& env, const Path& memory,
                                           const Path& own, bool dry_run = false);

}  // namespace holdfast
