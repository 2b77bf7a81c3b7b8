// The numbers of runs, for other programs. What they mean: docs/semantics.md#the-metrics-log-metricsjsonl.
#pragma once

#include <filesystem>
#include <vector>

namespace pipewright {

/// A row for each line of the runs' metrics.jsonl, and a column for each number that any has: `minibatch`
/// first (before it `run`, if there are several), then those of minibatches' own lines, then
/// `evaluation.loss`, `speed.slowdown` and so on. Numbers have the digits of metrics.jsonl, what was no
/// finite number is `nan`, what a line does not have is empty. `minibatch` of another line than a
/// minibatch's: how many were trained before. Reads line by line, twice. InputError for a folder without
/// metrics.jsonl and for a line that is none of it; RunError.
void write_metrics_csv(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& file);

/// FOLDER/RUN/events.out.tfevents.pipewright for each run, which TensorBoard reads: loss, learning_rate,
/// gradient_norm, samples_per_second (over the last 50 minibatches), evaluation/..., slowdown/rank K,
/// slowdown/link K-L, spread/rank K; the step is the minibatch. Times are those of the run, counted back from
/// when its metrics.jsonl was last written. Likewise.
void write_tensorboard(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& folder);

}  // namespace pipewright
