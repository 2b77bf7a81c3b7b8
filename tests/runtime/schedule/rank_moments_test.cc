// What a rank with two stages has of both at a time.
#include "runtime/schedule/rank_moments.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "runtime/schedule/schedule.h"

using namespace pipewright;

namespace {

PipelineShape v_of(const std::string& schedule, int64_t ranks, int64_t microbatches) {
  const std::vector<int64_t> ones(static_cast<size_t>(2 * ranks), 1);
  PipelineShape shape{ones, std::vector<int64_t>(ones.size(), microbatches)};
  shape.weights = WeightRule::kFlush;
  shape.microbatches = microbatches;
  shape.stages_per_rank = 2;
  shape.v_shaped = true;
  shape.in_flight = schedule_named(schedule).depths(shape);
  return shape;
}

}  // namespace

TEST_CASE("moments of a rank: each stage is at its depth at one of them, both together are not") {
  for (const char* schedule : {"zbv", "dualpipev"})
    for (int64_t ranks = 1; ranks <= 5; ++ranks)
      for (int64_t microbatches = 1; microbatches <= 14; ++microbatches) {
        const PipelineShape shape = v_of(schedule, ranks, microbatches);
        for (int64_t group = 0; group < ranks; ++group) {
          CAPTURE(schedule, ranks, microbatches, group);
          const auto down = static_cast<size_t>(group), back = static_cast<size_t>(2 * ranks - 1 - group);
          int64_t most_down = 0, most_back = 0, most = 0;
          bool sound = true;
          for (const std::vector<StageMoment>& moment : rank_moments(schedule, shape, group, 0)) {
            for (const StageMoment& stage : moment)
              sound = sound && 0 <= stage.waiting && stage.waiting <= stage.in_flight &&
                      0 <= stage.left_values && stage.left_values <= stage.in_flight &&
                      0 <= stage.left_gradients;
            const bool middle = group + 1 == ranks;
            sound = sound && (moment[down].runs != moment[back].runs) &&
                    (middle || (moment[down].left_values == 0 && moment[back].left_gradients == 0));
            most_down = std::max(most_down, moment[down].in_flight);
            most_back = std::max(most_back, moment[back].in_flight);
            most = std::max(most, moment[down].in_flight + moment[back].in_flight);
          }
          CHECK(sound);
          CHECK(most_down == shape.in_flight[down]);
          CHECK(most_back == shape.in_flight[back]);
          CHECK(most <= most_down + most_back);
          // Qi et al.: p minibatches of both stages on every rank.
          if (std::string(schedule) == "zbv" && microbatches >= 2 * ranks) CHECK(most == 2 * ranks);
        }
      }
}
