// A job trained once more, in this process: as its plans say, or on one device.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/generation/training_data.h"
#include "runtime/job/job.h"
#include "runtime/serial/reference.h"
#include "runtime/verify/comparison.h"

namespace pipewright {

class Retraining {
 public:
  /// Of the job whose run folder this is, from where it begins. Borrows all.
  Retraining(const Job& job, const TrainingData& data, const std::filesystem::path& run_folder)
      : job_(job), data_(data), run_folder_(run_folder) {}

  /// What its plans train up to minibatch `end`, each as long as it was in force. InputError where what the
  /// run has decided on the way (groups, handed-out minibatches) is not known.
  std::vector<PlanSpans> planned_until(int64_t end) const;
  /// The same on one device; empty where one of the plans computes something else (one_device_plan()).
  std::vector<PlanSpans> on_one_device(std::vector<PlanSpans> parts) const;
  /// Tells on standard error how far it is, under the name `what`. `shifted`: from weights that are one unit
  /// in the last place off.
  TrainedModel train(const std::vector<PlanSpans>& parts, const std::string& what,
                     bool shifted = false) const;
  /// Parameters and buffers before the first minibatch.
  std::map<std::string, at::Tensor> start() const;

 private:
  const Job& job_;
  const TrainingData& data_;
  const std::filesystem::path& run_folder_;
};

/// The programs of the plan's stages, as the plan trains them.
std::vector<StageProgram> programs_of(const Graph& model, const Plan& plan);

/// Every tensor that a stage holds, a tied one in each of its stages, in the order of stages of the plan that
/// was in force before minibatch `next`; unless the pipeline had drained there, without the buffers that
/// replicas average at the drain.
std::vector<StageTensor> places_before(const Job& job, int64_t next, bool drained);

inline bool is_drained(const CheckpointManifest& manifest) {
  return manifest.pipeline_began == manifest.next_minibatch;
}

/// What the ranks wrote: the losses of minibatches from `first` on, and what the checkpoint holds, copies of
/// tied parameters too. InputError unless metrics.jsonl has all these losses.
TrainedModel written_model(const Job& job, const std::filesystem::path& run_folder,
                           const Checkpoint& checkpoint, int64_t first);

}  // namespace pipewright
