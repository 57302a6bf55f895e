// The places where a fault can strike: which tensors, and which bits of their elements.
//
// The sites of a file are numbered, and the numbers do not depend on the file's format:
// tensors are in order of name, then come their elements in row-major order, then the
// bits of an element from the lowest up. So a number that is drawn by a seed means the
// same bit in every format and on every machine.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/roles/roles.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

// Chooses bits of an element. Bit 0 is the lowest one.
struct BitChoice {
  enum class Field {
    kAll,
    kSign,
    kExponent,
    kTopExponent,  // the highest bit of the exponent
    kMantissa,     // all bits of an integer, except for its sign
    kRanges,       // those in `ranges`
  };
  struct Range {
    int first = 0;
    int last = 0;
  };
  Field field = Field::kAll;
  std::vector<Range> ranges{};
};

// Reads "all", "sign", "exponent", "top-exponent", "mantissa", "30", "23-30" or
// "0-29,31".
Result<BitChoice> parse_bit_choice(std::string_view text);

// The bits of an element of this dtype that are chosen, from the lowest up. A bool has
// only one bit, because only 0 and 1 are bools.
std::vector<int> chosen_bits(Dtype dtype, const BitChoice& choice);

// Which tensors, and which bits. A tensor must fulfil all that is given.
struct SiteSelection {
  std::vector<std::string> tensors{};  // patterns (state/tensor_names.h); empty: all
  std::vector<Role> roles{};           // empty: all
  // "first", "middle", "last", or a number that counts from 0. Layers are those of the
  // parameters, in the order of their names (layers_of). Empty: all.
  std::vector<std::string> layers{};
  BitChoice bits{};
};

// The tensors that are selected and have elements, in order of name. `roles` are those of
// the collection. Fails with kNotFound, naming the pattern, role or layer, if one of them selects no tensor, and
// with kInvalid for a layer that is neither a word nor a number.
Result<std::vector<TensorId>> select_sites(const Collection& collection,
                                           const Roles& roles,
                                           const SiteSelection& selection);

struct FlipSite {
  TensorId tensor = 0;
  int64_t element = 0;
  int bit = 0;  // the lowest of the bits that the fault changes
};

class Sites {
 public:
  // Sites of a fault that changes `length` neighbouring bits, all of them chosen. With
  // `whole_elements` the fault replaces an element, and each element is one site.
  Sites(const Collection& collection, const std::vector<TensorId>& tensors,
        const BitChoice& bits, int length, bool whole_elements);

  int64_t size() const { return size_; }
  // The site of a number in [0, size()).
  FlipSite operator[](int64_t number) const;

 private:
  struct Part {
    TensorId tensor;
    int64_t first;  // the number of the tensor's first site
    const std::vector<int>* bits;
  };
  std::vector<Part> parts_;
  std::map<Dtype, std::vector<int>> bits_;
  int64_t size_ = 0;
};

}  // namespace holdfast
