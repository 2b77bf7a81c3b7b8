#include "runtime/generation/training_data.h"

#include <algorithm>

#include "graph/cache_rules.h"
#include "graph/error.h"
#include "models/device/cuda_plugin.h"
#include "models/device/device.h"
#include "models/run/operators.h"
#include "runtime/checkpoint/checkpoint_state.h"
#include "runtime/schedule/plan_shape.h"

namespace pipewright {
namespace {

// The data of a checkpoint and of the run are of one size, and the run is longer.
void check_position(const Checkpoint& checkpoint, const RunLength& length) {
  const CheckpointManifest& manifest = checkpoint.manifest;
  const std::string where = "resume: " + checkpoint.folder.string();
  if (manifest.minibatches_per_epoch != length.minibatches_per_epoch) {
    throw InputError(
        where + ": an epoch had " + std::to_string(manifest.minibatches_per_epoch) +
            " minibatches, now it has " + std::to_string(length.minibatches_per_epoch),
        "The data set has changed: give the one of the checkpoint, or start anew without --resume.");
  }
  if (manifest.next_minibatch > length.minibatches) {
    throw InputError(where + ": " + std::to_string(manifest.next_minibatch) +
                         " minibatches are done, the run has " + std::to_string(length.minibatches),
                     "raise --epochs or --minibatches, or go on from an earlier checkpoint");
  }
}

}  // namespace

TrainingData::TrainingData(const Job& job)
    : job_(job),
      data_(open_dataset(job.run.data, "train")),
      sampler_(data_->size(), job.run.batch_size, static_cast<uint64_t>(job.run.seed),
               /*shuffle=*/!data_->in_order()) {
  check_dataset_for_graph(*data_, job.model.graph, job.run.data);
  const std::string varies = data_->augmentation();
  if (cache_rules(job.run.cache).kind != CacheKind::kNone && !varies.empty()) {
    throw InputError("cache '" + job.run.cache + "': data '" + job.run.data +
                         "' differs from epoch to epoch: " + varies +
                         ", so what frozen layers make of a sample is never the same twice",
                     "Leave out --cache, or train on samples as they are, where the data set can give them.");
  }
  length_.minibatches_per_epoch = sampler_.minibatches_per_epoch();
  if (length_.minibatches_per_epoch == 0) {
    throw InputError("data '" + job.run.data + "' has " + std::to_string(data_->size()) +
                         " samples, fewer than one minibatch of " + std::to_string(job.run.batch_size),
                     "give a smaller --batch-size");
  }
  length_.minibatches =
      job.run.minibatches > 0 ? job.run.minibatches : job.run.epochs * length_.minibatches_per_epoch;
  length_.evaluate_every = job.run.evaluate_every_minibatches;
  if (!sync_facts(job.run.sync).keeps_replicas_equal)
    length_.drain_every = job.run.checkpoint.every_minibatches;
  length_.decide_every = job.decide_every;
  if (!job.resume) return;
  check_position(*job.resume, length_);
  first_ = job.resume->manifest.next_minibatch;
}

RunLength TrainingData::length_of(int64_t generation) const {
  RunLength length = length_;
  length.period = round_period(shape_of(job_.plan_of(generation), job_.gradient_accumulation_of(generation)));
  length.plan_begin = job_.first_minibatch_of(generation);
  if (generation + 1 < job_.generations()) length.plan_end = job_.first_minibatch_of(generation + 1);
  return length;
}

LoadRequest TrainingData::request(int64_t k) const {
  return {sampler_.indices(k), {static_cast<uint64_t>(job_.run.seed), sampler_.epoch_of(k)}};
}

int64_t TrainingData::evaluated_epochs() const {
  if (!job_.resume) return 0;
  const int64_t evaluated = job_.resume->manifest.evaluated_epochs;
  return first_ == length_.minibatches ? evaluated
                                       : std::min(evaluated, first_ / length_.minibatches_per_epoch);
}

int64_t TrainingData::pipeline_began() const {
  if (!job_.resume || first_ == length_.minibatches) return first_;
  const int64_t generation = job_.generation_at(first_);
  CheckpointManifest manifest = job_.resume->manifest;
  if (manifest.run.sync != job_.run.sync) return first_;
  // A change may have said otherwise by then.
  const int64_t accumulation = job_.gradient_accumulation_of(generation);
  if (manifest.run.gradient_accumulation == job_.run.gradient_accumulation)
    manifest.run.gradient_accumulation = accumulation;
  const Span rest = span_from(first_, length_of(generation));
  return pipewright::pipeline_began(manifest, job_.plan_of(generation), accumulation, rest.end());
}

TrainingRules TrainingData::rules_of(int64_t generation) const {
  TrainingRules rules{job_.run, length_.minibatches_per_epoch, length_.minibatches, job_.device};
  rules.gradient_accumulation = job_.gradient_accumulation_of(generation);
  const double scale = job_.learning_rate_scale_of(generation);
  rules.optimizer.learning_rate *= scale;
  rules.learning_rate_policy.lowest_learning_rate *= scale;
  rules.cuda_graphs = cuda_graphs_of(job_);
  if (job_.device.is_cuda()) {
    rules.make_graphs = [](at::Device device) {
      return cuda_plugin("cuda_graphs").make_graphs(device.index());
    };
  }
  return rules;
}

std::unique_ptr<Dataset> open_evaluation_data(const Run& run, const Model& model) {
  if (run.evaluation_data.empty()) return nullptr;
  auto data = open_dataset(run.evaluation_data, "evaluation");
  check_dataset_for_graph(*data, model.graph, run.evaluation_data);
  for (const Node& node : evaluation_graph(model.graph).nodes) {
    if (!draws_numbers(node, find_operator(node))) continue;
    throw InputError(
        "model '" + run.model + "' cannot be evaluated: " + label_of(node) +
            " would draw random numbers there too",
        "leave out --evaluation-data; or export a model that draws by dropout or stochastic depth only");
  }
  if (model.fixed_batch && data->size() < run.batch_size) {
    throw InputError("evaluation data '" + run.evaluation_data + "' has " + std::to_string(data->size()) +
                         " samples, and model '" + run.model + "' takes minibatches of " +
                         std::to_string(run.batch_size) + " only",
                     "give more evaluation data");
  }
  const int64_t rest = model.fixed_batch ? 0 : data->size() % run.batch_size;
  if (rest > 0 && rest < model.least_samples) {
    throw InputError(
        "evaluation data '" + run.evaluation_data + "' has " + std::to_string(data->size()) +
            " samples, in minibatches of " + std::to_string(run.batch_size) + " a rest of " +
            std::to_string(rest) + ", and model '" + run.model + "' was exported for at least " +
            std::to_string(model.least_samples),
        "Take another --batch-size or other evaluation data, or export again with a smaller least number of "
        "samples.");
  }
  return data;
}

}  // namespace pipewright
