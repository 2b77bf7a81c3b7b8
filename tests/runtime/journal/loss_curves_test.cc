#include "runtime/journal/loss_curves.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "graph/error.h"
#include "graph/json.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using pipewright::testing::TemporaryFolder;

TEST_CASE("loss curves: read by minibatch, evaluations are left out, null is not finite") {
  const TemporaryFolder folder;
  write_file(
      folder / "metrics.jsonl",
      "{\"minibatch\": 0, \"loss\": 2.5}\n{\"evaluation\": {\"epoch\": 0, \"loss\": 1, \"top1\": null}}\n"
      "{\"minibatch\": 1, \"loss\": null}\n");
  const LossCurve losses = read_curves(folder / "metrics.jsonl").losses;
  REQUIRE(losses.size() == 2);
  CHECK(losses.at(0) == 2.5);
  CHECK(std::isnan(losses.at(1)));
}

TEST_CASE("loss curves: an evaluation stands where it was made, wherever its line does") {
  const TemporaryFolder folder;
  write_file(folder / "metrics.jsonl",
             "{\"minibatch\": 0, \"epoch\": 0, \"loss\": 2.5}\n"
             "{\"minibatch\": 2, \"epoch\": 1, \"loss\": 2}\n"
             "{\"evaluation\": {\"epoch\": 0, \"loss\": 2.25, \"top1\": 0.5}}\n"
             "{\"minibatch\": 3, \"epoch\": 1, \"loss\": 2}\n"
             "{\"evaluation\": {\"epoch\": 1, \"minibatches\": 3, \"loss\": 2, \"top1\": null}}\n"
             "{\"minibatch\": 1, \"epoch\": 0, \"loss\": 2.5}\n");
  const std::vector<EvaluationPoint> points = read_curves(folder / "metrics.jsonl").evaluations;
  REQUIRE(points.size() == 2);
  CHECK(points[0].minibatches == 2);
  CHECK(points[0].loss == 2.25);
  CHECK(points[0].top1 == 0.5);
  CHECK(points[1].minibatches == 3);
  CHECK(std::isnan(points[1].top1));
}

TEST_CASE("loss curves: a missing file and a strange line are named") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(read_curves(folder / "none.jsonl"), InputError);
  write_file(folder / "metrics.jsonl", "{\"minibatch\": 0, \"loss\": 2.5}\n{\"minibatch\": 1}\n");
  CHECK_THROWS_WITH(read_curves(folder / "metrics.jsonl"),
                    Catch::Contains("line 2") && Catch::Contains("neither a minibatch"));
}

TEST_CASE("loss curves: the largest relative difference, and the first minibatch with other bits") {
  LossCurve a, b;
  for (int64_t k = 0; k < 150; ++k) a[k] = b[k] = 2;
  b[150] = 7;  // only one of the two has it
  CHECK(compare_losses(a, b).minibatches == 150);
  CHECK(compare_losses(a, b).first_different == -1);
  CHECK(compare_losses(a, b).largest == 0);
  a[40] = 2.002;
  a[120] = 2.2;
  const LossDifference difference = compare_losses(a, b);
  CHECK(difference.first_different == 40);
  CHECK(difference.largest_first_100 == Approx(0.001));
  CHECK(difference.largest == Approx(0.1));
}

TEST_CASE("loss curves: what is not finite on both sides is equal, on one side infinitely far") {
  const double nan = std::nan("");
  CHECK(compare_losses({{0, nan}}, {{0, nan}}).first_different == -1);
  CHECK(compare_losses({{0, 1.0}}, {{0, nan}}).largest == std::numeric_limits<double>::infinity());
  CHECK(compare_losses({{0, nan}}, {{0, 1.0}}).first_different == 0);
}
