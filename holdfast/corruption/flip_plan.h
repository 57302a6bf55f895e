// A flip plan: which bits of which elements change, with the bits before and after.
//
// A plan is made from a file's contents, a request and a seed (make_plan.h). It is the
// same on every machine and for every format of the same tensors. It says everything that
// is needed to repeat a fault, to check that it strikes the bits that it was made for,
// and to undo it. As a file it is JSON:
//
//   {"version": 1, "holdfast": "flip plan", "seed": 7, "trial": 0, "fault": "flip",
//    "sites": 1024, "passed_over": 0,
//    "flips": [{"tensor": "model.conv2.weight", "index": [3, 0, 1, 2], "element": 113,
//               "dtype": "F32", "mask": "40000000",
//               "before": "3cae7d56", "after": "7cae7d56"}],
//    "bytes": [{"file": "model.pt", "offset": 70, "mask": "08",
//               "before": "50", "after": "58"}]}
//
// If sites of elements that were never written were drawn and passed over, "unwritten" is
// their number. Bits are one hexadecimal number, whose lowest bit is bit 0 of the element. A name that is
// not UTF-8 is written as "tensor_hex" or "file_hex", in hexadecimal digits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/contents/patch.h"
#include "holdfast/state/element.h"

namespace holdfast {

// The change of one element. Several faults in one element are one change.
struct PlannedFlip {
  std::string tensor{};
  int64_t element = 0;           // in row-major order
  std::vector<int64_t> index{};  // the same element, for people
  Dtype dtype = Dtype::kF32;
  ElementBits before{};
  ElementBits after{};

  ElementBits mask() const { return difference(before, after); }
  friend bool operator==(const PlannedFlip&, const PlannedFlip&) = default;
};

// The change of one byte of a file, whatever it means.
struct PlannedByte {
  std::string
      file{};  // its name in the checkpoint's folder, or that of the file itself
  int64_t offset = 0;
  std::byte before{};
  std::byte after{};

  std::byte mask() const { return before ^ after; }
  friend bool operator==(const PlannedByte&, const PlannedByte&) = default;
};

struct FlipPlan {
  int64_t seed = 0;
  int64_t trial = 0;
  std::string fault{};  // in words, such as "flip" or "stuck-at 1"
  // How many sites the request had, and how many drawn ones were passed over because the
  // request did not allow what they would have become.
  int64_t sites = 0;
  int64_t passed_over = 0;
  // How many drawn sites were passed over because their elements were never written, and
  // so have no bytes in the file.
  int64_t unwritten = 0;
  std::vector<PlannedFlip> flips{};  // in the order in which they were drawn
  std::vector<PlannedByte> bytes{};

  friend bool operator==(const FlipPlan&, const FlipPlan&) = default;
};

// The plan with the bits before and after exchanged.
FlipPlan inverse(FlipPlan plan);

std::string encode_flip_plan(const FlipPlan& plan);
// Fails with kInvalid, naming `where`, for anything else than a plan, and with
// kUnsupported for a newer version.
Result<FlipPlan> decode_flip_plan(std::string_view json, const std::string& where);

// A byte from two hexadecimal digits.
Result<std::byte> parse_byte(std::string_view text);

// Fails unless the plan fits the contents: kNotFound if a tensor is not there, kConflict,
// naming the element and both values, if an element has other bits than before the plan,
// or if a tensor has another dtype or fewer elements.
Result<void> check_plan(const Contents& contents, const FlipPlan& plan);

// What the code of formats needs.
std::vector<Flip> flips_of(const FlipPlan& plan);

// Example: "model.conv2.weight [3, 0, 1, 2]  F32 bit 30  0.0213 -> 7.25e+36".
std::string describe(const PlannedFlip& flip);
std::string describe(const PlannedByte& byte);

}  // namespace holdfast
