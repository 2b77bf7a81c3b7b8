#include "runtime/verify/verify.h"

#include <ATen/Parallel.h>

#include "graph/error.h"
#include "graph/regular_file.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/generation/training_data.h"

namespace pipewright {
namespace {

std::optional<UpToRounding> compared_with_one_device(const Retraining& retraining,
                                                     const std::vector<PlanSpans>& parts,
                                                     const TrainedModel& written,
                                                     const std::vector<StageTensor>& places,
                                                     double tolerance) {
  const auto single = retraining.on_one_device(parts);
  if (single.empty()) return {};
  const auto start = retraining.start();
  const TrainedModel one = retraining.train(single, "one device");
  const TrainedModel rounded = retraining.train(single, "rounding", /*shifted=*/true);
  std::vector<StageTensor> parameters;
  for (const StageTensor& place : places)
    if (place.trainable) parameters.push_back(place);
  return UpToRounding{compare_relatively(written, one, start, places),
                      compare_relatively(rounded, one, start, places), tolerance,
                      compare_exactly(written, one, parameters).equal()};
}

}  // namespace

bool Verification::holds() const {
  return serial.equal() && (!one_device || one_device->holds()) && (!against || against->holds());
}

Verification verify(const Job& job, const std::filesystem::path& run_folder, const Checkpoint& end,
                    double tolerance, const std::vector<std::string>& against) {
  at::set_num_threads(static_cast<int>(job.run.threads));
  const TrainingData data(job);
  const int64_t first = data.first_minibatch();
  if (end.manifest.next_minibatch <= first) {
    throw InputError(end.folder.string() + ": nothing was trained between minibatch " +
                         std::to_string(first) + " and this checkpoint",
                     "verify from an earlier checkpoint, or train on");
  }
  if (data.pipeline_began() < first) {
    throw InputError(job.resume->folder.string() +
                         ": minibatches were in flight there, and verify begins with an empty pipeline",
                     "Begin with a checkpoint of the end of an epoch or of a run, or at the beginning.");
  }
  const Retraining retraining(job, data, run_folder);
  Verification verification;
  const Span minibatches = {first, end.manifest.next_minibatch - first};
  verification.minibatches = minibatches;
  std::optional<OtherTraining> other;
  if (!against.empty()) other = read_other_training(against, job.model, minibatches);
  const auto parts = retraining.planned_until(minibatches.end());
  verification.ranks = job.world_size();
  verification.plans = static_cast<int64_t>(parts.size());
  verification.places = places_before(job, minibatches.end(), is_drained(end.manifest));

  const TrainedModel written = written_model(job, run_folder, end, first);
  const TrainedModel serial = retraining.train(parts, "serial reference");
  verification.serial = compare_exactly(written, serial, verification.places);
  if (!verification.serial.equal()) {
    verification.first =
        first_difference(job, retraining, run_folder, minibatches, verification.serial.first_loss);
  }
  if (other) {
    verification.against =
        compare_with_other(job, retraining, run_folder, *other, minibatches, written, serial, tolerance);
  } else {
    verification.one_device =
        compared_with_one_device(retraining, parts, written, verification.places, tolerance);
  }
  return verification;
}

std::optional<std::string> verified_from(const std::filesystem::path& folder, const std::string& resume) {
  if (resume.empty()) return "";
  const auto begins_empty = [](const std::filesystem::path& checkpoint) {
    return is_drained(open_checkpoint(checkpoint).manifest);
  };
  if (file_exists(std::filesystem::path(resume) / kManifestName) && begins_empty(resume)) return resume;
  const auto checkpoints = list_checkpoints(folder);
  for (size_t i = checkpoints.size(); i-- > 1;)
    if (begins_empty(checkpoints[i])) return checkpoints[i].string();
  return std::nullopt;
}

}  // namespace pipewright
