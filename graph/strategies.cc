#include "graph/strategies.h"

#include <algorithm>
#include <iterator>

#include "graph/rows.h"

namespace pipewright {

const std::vector<StrategyFacts>& strategies() {
  using enum StrategyKind;
  static const std::vector<StrategyFacts> rows = {
      {kBest, "best", true, false, false, "the fastest of all below, or one device"},
      {kDataParallel, "dp", true, true, true, "data parallelism: the whole model on every device"},
      {kStraight, "straight", true, false, true, "a pipeline of two stages or more, one device each"},
      {kHybrid, "hybrid", true, false, false, "a pipeline with a replicated stage"},
      {kModelParallel, "model-parallel", true, false, true, "one stage per device, one minibatch at a time"},
      {kInference, kInferenceStrategy, false, false, false, "forward only, the least latency at a rate"},
      {kManual, "manual", false, false, false, "written by hand"},
  };
  return rows;
}

const StrategyFacts& strategy_facts(const std::string& name) {
  return row_named(strategies(), "strategy", name);
}

const std::vector<StrategyFacts>& searched_strategies() {
  static const std::vector<StrategyFacts> rows = [] {
    std::vector<StrategyFacts> searched;
    std::copy_if(strategies().begin(), strategies().end(), std::back_inserter(searched),
                 [](const StrategyFacts& row) { return row.searched; });
    return searched;
  }();
  return rows;
}

const StrategyFacts& searched_strategy(const std::string& name) {
  return row_named(searched_strategies(), "strategy", name);
}

}  // namespace pipewright
