// Losses of minibatches and norms of updates, told in whatever order they become known.
#include "runtime/journal/minibatch_reports.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

namespace pipewright::testing {

TEST_CASE(
    "minibatch reports: each minibatch is told once, in order, with the norm of the update it is part of") {
  std::mt19937_64 random(9);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const bool with_norm = round % 3 > 0;
    const LossPart part{round % 2, 2};
    std::vector<MinibatchLoss> told;
    MinibatchReports reports(with_norm, part, [&](MinibatchLoss loss) { told.push_back(loss); });
    const auto begin = static_cast<int64_t>(random() % 50);
    const auto step = static_cast<int64_t>(1 + random() % 3);  // other replicas have those between
    std::vector<std::optional<double>> norms;                  // by minibatch told of
    std::vector<MinibatchLoss> losses;
    int64_t k = begin;
    for (int update = 0; update < 10; ++update) {
      const size_t before = losses.size();
      const int64_t end = k;  // of the update before: forwards run ahead of it
      for (auto n = static_cast<int64_t>(random() % 4); n > 0; --n, k += step) {
        const auto at = static_cast<double>(k);
        losses.push_back({k, 1 / (at + 1), 10 * at, {0.1 * at, {}}, part});
        reports.loss(k, losses.back().loss, losses.back().elapsed_seconds, 0.1 * at);
      }
      if (!with_norm) continue;
      CHECK(told.size() == norms.size());  // nothing without its norm
      const double norm = static_cast<double>(random() % 1000) / 7;
      reports.norm(end, norm);
      norms.resize(before, norm);
      CHECK(told.size() == norms.size());
    }
    // The last update is never made: the span failed.
    if (!with_norm) CHECK(told.size() == losses.size());  // at once
    reports.flush();
    reports.flush();
    norms.resize(losses.size());
    REQUIRE(told.size() == losses.size());
    for (size_t i = 0; i < told.size(); ++i) {
      CHECK(told[i].minibatch == losses[i].minibatch);
      CHECK(told[i].loss == losses[i].loss);
      CHECK(told[i].elapsed_seconds == losses[i].elapsed_seconds);
      CHECK(told[i].update.learning_rate == losses[i].update.learning_rate);
      CHECK(told[i].update.gradient_norm == norms[i]);
      CHECK(told[i].part.number == part.number);
      CHECK(told[i].part.count == part.count);
    }
  }
}

}  // namespace pipewright::testing
