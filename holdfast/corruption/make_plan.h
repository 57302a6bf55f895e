// Makes flip plans: draws sites by a seed, and computes what a fault makes of them.
//
// The sites of a plan are distinct and equally likely, and bits that tensors share count
// once. They are the first ones of a shuffle of all sites (state/sample_sequence.h) that
// the seed and the number of the trial choose. So the trials of a campaign are
// independent, and the plan with more faults contains the one with fewer.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "holdfast/corruption/flip_plan.h"
#include "holdfast/corruption/sites.h"
#include "holdfast/inspect/files_of.h"

namespace holdfast {

// What happens at a site.
struct Fault {
  enum class Kind {
    kFlip,     // one bit is flipped
    kBurst,    // `length` neighbouring bits are flipped
    kMask,     // the bits of `pattern` are flipped, at any place inside the element
    kStuckAt,  // one bit becomes `level`; nothing changes if it is that already
    kScale,    // the number is multiplied by `number`
    kValue,    // the number becomes `number`
  };
  Kind kind = Kind::kFlip;
  int length = 1;
  std::string pattern{};  // such as "1011", the highest bit first
  bool level = false;
  double number = 0;

  // How many neighbouring bits the fault needs.
  int bits() const;
  bool whole_elements() const { return kind == Kind::kScale || kind == Kind::kValue; }
  std::string text() const;  // "flip", "burst 4", "mask 1011", "stuck-at 1", "scale 10"
};

// What may become of a number, as the file stores it.
enum class Finite {
  kAny,
  // A site whose element would become NaN or infinite is passed over.
  kMust,
  // All other sites are passed over.
  kNever,
};

enum class Sampling {
  // All sites are equally likely.
  kBits,
  // The tensors are equally likely, whatever their sizes, then the elements of a tensor,
  // then the bits, and a site may be drawn twice: so does hdf5_corrupter, the tool of
  // the first studies. It is for comparing with their results. Tensors of more than 4
  // dimensions are drawn, but not changed. Of an integer only the bits up to its highest
  // set bit are drawn.
  kLegacy,
};

struct PlanRequest {
  SiteSelection sites{};
  Fault fault{};
  int64_t count = 1;  // how many faults
  // If it is set, each site is struck with this probability, and `count` is not used.
  std::optional<double> rate{};
  int64_t seed = 0;
  int64_t trial = 0;
  Finite finite = Finite::kAny;
  Sampling sampling = Sampling::kBits;
  // The roles of the contents. Null: those that find_roles() finds. Shared by the plans
  // of a campaign.
  std::shared_ptr<const Roles> roles{};
};

// The roles by which the request selects tensors.
Roles roles_of(const Contents& contents, const PlanRequest& request);

// Reads the elements that are struck, and nothing else of the tensors. Failures, besides
// those of reading and of select_sites():
//   kInvalid   there are fewer sites than faults, or a number in the request makes no
//              sense
//   kNotFound  so many drawn sites were passed over that there may be none that is
//              allowed, or that has bytes in the file
// A drawn site of an element that was never written is passed over and counted. If each
// site is struck with a probability, it is not replaced by another one.
Result<FlipPlan> make_plan(const Contents& contents, const PlanRequest& request);

// Flips `count` distinct bits anywhere in these files, which have their names in the plan:
// in tensors, headers and checksums.
Result<FlipPlan> make_byte_plan(Env& env, std::span<const NamedFile> files,
                                int64_t count, int64_t seed, int64_t trial);

}  // namespace holdfast
