// The model forward only, over the evaluation data, with weights that are there: one rank's part.
#pragma once

#include <filesystem>

#include "runtime/evaluate/predictions.h"
#include "runtime/job/job.h"
#include "runtime/launch/place.h"
#include "runtime/messages/evaluated_minibatch.h"

namespace pipewright {

/// InputError: `latest` was asked for, and the run folder has no checkpoint.
[[noreturn]] void fail_without_checkpoint(const std::filesystem::path& run_folder);

/// As prepare_job(), for a job that only runs the model forward. InputError unless the run names data for it,
/// and weights: a checkpoint or initial ones. Of a checkpoint only model and tensors must fit, and the job's
/// optimizer is one that remembers nothing.
Job prepare_evaluation(const Run& run, std::optional<int64_t> world_size, c10::Device device = c10::kCPU);

/// Runs `job` (prepare_evaluation) under its plan as the rank that `place` says: the same numbers as the
/// evaluation at an epoch's end, and, where the data asks for sequences, how good are those that the model
/// makes on its own (runtime/evaluate/generate.h). Rank 0 gets the result and writes the predictions that are
/// asked for; the other ranks' result is empty. The files have passed check_predictions(). Throws as train()
/// does. Sets the number of compute threads of the process.
EvaluationResult evaluate(const Job& job, const Place& place, const PredictionFiles& files);

}  // namespace pipewright
