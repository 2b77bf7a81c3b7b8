// `compare --sync`: of the ways to run the model, which goes best with each way to hold pipelines together.
#pragma once

#include <string>
#include <vector>

#include "graph/json.h"
#include "graph/text_table.h"
#include "optimizer/commands/comparison.h"
#include "runtime/schedule/disturbance.h"

namespace pipewright {

struct SyncChoice {
  std::string sync;               ///< SPEC
  std::optional<size_t> fastest;  ///< of the contenders; nothing: none of them can be trained so
  double minibatch_seconds = 0;   ///< then: of the run's minibatches, in the mean over so many
};

/// What trains `minibatches` of a run first under each of `syncs`, each pipeline on its own devices. Rules
/// that do not keep replicas equal go with contenders that are pipelines side by side (check_side_by_side).
/// `disturbances` may be null.
std::vector<SyncChoice> choose_for_syncs(const Comparison& comparison, const Inputs& inputs,
                                         const std::vector<std::string>& syncs, int64_t minibatches,
                                         const Disturbances* disturbances);

TextTable sync_choice_table(const std::vector<SyncChoice>& choices, const Comparison& comparison);
/// A sentence: the fastest that averages weights on the way or keeps them equal, if it gains 10 % or more on
/// the fastest that keeps them equal; else that one.
std::string sync_choice_advice(const std::vector<SyncChoice>& choices, const Comparison& comparison);
/// An object a choice.
Json sync_choice_json(const std::vector<SyncChoice>& choices, const Comparison& comparison);

}  // namespace pipewright
