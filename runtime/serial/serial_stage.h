// A stage of the reference: all its replicas at once, every version of its weights that is still read, and
// the gradients of the round under way.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "graph/plan.h"
#include "graph/sample_ranges.h"
#include "models/definition/model.h"
#include "models/run/interpreter.h"
#include "runtime/serial/serial_versions.h"
#include "runtime/stage/partition.h"
#include "runtime/stage/stage_replica.h"
#include "runtime/update/update_rule.h"

namespace pipewright {

using Tensors = std::vector<at::Tensor>;

struct SerialStage {
  /// Stage `number` of the plan. Starts from the initialisers of the model.
  SerialStage(const Model& model, const StageInterface& interface, const Plan& plan, size_t number,
              const SerialRule& rule, const TrainingRules& rules);
  /// Goes on from a copy of `state`, with every replica's buffers as it says.
  void restore(const StageState& state);
  /// Replica `q` goes on with a copy of them.
  void set_buffers(size_t q, const Tensors& values);
  /// What minibatches [k, end) of the span depend on, of which none has been trained and all before have: of
  /// replica `q`. Tensors are shared, and nothing of them changes; buffers are copies.
  StageState state_before(int64_t k, int64_t end, size_t q) const;

  /// A replica's part of a minibatch.
  struct Part {
    size_t replica = 0;
    SampleRange samples;
    const Segment* segment = nullptr;
  };
  /// Who takes part in minibatch k, by ascending samples.
  std::vector<Part> parts_of(int64_t k) const;

  /// A span begins with minibatches [first, end), and the pipeline was last empty before minibatch `began`:
  /// the first, or an earlier one, whose versions are there. `first` then begins a round. `rate_of`: the rate
  /// of the update that a minibatch is part of.
  void begin(int64_t first, int64_t end, int64_t began, std::function<double(int64_t)> rate_of);
  size_t replica_of(int64_t k) const {
    return cycle[static_cast<size_t>(k % static_cast<int64_t>(cycle.size()))];
  }
  /// The number of the version that minibatch k of the span reads; it may be still to come.
  int64_t version_of(int64_t k) const { return version_behind(k, rule.lag); }
  /// The number of the version that its backward finds where the forward's was; it may be still to come.
  int64_t backward_version_of(int64_t k) const { return version_behind(k, rule.backward_lag); }
  /// What the forward of minibatch k reads: the version itself, or copies of the trainable ones that its
  /// backward reads in another version.
  Tensors weights_of(int64_t k) const;
  /// Copies that weights_of(k) has given become what the backward reads.
  void turn_back(int64_t k, const Tensors& weights) const;
  /// The most versions that there are at a time, beside the latest: what is read between two updates, and one
  /// that a step makes meanwhile; and what a backward reads that is none of them.
  int64_t further_versions() const {
    return (rule.predicts ? 2 : 1) * ((rule.lag + rule.round_length - 1) / rule.round_length) +
           (rule.lag != rule.backward_lag ? 1 : 0);
  }
  int64_t latest_version() const { return versions.rbegin()->first; }
  const Tensors& latest() const { return versions.rbegin()->second; }
  /// Copies of the latest trainable ones, and others in their place.
  Tensors trained() const;
  void set_trained(const Tensors& weights);
  /// The trainable ones of a version.
  Tensors leaves(const Tensors& version) const;
  const std::string& trainable_name(size_t i) const { return segment.parameters()[trainable[i]]; }
  /// Forgets the versions that nobody reads from minibatch k on.
  void forget_before(int64_t k);

  /// The gradients of the minibatches [begin, end), of all replicas: their mean goes to `gradient`.
  void end_round(int64_t begin, int64_t end);
  /// A new version: the latest, stepped with `gradient`, which is `delay` updates old, at the learning rate.
  /// Forgets what nobody reads from minibatch `next` on, which comes next.
  void update(const Tensors& gradient, double rate, int64_t delay, int64_t next);
  /// Of the last update: the last trainable parameter whose gradient held a number that is not finite.
  std::optional<size_t> not_finite() const;
  /// The drained replicas' floating buffers become their mean.
  void average_buffers();

  StageInterface interface;
  std::vector<size_t> cycle;  ///< replica by place in the cycle
  SerialRule rule;
  Segment segment;                  ///< for whole minibatches
  int64_t samples = 0;              ///< of one
  std::vector<SampleRange> ranges;  ///< by replica, where the replicas share each minibatch; else empty
  std::vector<Segment> segments_of_parts;  ///< likewise
  std::vector<size_t> trainable;           ///< positions in the segment's parameters
  int64_t first_minibatch = 0;             ///< before which the pipeline was last empty
  int64_t first_version = 0;               ///< there
  std::map<int64_t, Tensors> versions;     ///< by number of updates
  std::vector<Tensors> buffers;            ///< by replica
  std::set<std::string> frozen_buffers;    ///< of the whole model: they are no means
  bool averages(size_t b) const {
    return buffers[0][b].is_floating_point() && frozen_buffers.count(segment.buffers()[b]) == 0;
  }
  int64_t version_behind(int64_t k, int64_t lag) const;
  /// The first minibatch of the span that reads the same prediction as minibatch k.
  int64_t first_reader(int64_t k) const;
  bool is_predicted(int64_t k) const { return rule.predicts && backward_version_of(k) > version_of(k); }
  /// Of the latest version, for minibatches from `next` on.
  void predict(int64_t next);
  int64_t span_first = 0, span_end = 0;
  std::function<double(int64_t)> rate_of;
  std::map<int64_t, Tensors> predictions;  ///< of the trainable weights, by first reader
  /// Adds a minibatch's gradients to the round's of the replica.
  void add_to_round(size_t replica, Tensors gradients);
  /// Gradients of the round of a replica. What autograd has made may be shared: sums are changed in place.
  struct RoundSum {
    Tensors gradients;
    bool is_sum = false;
  };
  std::vector<RoundSum> sums;  ///< by replica
  Tensors gradient;            ///< of the round that has ended, until it is due
  struct Due {
    int64_t begin = 0;  ///< the first minibatch of the round within the span
    int64_t end = 0;    ///< behind its last one
    Tensors gradient;
  };
  std::deque<Due> due;        ///< updates that have not been made yet
  Tensors spare;              ///< memory of a version that was forgotten, by trainable parameter; or none
  bool awaits_group = false;  ///< the latest version is not what it will be when its group has averaged it
  OptimizerSettings optimizer;
  std::vector<std::unique_ptr<UpdateRule>> rules;  ///< by trainable parameter
  std::vector<double> rate_scales;                 ///< likewise
};

}  // namespace pipewright
