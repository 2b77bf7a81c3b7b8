// From which bandwidth on another way to run the model would be the one to take.
#pragma once

#include <string>
#include <vector>

#include "optimizer/commands/comparison.h"

namespace pipewright {

/// The nearest turn to each side, below first, where `contenders` are the rows of the problem and the kind
/// of the best is `now`. Both sides are sought side by side.
std::vector<Turn> turns_of(const Inputs& inputs, int64_t minibatches,
                           const std::vector<Contender>& contenders, const std::string& now);

}  // namespace pipewright
