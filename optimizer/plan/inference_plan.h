// A plan for inference: forward only, of least latency with a minibatch every so often.
#pragma once

#include <optional>

#include "graph/plan.h"
#include "graph/profile.h"
#include "optimizer/search/inference.h"

namespace pipewright {

/// What nodes take in inference: forwards alone, launched one by one, since nothing is captured.
Profile profile_for_inference(const Profile& profile);

/// Whether such a plan was asked for: strategy "inference".
bool is_for_inference(const Plan& plan);
/// PlanError for one: its time, memory and depths are not those of training.
void demand_training_plan(const Plan& plan);

/// The chain of least latency with which a minibatch can enter every `period_seconds`: exact on one level of
/// equal devices (search_inference()), elsewhere by local search. Nothing if none was found.
std::optional<InferenceSolution> chain_for_inference(const Problem& problem, double period_seconds);

/// `flow` is of profile_for_inference(). The depths are those that keep such a pipeline full.
/// InfeasibleError, with the least period that is possible, if there is none.
Plan inference_plan(const Problem& problem, double period_seconds, const Dataflow& flow);

/// What such a plan takes: the period that it can keep, its latency in words, forwards, messages one way, and
/// what inference_memory() has. PlanError as loads_of_plan().
Prediction inference_price(const Plan& plan, const Dataflow& flow, CostInputs inputs);

}  // namespace pipewright
