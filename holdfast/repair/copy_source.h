// Places that may have the right bytes of what is damaged in a step.
//
// A source gives bytes, and the caller compares them with the digests of the step: what
// does not have them is not used. So a source need not be trusted, and may be another
// step, a file of another format, or a copy that is damaged elsewhere.
#pragma once

#include <memory>
#include <string>

#include "holdfast/contents/contents.h"
#include "holdfast/repair/step_parts.h"
#include "holdfast/store/tier.h"

namespace holdfast {

// A chunk of a shard.
struct WantedChunk {
  const StepParts& step;
  const ShardFile& shard;
  size_t number = 0;
};

class CopySource {
 public:
  virtual ~CopySource() = default;

  // The rung of the ladder: "tier", "step", "copy" or "parity".
  virtual std::string_view rung() const = 0;
  // For messages: "tier s3://bucket/gpt", "another step of the run".
  virtual const std::string& name() const = 0;
  // The bytes of a chunk as they are in the file. Fails if the source does not have them,
  // and says why.
  virtual Result<Bytes> read_chunk(const WantedChunk& wanted) = 0;
  // All bytes of another file of the step, such as an index.
  virtual Result<Bytes> read_file(const StepParts& step, const ManifestFile& file) = 0;
  // The manifest of the step in this folder. Only tiers have one.
  virtual Result<Bytes> read_manifest(const Path& folder);
};

// The same step in another tier. The tier must outlive the source.
std::unique_ptr<CopySource> copies_in_tier(StorageTier& tier);
// A tier that could not be opened: says so when it is asked.
std::unique_ptr<CopySource> copies_out_of_reach(const std::string& tier, Error error);
// Other steps of the run, and other files of the step: files with the same digest, and
// pieces with the same seal.
std::unique_ptr<CopySource> copies_in_run(Env& env, const Path& run);
// The tensors of a file of any format, or of another step. `contents` must outlive the
// source. `name` is for messages.
std::unique_ptr<CopySource> copies_in_contents(const Contents& contents,
                                               std::string name);
// The parity files of the step itself. Parity files that are damaged are computed again
// from their shards.
std::unique_ptr<CopySource> copies_by_parity(Env& env);

// Puts a chunk together from the pieces that it has, which `read` gives: the bytes
// [first, first + into.size()) of the stream of a piece. A compressed chunk is compressed
// again. Fails with kNotFound for the header, which is no piece.
using ReadPiece =
    std::function<Result<void>(const PieceInShard& piece, int64_t first, ByteSpan into)>;
Result<Bytes> assemble_chunk(const WantedChunk& wanted, const ReadPiece& read);

}  // namespace holdfast
