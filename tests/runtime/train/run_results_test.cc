#include "runtime/train/run_results.h"

#include <catch2/catch.hpp>

#include "graph/error.h"

using namespace pipewright;

namespace {

RankSummary ended(int64_t rank, int64_t stage, const std::string& digest) {
  RankSummary summary;
  summary.rank = rank;
  summary.stage = stage;
  summary.host = "node" + std::to_string(rank);
  summary.weights_digest = digest;
  return summary;
}

}  // namespace

TEST_CASE("replicas of a stage that ended with different weights fail the run, and stages may differ") {
  Summary summary;
  summary.ranks = {ended(0, 0, "xxh128:aa"), ended(1, 0, "xxh128:aa"), ended(2, 1, "xxh128:bb"),
                   ended(3, 1, "xxh128:bb")};
  demand_equal_replicas(summary);
  summary.ranks[3].weights_digest = "xxh128:cc";
  CHECK_THROWS_WITH(demand_equal_replicas(summary),
                    Catch::StartsWith("stage 1: its replicas ended with different weights: rank 2 on node2 "
                                      "(xxh128:bb) and rank 3 on node3 (xxh128:cc)"));
  CHECK_THROWS_AS(demand_equal_replicas(summary), NumericalError);
}
