// Curves, workers and failures as a person writes them on a command line. All fail with
// kInvalid and what they want. Times are as in parse_seconds (cadence.h).
#pragma once

#include <string_view>

#include "holdfast/schedule/simulate.h"
#include "holdfast/schedule/tiers.h"

namespace holdfast {

// exp:FIRST,TIME[,FLOOR]            falls by a factor e every TIME
// power:FIRST,TIME,EXPONENT[,FLOOR] (1 + x/TIME)^-EXPONENT
// drops:FIRST,START/FLOOR/TIME,...  an exponential from each START on, the first at 0
Result<Curve> parse_curve(std::string_view text);
// Two numbers a line, seconds of work and loss, parted by a comma or space; lines that
// begin with # or a letter are left out.
Result<Curve> parse_curve_points(std::string_view text, std::string_view where);

// "8", or phases "8,30m:4,1h:1": from when on how many.
Result<Workers> parse_workers(std::string_view text);

// exponential, weibull[:SHAPE[,AGE]], never, once[:SHARE], every:TIME
Result<FailureModel> parse_failures(std::string_view text);
// One wall time of a failure a line, in seconds; # begins a comment.
Result<FailureModel> parse_trace(std::string_view text, std::string_view where);
// Where to save: seconds of work, rising, one a line; # begins a comment.
Result<Schedule> parse_schedule(std::string_view text, std::string_view where);

// "TIME[/SHARE],...": at these times this share of the jobs is stopped (1 if not said).
Result<std::vector<Stops::At>> parse_stops(std::string_view text, bool hard);

// NAME,STALL,PERSIST,MTBF: what a storage tier costs, and how often only it (or one after
// it) can help.
Result<TierCost> parse_tier(std::string_view text);

// A finite number, all of the text.
Result<double> parse_number(std::string_view text, std::string_view where);

}  // namespace holdfast
