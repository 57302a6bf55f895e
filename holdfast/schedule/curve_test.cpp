// Curves, and the functions and draws below them.
#include "holdfast/schedule/curve.h"

#include <bit>
#include <cmath>

#include "holdfast/base/testing.h"
#include "holdfast/schedule/dice.h"
#include "holdfast/schedule/portable.h"

namespace holdfast {
namespace {

TEST(PortableTest, FunctionsAreWithinThreeUnitsInTheLastPlace) {
  Dice dice(1);
  const auto near = [](double a, double b) {
    EXPECT_NEAR(a, b, 6e-16 * std::fabs(b) + 1e-320);
  };
  for (int i = 0; i < 3000; ++i) {
    const double x = 60 * (dice.uniform() - 0.5), y = std::exp(x);
    near(portable::exp(x), std::exp(x));
    near(portable::log(y), std::log(y));
    near(portable::expm1(x / 60), std::expm1(x / 60));
    near(portable::log1p(x / 100), std::log1p(x / 100));
  }
  EXPECT_NEAR(portable::pow(7, -1.25), std::pow(7, -1.25), 1e-16);
  for (const double x : {0.3, 1.0, 2.5, 7.0, 30.0}) {
    EXPECT_NEAR(portable::gamma(x), std::tgamma(x), 1e-13 * std::tgamma(x));
  }
  EXPECT_EQ(portable::exp(-1000), 0);
  EXPECT_TRUE(std::isinf(portable::exp(1000)));
  EXPECT_TRUE(std::isnan(portable::log(-1)));
}

// The bits of one machine: another that differs has another library or fuses products.
TEST(PortableTest, SameSeedSameBits) {
  Dice dice(42, 7);
  uint64_t bits = 0;
  const auto add = [&](double value) {
    bits = bits * 31 + std::bit_cast<uint64_t>(value);
  };
  for (int i = 0; i < 1000; ++i) add(dice.exponential()), add(dice.normal());
  for (int i = 1; i < 200; ++i) add(portable::exp(portable::pow(i, 0.3) / i));
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

}  // namespace
}  // namespace holdfast
