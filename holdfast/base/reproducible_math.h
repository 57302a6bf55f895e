// Elementary functions that give the same bits on every machine.
//
// The functions of the C library differ in the last digit between versions and
// processors, and a simulation amplifies such differences. These functions use only +,
// -, *, / and sqrt, which IEEE 754 defines exactly, and are compiled without fused
// operations. Results are within about 3 units in the last place. Infinities, zeros and
// NaNs give the same results as in the C library.
#pragma once

namespace holdfast::reproducible {

double exp(double x);
// exp(x) - 1, with full precision near 0.
double expm1(double x);
double log(double x);
// log(1 + x), with full precision near 0.
double log1p(double x);
// x^y for x >= 0, computed as exp(y log x), so the relative error grows with |y log x|.
double pow(double x, double y);
// Euler's gamma function for 0 < x < 170.
double gamma(double x);

}  // namespace holdfast::reproducible
