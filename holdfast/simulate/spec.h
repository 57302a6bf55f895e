// Parses curves, workers and failures as people write them on a command line. All
// functions fail with kInvalid and say what they expect. Times are as in
// parse_seconds() (cadence.h).
#pragma once

#include <string_view>

#include "holdfast/simulate/simulate.h"
#include "holdfast/simulate/tiers.h"

namespace holdfast {

// exp:FIRST,TIME[,FLOOR]             falls by a factor e every TIME
// power:FIRST,TIME,EXPONENT[,FLOOR]  (1 + x/TIME)^-EXPONENT
// drops:FIRST,START/FLOOR/TIME,...   an exponential from each START on, the first at 0
Result<Curve> parse_curve(std::string_view text);
// Two numbers on each line, seconds of work and loss, separated by a comma or space.
// Text after # is ignored, and so is a first line that begins with a letter.
Result<Curve> parse_curve_points(std::string_view text, std::string_view where);

// A number, "8", or phases with their start and number, "8,30m:4,1h:1".
Result<Workers> parse_workers(std::string_view text);

// A failure model: exponential, weibull[:SHAPE[,AGE]], never, once[:SHARE] or
// every:TIME[,PHASE].
Result<FailureModel> parse_failures(std::string_view text);
// The wall time of one failure on each line, in seconds. # begins a comment.
Result<FailureModel> parse_trace(std::string_view text, std::string_view where);
// The times of saves in seconds of work, in rising order, one on each line. # begins a
// comment.
Result<Schedule> parse_schedule(std::string_view text, std::string_view where);

// "TIME[/SHARE],...": at these times this share of the jobs is stopped. The default
// share is 1.
Result<std::vector<Stops::At>> parse_stops(std::string_view text, bool hard);

// NAME,STALL,PERSIST,MTBF: what a save to a storage tier costs, and the mean time
// between failures that need this tier or one after it.
Result<TierCost> parse_tier(std::string_view text);

// A finite number. The whole text must be the number.
Result<double> parse_number(std::string_view text, std::string_view where);

}  // namespace holdfast
