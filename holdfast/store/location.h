// Tells what the name of a place means: a folder on this machine, or a prefix in an
// object store. Refuses names with a scheme that Holdfast does not support
// ("gs://bucket"), because they would otherwise become a local folder that nobody would
// look for.
#pragma once

#include "holdfast/env/env.h"

namespace holdfast {

// True for "s3://bucket" and everything below it. Also true for "s3:/bucket", because
// some path libraries merge the two slashes into one.
bool is_object_path(const Path& path);

// Fails with kInvalid, naming the scheme, if the place begins with a scheme other than
// "s3://": with "gs://", "S3://" or "file://", and also with "gs:/" and the like,
// because some path libraries merge the two slashes. A colon elsewhere has no meaning:
// "c:foo", "runs/a:b" and "./gs://x" are folders.
Result<void> check_scheme(const Path& place);

// Like check_scheme(), and also fails with kInvalid for an empty name. For every place
// that a person has named.
Result<void> check_place(const Path& place);

}  // namespace holdfast
