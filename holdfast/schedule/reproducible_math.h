// Elementary functions that give the same bits on every machine.
//
// The C library's differ in the last place between versions and processors, and a
// simulation amplifies that. These use only +, -, *, / and sqrt, which IEEE 754 defines,
// and are compiled without fused operations. Within about 3 units in the last place;
// infinities, zeros and NaNs come out as from the C library.
#pragma once

namespace holdfast::reproducible {

double exp(double x);
// exp(x) - 1, without the loss of digits near 0.
double expm1(double x);
double log(double x);
// log(1 + x), without the loss of digits near 0.
double log1p(double x);
// For x >= 0; exp(y log x), so the relative error grows with |y log x|.
double pow(double x, double y);
// Euler's, for 0 < x < 170.
double gamma(double x);

}  // namespace holdfast::reproducible
