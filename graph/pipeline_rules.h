// Schedules and weight rules by name, and what is known of each: the only table of these facts. Everything
// else asks the table; nothing compares names. What a schedule does, action by action, is
// runtime/schedule/schedule.h.
//
// Where the younger rules come from, and what was taken where their authors leave something open:
//
// paci   Elam et al. 2026 (arXiv 2606.07881): one version of the weights, which updates change under
//        minibatches in flight; a stage accumulates gradients, so that its versions advance slowly against
//        the pipeline's delay. The paper's equations were not at hand; its abstract and its authors' program
//        (github.com/ItayElam/PACI) were. There every stage steps after `a` backwards, the same `a` at all
//        stages, with the mean of their gradients, and stage s of p has at most p - s minibatches in flight,
//        so that one of them crosses at most ceil((p - s - 1) / a) updates. Taken here: at most one, at every
//        stage; the run's gradient_accumulation is their `a`, and a stage that runs further ahead than that
//        many minibatches doubles it until it does not (doubles, so that rounds of all stages end together
//        every few minibatches: checkpoints and stops wait for that). With gradient_accumulation of at least
//        the depth all stages step as theirs do. A backward reads the weights' own memory as it is then, and
//        what the forward has made of weights and activations as that left it, as autograd does.
//
// predict   Guan et al., PipeOptim (arXiv 2312.00839): a forward runs with w - rate * s * d, s the updates up
//        to its backward, d what the update rule makes of its memory, and the backward with the weights that
//        there are then: two versions, one of them only while a forward runs. The formula is that of its
//        authors' program (github.com/guanleics/PipeOptim); the papers' text was not at hand. d is the
//        velocity of sgd with momentum (SpecTrain's form, Chen et al., arXiv 1809.02839), and m / (1 -
//        beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) of adam and adamw (XPipe's, Guan et al., arXiv
//        1911.04610): the optimizer chooses the form, so there is no option. Taken here: s is the very number
//        (theirs is one for a stage, p - s - 1 by the description and one more in the program, also while the
//        pipeline fills); the rate is that of the update that the minibatch is part of; decay is not
//        predicted, as in their program, nor is the gradient of the round under way, which their program
//        reads for sgd. SpecTrain's backwards predict too, and XPipe's minibatches of one update share a
//        prediction: neither was taken.
#pragma once

#include <string>
#include <vector>

namespace pipewright {

/// Which weights a forward reads, and which minibatches make one update (docs/semantics.md).
enum class WeightRule {
  kStash,        ///< "stash": the latest there are; each stage on its own
  kVertical,     ///< "vertical": at every stage as many updates as the first that is trained had made
  kTwoVersions,  ///< "2bw": those of the update before the last interval's
  kFlush,        ///< "flush": all updates of the intervals before
  kPaci,         ///< "paci": the one version there is, which a minibatch sees change once at most
  kPredict,      ///< "predict": what the latest are expected to be when the backward comes
};

/// How many minibatches behind the updates of its stage a forward reads: the whole difference between the
/// rules (runtime/schedule/versions.h has the formula).
enum class WeightLag {
  kOwnStage,    ///< as many as the stage runs ahead of its backwards: the latest weights there are
  kFirstStage,  ///< as many as the first trained stage runs ahead
  kInterval,    ///< one update interval
  kNone,        ///< none: the pipeline is empty at every update
};

struct WeightRuleFacts {
  WeightRule rule;
  const char* name;
  WeightLag lag;
  /// All stages update together, every `microbatches` minibatches; otherwise each after a turn of its own
  /// replicas.
  bool one_update_for_all;
  const char* summary;
  /// There is one version: updates change it under minibatches in flight, and a backward reads the latest
  /// weights, not those that its forward read.
  bool in_place = false;
  /// In place: a stage accumulates gradients until no minibatch crosses more than one update between its
  /// forward and its backward.
  bool bounds_crossing = false;
  /// In place: a forward reads what the weights are expected to be at its backward, made of the latest. Wants
  /// an update rule that says so (check_prediction() of graph/update_rules.h).
  bool predicts = false;

  bool drains() const { return lag == WeightLag::kNone; }
  bool reads_latest() const { return lag == WeightLag::kNone || lag == WeightLag::kOwnStage; }
  /// Stages count updates by the first stage's, so each must make as many.
  bool needs_equal_turns() const { return lag == WeightLag::kFirstStage && !one_update_for_all; }
};
const std::vector<WeightRuleFacts>& weight_rules();
const WeightRuleFacts& facts_of(WeightRule rule);
/// InputError with the nearest name.
WeightRule weight_rule_named(const std::string& name);
inline const WeightRuleFacts& weight_rule_facts(const std::string& name) {
  return facts_of(weight_rule_named(name));
}
inline const char* to_text(WeightRule rule) { return facts_of(rule).name; }
std::vector<std::string> weight_rule_names();

enum class ScheduleKind {
  k1F1B,
  kModelParallel,
  kGpipe,
  k1F1BFlush,
  kInterleaved,
  kZbH1,
  kZbV,
  kDualPipeV,
  kCustom,
  kForward
};

/// Who says how many minibatches a stage has in flight.
enum class DepthChoice {
  kSearched,    ///< a planner: more costs memory and may be faster
  kAsTheFirst,  ///< the memory of the first stage: a stage holds as much as that one
  kGiven,       ///< the schedule itself
};

struct ScheduleFacts {
  ScheduleKind kind = ScheduleKind::kForward;
  const char* name = "";
  std::vector<WeightRule> weights = {};  ///< that go with it, the usual one first; none: it does not train
  bool several_stages = false;           ///< on one rank
  bool v_shaped = false;                 ///< rank r of p has stages r and 2p - 1 - r; else r, r + p, ...
  bool splits_backward = false;          ///< gradients of a stage's inputs first, those of its weights later
  bool holds_interval = false;           ///< all minibatches of an update interval are in flight at once
  DepthChoice depth = DepthChoice::kGiven;
  const char* summary = "";

  bool trains() const { return !weights.empty(); }
  bool goes_with(WeightRule rule) const;
  /// It drains at every update, whatever the rule.
  bool drains() const { return weights == std::vector<WeightRule>{WeightRule::kFlush}; }
};
const std::vector<ScheduleFacts>& schedule_table();
/// InputError with the nearest name.
const ScheduleFacts& schedule_facts(const std::string& name);
/// Null for a name that is not known.
const ScheduleFacts* find_schedule(const std::string& name);

}  // namespace pipewright
