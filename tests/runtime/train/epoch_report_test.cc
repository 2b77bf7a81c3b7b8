#include "runtime/train/epoch_report.h"

#include <catch2/catch.hpp>
#include <random>

using namespace pipewright;

namespace {

Plan three_ranks() {
  Plan plan;
  plan.world_size = 3;
  plan.frozen_layers = 2;
  return plan;
}

}  // namespace

TEST_CASE("epoch report: what the epochs of a run tell adds up to what was measured, whenever they end") {
  std::mt19937_64 random(1);
  const auto some = [&] { return std::uniform_real_distribution<>(0, 5)(random); };
  const Plan plan = three_ranks();
  for (int run = 0; run < 200; ++run) {
    EpochReport report;
    EpochTimes whole, told;
    double trained = 0, seconds = 0, changes = 0;
    CacheSummary cache;
    int64_t fetched = 0, deepened = 0, computed = 0;
    for (int64_t epoch = 0; epoch < 5; ++epoch) {
      for (uint64_t n = random() % 4; n > 0; --n) {
        const double forward = some(), change = some(), moved = some();
        report.times().forward_seconds += forward;
        whole.forward_seconds += forward;
        report.times().change_seconds += change;
        changes += change;
        trained += moved;
        cache.fetched += static_cast<int64_t>(random() % 9);
        cache.deepened += static_cast<int64_t>(random() % 3);
        cache.computed += static_cast<int64_t>(random() % 5);
        cache.fetch_seconds += some();
      }
      cache.memory_bytes = static_cast<int64_t>(random() % 1000);
      cache.disk_bytes = static_cast<int64_t>(random() % 1000);
      const EpochSummary said = report.take({epoch, 12}, {plan, "plan.json", 64, trained, cache});
      CHECK(said.epoch == epoch);
      CHECK(said.minibatches == 12);
      CHECK(said.plan == "plan.json");
      CHECK(said.ranks == 3);
      CHECK(said.frozen_layers == 2);
      CHECK(said.update_samples == 64);
      CHECK(said.cache_bytes == cache.memory_bytes + cache.disk_bytes);
      told.forward_seconds += said.times.forward_seconds;
      told.cache_seconds += said.times.cache_seconds;
      seconds += said.seconds;
      fetched += said.fetched;
      deepened += said.deepened;
      computed += said.computed;
    }
    CHECK(told.forward_seconds == Approx(whole.forward_seconds).margin(1e-12));
    CHECK(told.cache_seconds == Approx(cache.fetch_seconds).margin(1e-12));
    CHECK(seconds == Approx(trained + changes).margin(1e-12));
    CHECK(fetched == cache.fetched);
    CHECK(deepened == cache.deepened);
    CHECK(computed == cache.computed);
  }
}

TEST_CASE("epoch report: a run that keeps nothing of frozen layers says nothing of it") {
  EpochReport report;
  const EpochSummary said = report.take({3, 7}, {three_ranks(), "generation-1.plan.json", 8, 2.5});
  CHECK(said.cache_bytes == 0);
  CHECK(said.fetched == 0);
  CHECK(said.seconds == 2.5);
}

TEST_CASE("epoch report: the largest update of the stages that are trained counts") {
  PipelineShape shape;
  shape.replicas = {1, 2, 3};
  shape.in_flight = {3, 2, 1};
  CHECK(update_samples_of(shape, 10) == 30);
  shape.frozen_stages = 3;
  CHECK(update_samples_of(shape, 10) == 0);
}
