// Steps of a noisy quantity: each found once, soon, and nothing found where there is none.
#include "runtime/monitor/level_detector.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

namespace pipewright::testing {
namespace {

// What times on shared machines look like: a log-normal spread, now and then several times as long, and never
// faster than the machine is.
class Noise {
 public:
  Noise(uint64_t seed, double spread, double outliers)
      : random_(seed), spread_(spread), outliers_(outliers) {}
  double operator()(double level) {
    const double factor = std::exp(spread_ * std::abs(normal_(random_)));
    const bool outlier = uniform_(random_) < outliers_;
    return level * factor * (outlier ? 2 + 8 * uniform_(random_) : 1);
  }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  double spread_, outliers_;
};

std::vector<LevelChange> changes(LevelDetector& detector, Noise& noise, double level, int64_t samples) {
  std::vector<LevelChange> all;
  for (int64_t i = 0; i < samples; ++i)
    if (const auto change = detector.add(noise(level))) all.push_back(*change);
  return all;
}

}  // namespace

TEST_CASE("a quiet run of 20,000 minibatches has no change, whatever its noise") {
  int cases = 0;
  for (const double spread : {0.0, 0.01, 0.05, 0.1, 0.2, 0.4})
    for (const double outliers : {0.0, 0.05, 0.15})
      for (uint64_t seed = 0; seed < 6; ++seed) {
        CAPTURE(spread, outliers, seed);
        LevelDetector detector;
        Noise noise(seed, spread, outliers);
        CHECK(changes(detector, noise, 3e-3, 20000).empty());
        ++cases;
      }
  CHECK(cases == 108);
}

TEST_CASE("a step is found once, within 20 minibatches, and so is its end") {
  for (const double factor : {1.3, 1.5, 2.0, 5.0})
    for (const double spread : {0.0, 0.02, 0.05})
      for (uint64_t seed = 0; seed < 20; ++seed) {
        CAPTURE(factor, spread, seed);
        LevelDetector detector;
        Noise noise(seed, spread, 0.03);
        const int64_t begin = 100 + static_cast<int64_t>(seed);
        REQUIRE(changes(detector, noise, 1, begin).empty());
        const auto up = changes(detector, noise, factor, 500);
        REQUIRE(up.size() == 1);
        CHECK(up[0].found - begin < 20);
        CHECK(std::abs(up[0].first - begin) <= 5);
        CHECK(up[0].factor() == Approx(factor).epsilon(0.1));
        const auto down = changes(detector, noise, 1, 500);
        REQUIRE(down.size() == 1);
        CHECK(down[0].found - (begin + 500) < 20);
        CHECK(down[0].factor() == Approx(1 / factor).epsilon(0.1));
      }
}

TEST_CASE("a level that begins higher is forgotten, and is no spread that hides a step") {
  // Lower quartiles of milliseconds a minibatch as a real run had them; then two other programs took its
  // core.
  const std::vector<double> recorded = {39.0, 38.4, 39.7, 39.7, 41.9, 36.5, 32.6,
                                        32.1, 31.8, 32.2, 31.6, 31.1, 32.1, 32.3};
  LevelDetector detector;
  for (const double low : recorded)
    for (int i = 0; i < 5; ++i) CHECK_FALSE(detector.add(low));
  CHECK(detector.threshold() < 1.6);
  int64_t samples = 0;
  std::optional<LevelChange> found;
  while (!found && samples < 20) {
    ++samples;
    found = detector.add(104);
  }
  REQUIRE(found);
  CHECK(found->factor() == Approx(104 / 32.3).epsilon(0.05));

  for (uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    LevelDetector other;
    Noise noise(seed, 0.05, 0.03);
    const double first = 1.1 + 0.005 * static_cast<double>(seed % 10);
    CHECK(changes(other, noise, first, 25).empty());
    CHECK(changes(other, noise, 1, 100 + static_cast<int64_t>(seed)).empty());
    const auto up = changes(other, noise, 2, 100);
    REQUIRE(up.size() == 1);
    CHECK(up[0].factor() == Approx(2).epsilon(0.15));
    CHECK(up[0].found < 25 + 100 + static_cast<int64_t>(seed) + 20);
  }
}

TEST_CASE("on a machine that goes up and down by half a step that ends beyond all of it is found") {
  // Milliseconds a minibatch of a real run on a shared host, from its 20th on; then two programs took its
  // core.
  const std::vector<double> quiet = {38, 38, 34, 36, 38, 44, 36, 38, 41, 41, 43, 38, 40, 40,
                                     35, 35, 33, 34, 35, 35, 38, 38, 36, 36, 39, 41, 42, 37,
                                     37, 39, 49, 52, 55, 55, 47, 42, 51, 52, 53, 50, 48, 47,
                                     53, 53, 51, 50, 54, 49, 48, 49, 42, 49, 50, 46, 39, 46};
  const std::vector<double> slow = {120, 101, 99,  95,  106, 97,  102, 105, 123, 118, 126, 118,
                                    115, 118, 99,  104, 102, 108, 97,  101, 99,  107, 106, 114,
                                    112, 125, 108, 100, 100, 95,  92,  95,  91,  89};
  LevelDetector detector;
  for (const double sample : quiet) CHECK_FALSE(detector.add(sample));
  std::optional<LevelChange> found;
  size_t samples = 0;
  while (!found && samples < slow.size()) found = detector.add(slow[samples++]);
  REQUIRE(found);
  CHECK(found->factor() == Approx(2.4).epsilon(0.15));
}

TEST_CASE("many steps are found one by one, none twice") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    LevelDetector detector;
    Noise noise(seed, 0.05, 0.03);
    std::mt19937_64 random(seed);
    REQUIRE(changes(detector, noise, 1, 60).empty());
    double level = 1;
    for (int step = 0; step < 30; ++step) {
      level = level == 1 ? std::uniform_real_distribution<double>(1.6, 4)(random) : 1;
      CAPTURE(seed, step, level);
      CHECK(changes(detector, noise, level, 60 + static_cast<int64_t>(random() % 200)).size() == 1);
    }
  }
}

TEST_CASE("a burst that is shorter than three windows is no change") {
  LevelDetector detector;
  Noise noise(1, 0.02, 0);
  CHECK(changes(detector, noise, 1, 60).empty());
  for (int burst = 0; burst < 50; ++burst) {
    CHECK(changes(detector, noise, 4, 10).empty());
    CHECK(changes(detector, noise, 1, 30).empty());
  }
}

TEST_CASE("a level that another plan makes of a known one is not learned again") {
  LevelDetector detector;
  Noise noise(1, 0.02, 0);
  CHECK(changes(detector, noise, 1, 60).empty());
  detector.expect(2.5);
  CHECK(changes(detector, noise, 2.5, 100).empty());
  CHECK(detector.level() == Approx(2.5).epsilon(0.05));
  CHECK(changes(detector, noise, 5, 100).size() == 1);
  detector.restart();
  CHECK(detector.level() == 0);
  CHECK(changes(detector, noise, 1, 100).empty());
  CHECK(detector.level() == Approx(1).epsilon(0.1));
}

}  // namespace pipewright::testing
