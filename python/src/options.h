// Reads the options of a saver and of a job. Python passes them as one dict, so that an
// option is named here once, in the struct that keeps it (saver.h, job.h,
// scheduler.h), and in holdfast/options.py, which describes it.
#pragma once

#include "errors.h"
#include "holdfast/job/job.h"

namespace holdfast::python {

// An option that is not in the dict, or is None, keeps its default. Throws for an
// unknown option, for a value of the wrong type, and for a value that makes no sense.
SaverOptions saver_options_of(const nb::dict& given);
JobOptions job_options_of(const nb::dict& given);

}  // namespace holdfast::python
