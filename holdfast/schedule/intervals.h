// Intervals from the literature, as the work between two saves. All times may be in any
// unit, but in the same one. If the mean time between failures is infinite, so is the
// interval.
#pragma once

namespace holdfast {

// Young 1974: sqrt(2 stall mtbf).
double young(double stall, double mtbf);
// Daly 2003: sqrt(2 stall (mtbf + restart)).
double daly_first(double stall, double mtbf, double restart);
// Daly 2006: Young's interval with two correction terms. It is mtbf if stall >= 2 mtbf.
double daly(double stall, double mtbf);
// The interval of least exact expected time per unit of work, found by bisection: it
// solves e^((t + stall) / mtbf) (1 - t / mtbf) = 1. It does not depend on the restart
// time.
double daly_exact(double stall, double mtbf);
// CheckFreq 2021, which needs no failure rate: the shortest interval at which a save is
// durable before the next one and stalls take at most `overhead` of the work. Rounded
// up to whole steps if `step` is not 0.
double checkfreq(double stall, double persist, double step, double overhead = 0.035);
// COCI, as published: how much the loss falls between two saves, if loss(t) =
// exp(theta1 t + theta2). The result depends on the unit of time, which is the minute
// in the paper: in seconds the same formula gives 60 times as much.
//
//   one worker (Theorem 4.1):  (1 - e^(theta1 Ts)) (1 / (2 rate) - 1 / (2 theta1))
//   w workers (Theorem 4.2):   (1 - e^(theta1 w Ts)) (1 / (2 rate) - 1 / (2 theta1))
//
// Ts is the stall. In Theorem 4.2 theta1 is the fall that is observed with w workers
// (the paper's xi theta1), so a job of several workers has w times the stall. The
// failure rate does not depend on w.
double coci_loss_step(double theta1, double failure_rate, double stall,
                      double workers = 1);

}  // namespace holdfast
