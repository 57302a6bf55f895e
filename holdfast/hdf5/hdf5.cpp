#include "holdfast/hdf5/hdf5.h"

#include "holdfast/hdf5/tree_internal.h"

namespace holdfast {

bool looks_like_hdf5(const Source& source) { return hdf5::find_signature(source).ok(); }

Result<Contents> open_hdf5(std::shared_ptr<const Source> source) {
  return HOLDFAST_TRY(hdf5::open_file(std::move(source))).contents;
}

}  // namespace holdfast
