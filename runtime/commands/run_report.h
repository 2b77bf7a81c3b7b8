// Finished runs side by side.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pipewright {

/// A Markdown table, one row a run folder (its plan.json and summary.json), the first being what speed-ups
/// refer to: throughput, loss, accuracy, measured against predicted time, peak memory of the largest rank
/// against its prediction, bytes sent a minibatch; then how far the losses of each are from the first one's,
/// and the memory of each rank by purpose. Times of runs that had fewer cores than ranks are in brackets,
/// with a line that says so. InputError names a folder that holds no finished run.
std::string run_report(const std::vector<std::filesystem::path>& folders);

}  // namespace pipewright
