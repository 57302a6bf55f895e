// Intervals from the literature, as work between two saves. Times are in one unit, any;
// a mean time between failures of infinity gives infinity.
#pragma once

namespace holdfast {

// Young 1974: sqrt(2 stall mtbf).
double young(double stall, double mtbf);
// Daly 2003: sqrt(2 stall (mtbf + restart)).
double daly_first(double stall, double mtbf, double restart);
// Daly 2006: Young's with two terms of correction; mtbf from stall = 2 mtbf on.
double daly(double stall, double mtbf);
// The minimum of the exact expected time per unit of work, by bisection: it solves
// e^((t + stall) / mtbf) (1 - t / mtbf) = 1. The time of a restart does not matter.
double daly_exact(double stall, double mtbf);
// CheckFreq 2021, which asks for no failure rate: the shortest interval at which one save
// is durable before the next and stalls are at most `overhead` of the work. Rounded up to
// steps if `step` is not 0.
double checkfreq(double stall, double persist, double step, double overhead = 0.035);
// COCI 2023, as published: the loss between two saves for loss(t) = exp(theta1 t + theta2).
// The unit of time is part of it (the authors' is the minute): in seconds the same
// formula gives 60 times as much loss.
double coci_loss_step(double theta1, double failure_rate, double stall);

}  // namespace holdfast
