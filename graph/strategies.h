// Strategies of plans by name, and what is known of each. What the optimizer asks of its search for each is
// optimizer/plan/optimizer.cc.
#pragma once

#include <string>
#include <vector>

namespace pipewright {

enum class StrategyKind { kBest, kDataParallel, kStraight, kHybrid, kModelParallel, kInference, kManual };

/// Of plans for answering, by which they are told from those to train by.
inline constexpr const char* kInferenceStrategy = "inference";

struct StrategyFacts {
  StrategyKind kind;
  const char* name;
  bool searched;        ///< can be asked for (`plan --strategy`)
  bool one_stage;       ///< the whole model on every rank
  bool equal_replicas;  ///< all stages have equally many
  const char* summary;
};
/// All that a plan may have.
const std::vector<StrategyFacts>& strategies();
/// InputError with the nearest name.
const StrategyFacts& strategy_facts(const std::string& name);
/// Those that can be asked for.
const std::vector<StrategyFacts>& searched_strategies();
/// Of searched_strategies(); InputError with the nearest name.
const StrategyFacts& searched_strategy(const std::string& name);

}  // namespace pipewright
