// What a run must have ended with: computed in this process, compared with what its ranks wrote.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "runtime/job/job.h"
#include "runtime/schedule/schedule.h"
#include "runtime/verify/against.h"
#include "runtime/verify/comparison.h"
#include "runtime/verify/first_difference.h"
#include "runtime/verify/up_to_rounding.h"

namespace pipewright {

struct Verification {
  Span minibatches;
  int64_t ranks = 1;
  int64_t plans = 1;  ///< in force one after the other
  std::vector<StageTensor> places;
  ExactComparison serial;                  ///< with the serial reference
  std::optional<FirstDifference> first;    ///< from it, if there is one
  std::optional<UpToRounding> one_device;  ///< of plans that compute the same as one device
  std::optional<AgainstOther> against;     ///< instead of it, where there is another training

  bool holds() const;
};

/// Trains `job` serially, from its start to the checkpoint `end` of `run_folder`, and compares its weights,
/// buffers and the losses of the run folder's metrics.jsonl; then with the other training that the paths
/// `against` have (read_other_training()), or, if there are none, once more on one device where that computes
/// the same but for the order of sums. Sets the number of compute threads of the process. InputError if the
/// checkpoint or the losses are not whole, or not of this job.
Verification verify(const Job& job, const std::filesystem::path& run_folder, const Checkpoint& end,
                    double tolerance, const std::vector<std::string>& against = {});

/// From which checkpoint a run that went on from `resume` (Run::resume) can be verified, as far as can be
/// told: that one, or the oldest of its folder, but for the last, with nothing in flight. "" where `resume`
/// is; nothing if there is none.
std::optional<std::string> verified_from(const std::filesystem::path& folder, const std::string& resume);

}  // namespace pipewright
