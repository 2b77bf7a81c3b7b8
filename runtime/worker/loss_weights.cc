#include "runtime/worker/loss_weights.h"

#include <algorithm>
#include <cmath>

#include "graph/error.h"

namespace pipewright {

LossWeights::LossWeights(const LossShares& shares, Span span,
                         std::function<std::vector<at::Tensor>(int64_t)> fields)
    : shares_(shares), span_(span), fields_(std::move(fields)) {}

LossWeight LossWeights::of(const StageReplica& stage, const std::vector<at::Tensor>& fields, int64_t k) {
  const bool splits = stage.turns().splits();
  if (!splits && !shares_.by_labels()) return {};
  LossFields minibatch;
  if (shares_.by_labels()) {
    minibatch = minibatch_of(stage, k);
  } else {
    minibatch = tables_of(stage);
    const std::vector<std::string>& names = stage.running().fields();
    for (const std::string& name : shares_.fields()) {
      const auto found = std::find(names.begin(), names.end(), name);
      minibatch[name] = fields.at(static_cast<size_t>(found - names.begin())).cpu();
    }
  }
  LossWeight weight;
  if (splits) weight.in_minibatch = weight.gradient = shares_.share(minibatch, stage.samples());
  if (shares_.by_labels()) {
    const int64_t round = stage.turns().round_of(k);
    const double count = shares_.count(minibatch, stage.samples());
    const auto size = static_cast<double>(stage.turns().round_size(round, span_));
    weight.gradient = size * (count / count_of_round(stage, round));
    if (weight.gradient == 0) weight.in_minibatch = 0;  // its own loss is 0 / 0
  }
  return weight;
}

const LossFields& LossWeights::tables_of(const StageReplica& stage) {
  for (const std::string& name : shares_.tables()) {
    if (tables_.count(name) > 0) continue;
    const auto table = tensor_named(stage, name);
    PW_CHECK(table, "'" << name << "' is not of stage " << stage.stage());
    tables_[name] = *table;
  }
  return tables_;
}

LossFields LossWeights::minibatch_of(const StageReplica& stage, int64_t k) {
  LossFields minibatch = tables_of(stage);
  const auto fields = fields_(k);
  for (size_t i = 0; i < fields.size(); ++i) minibatch[shares_.fields()[i]] = fields[i];
  return minibatch;
}

std::optional<at::Tensor> tensor_named(const StageReplica& stage, const std::string& name) {
  const auto in = [&](const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors) {
    const auto found = std::find(names.begin(), names.end(), name);
    return found == names.end()
               ? std::nullopt
               : std::optional(tensors.at(static_cast<size_t>(found - names.begin())).detach().cpu());
  };
  const auto parameter = in(stage.program().parameters(), stage.weights());
  return parameter ? parameter : in(stage.program().buffers(), stage.buffers());
}

void check_counts_nothing(int64_t k, const at::Tensor& loss, bool divides_several) {
  if (!std::isinf(loss.item<double>()) && !divides_several) return;
  throw RunError("minibatch " + std::to_string(k) +
                     ": what the loss divides by is 0 in this rank's part of the samples, and what it "
                     "divides is not, so the loss of all samples cannot be told from those of the parts",
                 "Keep the divisor off 0 in the model, as `/ count.clamp(min=1)` does; or let no part be "
                 "computed apart: no `split` in the last stage, no --loss-average labels.");
}

// Over all of its minibatches, whichever replica has them.
double LossWeights::count_of_round(const StageReplica& stage, int64_t round) {
  if (counted_round_ != round) {
    counted_round_ = round;
    labels_of_round_ = 0;
    const int64_t begin = stage.turns().round_begin(round, span_);
    for (int64_t k = begin; k < begin + stage.turns().round_size(round, span_); ++k)
      labels_of_round_ += shares_.count(minibatch_of(stage, k));
  }
  return labels_of_round_;
}

}  // namespace pipewright
