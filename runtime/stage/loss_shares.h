// What a part of a minibatch counts in its loss, and a minibatch in that of an update (docs/semantics.md,
// "What a loss divides by"): by what the loss divides by, which is known from the fields alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/sample_ranges.h"
#include "models/definition/model.h"
#include "models/run/batch_relation.h"

namespace pipewright {

class Segment;
struct BatchAnalysis;

using LossFields = std::map<std::string, at::Tensor>;

class LossShares {
 public:
  /// `model`, frozen as the plan says it is, and `plan`, which fits it. Counts something where the last stage
  /// splits minibatches, or `average` is "labels" (UpdateSettings::loss_average). PlanError, naming the node,
  /// where a loss is no sum or mean of terms of one sample each, where it divides by what the last stage's
  /// fields do not tell, and where stages do not make their updates from the same minibatches.
  LossShares(const Model& model, const Plan& plan, const std::string& average, int64_t gradient_accumulation);
  ~LossShares();

  /// The loss of a minibatch counts in its update by what it divides by.
  bool by_labels() const { return by_labels_; }
  /// "samples", "labels that are not -100": what the loss divides by; "" where it is a sum, or nothing is
  /// counted.
  const std::string& divisor() const { return divisor_; }
  /// Several numbers are divided by it. Where it is 0, a loss that is 0 / 0 may have lost another's terms.
  bool divides_several() const { return divides_several_; }
  /// Inputs of the graph that count() reads.
  const std::vector<std::string>& fields() const { return fields_; }
  /// Parameters and buffers, all of the last stage, that it reads; none of them ever changes.
  const std::vector<std::string>& tables() const { return tables_; }

  /// What the loss of samples `part` of a minibatch divides by. `minibatch`: fields(), of all samples, and
  /// tables(), on the CPU.
  double count(const LossFields& minibatch, SampleRange part) const;
  double count(const LossFields& minibatch) const { return count(minibatch, {0, samples_}); }
  /// What the loss of the part counts in that of the minibatch: 1 of all samples. No number where the
  /// minibatch's is none: it divides by 0.
  double share(const LossFields& minibatch, SampleRange part) const;

 private:
  void look_at_loss(const Model& model, const Plan& plan, bool splits);
  void check_divisors_add_up(const BatchAnalysis& found) const;
  void check_rounds(const Plan& plan, int64_t gradient_accumulation) const;
  void find_what_counts(const Graph& graph, const Plan& plan);

  int64_t samples_ = 0;
  bool counts_ = false, by_labels_ = false, divides_several_ = false;
  BatchRelation loss_;
  std::string divisor_;
  std::vector<std::string> fields_, tables_, values_;
  std::map<std::string, int64_t> dimensions_;                   // of fields: which one counts samples
  std::map<int64_t, std::unique_ptr<const Segment>> segments_;  // by number of samples
};

}  // namespace pipewright
