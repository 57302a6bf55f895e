// Tests curves, their fits, published intervals, and the reproducible functions and
// random numbers.
#include "holdfast/schedule/curve.h"

#include <bit>
#include <cmath>
#include <functional>

#include "holdfast/base/testing.h"
#include "holdfast/schedule/intervals.h"
#include "holdfast/schedule/loss_fit.h"
#include "holdfast/base/random_stream.h"
#include "holdfast/base/reproducible_math.h"

namespace holdfast::curve_test {
namespace {

TEST(PortableTest, FunctionsAreWithinThreeUnitsInTheLastPlace) {
  RandomStream dice(1);
  const auto near = [](double a, double b) {
    EXPECT_NEAR(a, b, 6e-16 * std::fabs(b) + 1e-320);
  };
  for (int i = 0; i < 3000; ++i) {
    const double x = 60 * (dice.uniform() - 0.5), y = std::exp(x);
    near(reproducible::exp(x), std::exp(x));
    near(reproducible::log(y), std::log(y));
    near(reproducible::expm1(x / 60), std::expm1(x / 60));
    near(reproducible::log1p(x / 100), std::log1p(x / 100));
  }
  EXPECT_NEAR(reproducible::pow(7, -1.25), std::pow(7, -1.25), 1e-16);
  for (const double x : {0.3, 1.0, 2.5, 7.0, 30.0}) {
    EXPECT_NEAR(reproducible::gamma(x), std::tgamma(x), 1e-13 * std::tgamma(x));
  }
  EXPECT_EQ(reproducible::exp(-1000), 0);
  EXPECT_TRUE(std::isinf(reproducible::exp(1000)));
  EXPECT_TRUE(std::isnan(reproducible::log(-1)));
}

// These are the bits of one machine. A machine with other bits has another library, or
// fuses products.
TEST(PortableTest, SameSeedSameBits) {
  RandomStream dice(42, 7);
  uint64_t bits = 0;
  const auto add = [&](double value) {
    bits = bits * 31 + std::bit_cast<uint64_t>(value);
  };
  for (int i = 0; i < 1000; ++i) add(dice.exponential()), add(dice.normal());
  for (int i = 1; i < 200; ++i) add(reproducible::exp(reproducible::pow(i, 0.3) / i));
  EXPECT_EQ(bits, 11817533185492027179u);
}

Curve falling(double first, double rate, double floor = 0) {
  return Curve::exponential(first, rate, floor).value();
}

TEST(CurveTest, DifferencesKeepTheirDigitsFarOut) {
  const Curve c = falling(3, 0.01, 1);
  EXPECT_EQ(c.loss(9000), c.loss(9100));  // both 1 to the last bit
  EXPECT_NEAR(c.drop(9000, 9100), 2 * std::exp(-90.0) * (1 - std::exp(-1.0)), 1e-53);
  const Curve p = Curve::power(3, 0.1, 0.5, 1).value();
  EXPECT_NEAR(p.drop(10, 20), p.loss(10) - p.loss(20), 1e-15);
  EXPECT_NEAR(p.fall(10), (p.loss(10 - 1e-4) - p.loss(10 + 1e-4)) / 2e-4, 1e-9);
}

TEST(CurveTest, PiecesJoinAndNeverRise) {
  const Curve::Drop drops[] = {{0, 0.55, 0.02}, {500, 0.15, 0.06}};
  const Curve c = Curve::drops(2.3, drops).value();
  EXPECT_NEAR(c.loss(499.999), c.loss(500), 1e-4);
  EXPECT_NEAR(c.drop(100, 700), c.loss(100) - c.loss(700), 1e-15);
  const std::pair<double, double> hump[] = {{0, 5.0}, {10, 7.0}, {20, 4.0}, {30, 4.5}};
  const Curve h = Curve::points(hump).value();
  EXPECT_EQ(h.drop(0, 10), 0);
  EXPECT_EQ(h.drop(0, 20), 1);
  EXPECT_EQ(h.fall(25), 0);
  EXPECT_ERROR(Curve::exponential(1, -1), ErrorCode::kInvalid);
  EXPECT_ERROR(Curve::exponential(NAN, 1), ErrorCode::kInvalid);
  EXPECT_ERROR(Curve::power(1, 1, 0), ErrorCode::kInvalid);
}

TEST(CurveTest, WorkersPaceACurveAndPartsOfItAreTheSameCurve) {
  const Workers workers{{{0, 4}, {100, 1}}};
  EXPECT_EQ(workers.until(150), 450);
  for (const Curve& c : {falling(3, 0.01, 1), Curve::power(3, 0.1, 0.5, 1).value()}) {
    const Curve paced = c.paced(workers, 1);
    EXPECT_NEAR(paced.loss(50), c.loss(200), 1e-14);
    EXPECT_NEAR(paced.loss(150), c.loss(450), 1e-14);
    EXPECT_NEAR(c.from(30).loss(12), c.loss(42), 1e-14);
  }
}

TEST(IntervalsTest, TheLiteraturesIntervalsHaveTheirPublishedValues) {
  EXPECT_NEAR(young(10, 3600), 268.33, 0.01);
  EXPECT_NEAR(young(60, 900), 328.63, 0.01);
  EXPECT_NEAR(daly(10, 3600), 261.7, 0.05);
  EXPECT_NEAR(daly(60, 900), 289.9, 0.05);
  EXPECT_NEAR(daly_exact(10, 3600), 261.7, 0.05);
  EXPECT_NEAR(daly_exact(60, 900), 289.9, 0.05);
  EXPECT_NEAR(daly(5, 24 * 60), 117, 0.5);
  EXPECT_NEAR(daly(5, 6 * 60), 57, 0.5);
  EXPECT_NEAR(daly(5, 15), 9.1, 0.05);
  EXPECT_EQ(daly(30, 15), 15);
  EXPECT_EQ(daly_first(10, 3600, 60), std::sqrt(20 * 3660.0));
  EXPECT_EQ(checkfreq(1, 3, 0.25), 28.75);  // 115 steps hold the stall to 3.5 %
  EXPECT_EQ(checkfreq(0.01, 3, 0.4), 3.2);  // 8 steps until it is durable
  EXPECT_TRUE(std::isinf(daly(10, INFINITY)));
}

// The example of COCI's repository with a stall of 0.09 s: the step of the loss depends
// on the unit of time.
// Theorem 4.2 with xi = 0.95, theta1 = -0.02 a minute and 8 workers.
TEST(IntervalsTest, CocisStepForSeveralWorkers) {
  const double theta1 = -0.02, xi = 0.95, workers = 8, stall = 0.01, rate = 0.004;
  const double expected = (1 - std::exp(xi * theta1 * workers * stall)) *
                          (1 / (2 * rate) - 1 / (2 * xi * theta1));
  EXPECT_NEAR(coci_loss_step(xi * theta1, rate, stall, workers), expected, 1e-12);
}

TEST(IntervalsTest, CocisPublishedStepDependsOnTheUnitOfTime) {
  EXPECT_NEAR(coci_loss_step(-0.078, 0.0042, 0.0015), 0.014678, 1e-6);  // minutes
  EXPECT_NEAR(coci_loss_step(-0.078 / 60, 0.0042 / 60, 0.09), 0.880663, 1e-6);
  EXPECT_NEAR(coci_loss_step(-0.078 * 60, 0.0042 * 60, 0.0015 / 60), 0.000245, 1e-6);
}

// The error of the fitted loss over the next tenth of the run, as a share of the true
// fall.
double fit_error(const std::function<double(double)>& loss, double noise,
                 uint64_t seed) {
  RandomStream dice(seed);
  LossFit fit;
  for (double x = 0; x < 1000; x += 0.5)
    fit.add(x, loss(x) * (1 + noise * dice.normal()));
  const auto fitted = fit.fit();
  if (!fitted) return INFINITY;
  return fitted->curve.drop(900, 1100) / (loss(900) - loss(1100)) - 1;
}

TEST(LossFitTest, ExponentialsAndPowerLawsAreFoundUnderNoise) {
  const auto exponential = [](double x) { return 0.4 + 2 * std::exp(-x / 300); };
  const auto power = [](double x) { return 0.2 + 2 * std::pow(1 + x / 20, -0.5); };
  EXPECT_NEAR(fit_error(exponential, 0, 1), 0, 0.01);
  EXPECT_NEAR(fit_error(power, 0, 1), 0, 0.08);
  int good = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    good += std::fabs(fit_error(exponential, 0.1, seed)) < 0.3;
    good += std::fabs(fit_error(power, 0.1, seed)) < 0.3;
  }
  EXPECT_GE(good, 9);
}

TEST(LossFitTest, OutliersAndHolesDoNotMoveIt) {
  RandomStream dice(3);
  LossFit fit;
  for (int i = 0; i < 2000; ++i) {
    const double x = i * 0.5, loss = 0.4 + 2 * std::exp(-x / 300);
    fit.add(x, i % 97 == 50  ? 1e6
               : i % 31 == 7 ? NAN
                             : loss * (1 + 0.02 * dice.normal()));
  }
  const auto fitted = fit.fit();
  ASSERT_TRUE(fitted);
  EXPECT_NEAR(fitted->curve.loss(500), 0.4 + 2 * std::exp(-500.0 / 300), 0.02);
  EXPECT_GT(fitted->confidence, 0.9);
}

TEST(LossFitTest, ALearningRateDropOpensASegmentWithinFiveBins) {
  RandomStream dice(4);
  LossFit fit;
  const auto loss = [](double x) {
    return x < 1000 ? 0.55 + 1.7 * std::exp(-x / 200)
                    : 0.2 + 0.35 * std::exp(-(x - 1000) / 60);
  };
  double noticed = 0;
  for (double x = 0; x < 1500; x += 0.5) {
    fit.add(x, loss(x) * (1 + 0.02 * dice.normal()));
    if (std::fmod(x, 30) == 0) fit.fit();
    if (noticed == 0 && fit.segments() > 1) noticed = x;
  }
  EXPECT_GE(noticed, 1000);
  EXPECT_LE(noticed, 1000 + 5 * 32);  // bins of 64 values by then
  const auto fitted = fit.fit();
  ASSERT_TRUE(fitted);
  EXPECT_NEAR(fitted->curve.loss(1400), 0.2, 0.03);
}

TEST(LossFitTest, WhatDoesNotFallHasNoFit) {
  RandomStream dice(6);
  LossFit rising, constant, noise;
  for (int i = 0; i < 500; ++i) {
    rising.add(i, 1 + 0.01 * i);
    constant.add(i, 3);
    noise.add(i, dice.normal());
  }
  EXPECT_FALSE(rising.fit());
  EXPECT_FALSE(constant.fit());
  EXPECT_FALSE(noise.fit());
}

}  // namespace
}  // namespace holdfast::curve_test
