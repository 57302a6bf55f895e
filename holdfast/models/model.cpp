#include "holdfast/models/model.h"

#include <algorithm>

namespace holdfast {

bool Model::can_cut() const {
  return std::ranges::any_of(
      parameters, [](const Parameter& p) { return p.cut != Cut::kReplicated; });
}

}  // namespace holdfast
