// Who processes a minibatch, which minibatches make one update, and how far back a stage reads: a second
// time, from a plan alone. The reference must find the same as runtime/schedule by another way, so it asks
// nothing of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/plan.h"

namespace pipewright {

/// The replica of each minibatch of a cycle: in each step every replica gains its share, the one that has
/// most (the first of equals) takes the minibatch and pays the sum of all shares.
std::vector<size_t> cycle_of(const Stage& stage);

/// How many minibatches a stage of this depth runs ahead of its backwards: the largest W that is at most
/// (depth - 1) cycles / the largest share, such that no W + 1 minibatches in a row give one replica more than
/// `depth`.
int64_t run_ahead(const std::vector<size_t>& cycle, int64_t depth);

struct SerialRule {
  int64_t round_length = 1;  ///< minibatches of an update
  int64_t lag = 0;           ///< minibatch k reads the rounds that end `lag` or more minibatches before it
  int64_t backward_lag = 0;  ///< likewise its backward
  bool predicts = false;     ///< it reads what the optimizer makes of those for the time of its backward
};
/// By stage: what the plan's weight rule says.
std::vector<SerialRule> weight_rule_of(const Plan& plan, int64_t gradient_accumulation);

}  // namespace pipewright
