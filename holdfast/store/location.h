// What the name of a place stands for: a folder on this machine, or a part of an object
// store. A name with the scheme of something that Holdfast does not speak ("gs://bucket")
// would otherwise become a local folder that nobody looks for.
#pragma once

#include "holdfast/env/env.h"

namespace holdfast {

// True for "s3://bucket" and all below it. "s3:/bucket" is the same place: what some path
// libraries make of it.
bool is_object_path(const Path& path);

// kInvalid, naming the scheme, for a place that begins with one other than "s3://": with
// "gs://", "S3://", "file://", and also with "gs:/" and the like, which path libraries make
// of them. A colon elsewhere means nothing: "c:foo", "runs/a:b" and "./gs://x" are folders.
Result<void> check_scheme(const Path& place);

// The same, and kInvalid for an empty name. For whatever a person named.
Result<void> check_place(const Path& place);

}  // namespace holdfast
