// Carries flip plans out, in files of every format that can be patched and in steps of
// runs.
//
// A copy is altered, unless the caller asks for the original. The copy of a step is a run
// directory of its own with this one step, so that a job can resume from it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "holdfast/corruption/flip_plan.h"
#include "holdfast/corruption/make_plan.h"
#include "holdfast/inspect/open_any.h"

namespace holdfast {

// What happens to the digests of what is altered.
enum class Fixing {
  // They stay, and so they are wrong: as after a fault of the disk.
  kRaw,
  // Checksums are made right, and seals stay: as after a fault of the memory between the
  // seal and the file.
  kConsistent,
  // Seals are made right, too: as after a fault before the seal, which no digest can
  // show.
  kSealed,
};

std::string_view name_of(Fixing fixing);  // "raw", "consistent", "sealed"
Result<Fixing> parse_fixing(std::string_view name);

// Opens what was found without checking the digests of what is read, so that altered
// tensors can be read.
Result<Contents> open_to_alter(Env& env, const Found& found);

// The roles of what was found, with those of the user's map. Fails as give_roles() does.
Result<std::shared_ptr<const Roles>> roles_in(const Contents& contents,
                                              const Found& found, const RoleMap& map);

// Fails as alter_in_place() and alter_copy() would because of the plan or the digests,
// and changes nothing.
Result<void> check_alteration(Env& env, const Found& found, const FlipPlan& plan,
                              Fixing fixing);

// Alters the original. Afterwards all changes are there and durable, or none. Failures,
// besides those of apply_patch() and of check_plan():
//   kConflict  the step belongs to a run with a live owner, or somebody else has a lock
//   kInvalid   seals are to change and there are none, or a plan of bytes is to fix
//              digests
// The files are locked before the plan is made (inspect/files_of.h); callers that read
// before do it earlier and hand over their locks.
// `check` gets an Env that shows the files as they will be. If it fails, so does the
// call, and nothing is written.
using CheckAltered = std::function<Result<void>(Env& shown)>;
Result<void> alter_in_place(Env& env, const Found& found, const FlipPlan& plan,
                            Fixing fixing, const CheckAltered& check, FileLocks& locks);
Result<void> alter_in_place(Env& env, const Found& found, const FlipPlan& plan,
                            Fixing fixing, const CheckAltered& check = {});

// Copies what was found to `to`, which must not exist, and alters the copy before it gets
// this name. Copies the seals beside a file, too.
Result<void> alter_copy(Env& env, const Found& found, const FlipPlan& plan,
                        Fixing fixing, const Path& to);

// Copies what was found to `to`, which must not exist, and calls `change` with the copy
// before the copy gets this name.
Result<void> make_copy(Env& env, const Found& found, const Path& to,
                       const std::function<Result<void>(const Found&)>& change);

// Fails with kConflict, naming the owner, if what was found is a step, or a file of one,
// in a run that a live process writes.
Result<void> check_not_live(Env& env, const Found& found);

}  // namespace holdfast
