// Stages on a row of devices, found in little time: for planning again while a plan is in force, where the
// exact search (search.h) takes too long.
#pragma once

#include <cstdint>
#include <optional>

#include "optimizer/search/counted_work.h"
#include "optimizer/search/search.h"

namespace pipewright {

/// Stages of a small period on the devices of a question of training, which stand in the order of their
/// numbers, first stage first; on at most all devices, whatever `all_devices` says, each stage with
/// `least_replicas` or more. As in the exact search a period is bisected. But of the ways to run a suffix of
/// the model within it only one is kept, the one met first among those on fewest devices: so it may miss the
/// smallest period.
///
/// Nothing if no stages fit the memory or take less than `most_seconds`, or if `work` ends before some are
/// found; otherwise the best found with it. `inputs.levels` may be empty. Pure.
std::optional<Answer> row_answer(const Question& question, int64_t least_replicas, double most_seconds,
                                 CountedWork* work);

/// The same among a few cuts (few_cuts.h), whatever it takes, to a percent: for what to begin with.
std::optional<Answer> rough_row_answer(const Question& question, int64_t least_replicas, CountedWork* work);

}  // namespace pipewright
