// Replaces s3_store.cpp in a build without HOLDFAST_S3: open_s3() always fails.
#include "holdfast/remote/s3_endpoint_internal.h"

namespace holdfast {

Result<std::unique_ptr<ObjectStore>> open_s3(Env&, const S3Options& options) {
  return unsupported(
      "s3://{}: this build has no object stores; expected one with libcurl, OpenSSL, "
      "expat and the option HOLDFAST_S3=ON",
      options.bucket);
}

}  // namespace holdfast
