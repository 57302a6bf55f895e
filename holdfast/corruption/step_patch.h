// Plans patches of a committed step (contents/patch.h): which bytes of which of its
// files change if bits of its tensors are flipped.
//
// A step has digests at several levels, and a patch that keeps them right changes all of
// them: the CRC of the chunk, that of the compressed chunk, the XXH3 of an incremental
// piece, the digest of the shard, the index with these, the digest of the index, and the
// manifest with its own digest. The seals in the index are digests of the tensors as they
// were in memory. They change only if the caller asks for it.
//
// A step is immutable, so only code that studies or mends damage patches one.
#pragma once

#include <span>

#include "holdfast/contents/patch.h"
#include "holdfast/env/env.h"

namespace holdfast {

struct StepPatchOptions {
  Checksums checksums = Checksums::kConsistent;
  // Whether the seals change, too. Only with Checksums::kConsistent.
  bool seals = false;
};

// Computes the patch and changes nothing. Reads the manifest, the indexes, the chunks
// that change if they are compressed, and all of a piece that has an XXH3. Failures,
// besides those of reading:
//   kNotFound     the step has no such tensor or element
//   kInvalid      a mask is too long, or the seals are to change and there are none
//   kCorrupt      the manifest or an index is damaged
//   kUnsupported  a compressed shard, with Checksums::kRaw: no bit of the file stands for
//                 a bit of a tensor
Result<Patch> plan_step_patch(Env& env, const Path& folder, std::span<const Flip> flips,
                              const StepPatchOptions& options);

}  // namespace holdfast
