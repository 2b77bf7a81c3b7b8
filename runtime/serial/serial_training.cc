#include "runtime/serial/serial_training.h"

#include <utility>

#include "graph/error.h"
#include "graph/sync_rules.h"
#include "models/definition/frozen.h"
#include "runtime/serial/lockstep_groups.h"
#include "runtime/serial/serial_groups.h"
#include "runtime/serial/serial_meetings.h"
#include "runtime/serial/serial_minibatches.h"
#include "runtime/serial/serial_waves.h"

namespace pipewright {
namespace {

// Between the pipelines of a part.
std::unique_ptr<SerialTies> ties_of(const PlanSpans& part, const TrainingRules& rules,
                                    const SerialPipelines& pipelines) {
  const size_t count = pipelines.size();
  const SyncKind kind = count > 1 ? sync_facts(rules.sync).kind : SyncKind::kAllReduce;
  const int64_t interval = pipelines[0]->stage(0).rule.round_length;
  if (kind == SyncKind::kHetPipe) return std::make_unique<SerialWaves>(part.plan, interval, rules, count);
  if (kind == SyncKind::kAdpsgd) return std::make_unique<SerialMeetings>(part.meetings);
  return std::make_unique<SerialGroups>(
      kind == SyncKind::kAdpsgdLockstep
          ? lockstep_groups(part.plan.stages.size(), static_cast<int64_t>(count), interval,
                            rules.random_seed(), part.spans)
          : part.groups,
      count);
}

// The pipelines of a plan: one, or, where replicas are not held together, one for each replica.
SerialPipelines pipelines_of(const Model& model, const Plan& plan, const TrainingRules& rules) {
  SerialPipelines pipelines;
  const size_t count = rules.sync == "all-reduce" ? 1 : plan.stages[0].ranks.size();
  for (size_t i = 0; i < count; ++i) {
    Plan own = plan;
    if (count > 1) {
      for (Stage& stage : own.stages) {
        stage.ranks = {stage.ranks.at(i)};
        stage.shares.clear();
      }
      own.microbatches = std::max<int64_t>(1, plan.microbatches / static_cast<int64_t>(count));
    }
    pipelines.push_back(std::make_unique<SerialPipeline>(model, own, rules, static_cast<int64_t>(i),
                                                         static_cast<int64_t>(count)));
  }
  return pipelines;
}

// As the part has them.
TrainingRules rules_of(const PlanSpans& part, TrainingRules rules) {
  rules.gradient_accumulation = part.gradient_accumulation.value_or(rules.gradient_accumulation);
  rules.optimizer.learning_rate *= part.learning_rate_scale;
  return rules;
}

}  // namespace

SerialTraining::SerialTraining(const Model& model, PlanSpans part, const TrainingRules& rules_of_run)
    : part_(std::move(part)),
      rules_(rules_of(part_, rules_of_run)),
      pipelines_(pipelines_of(frozen_model(model, part_.plan.frozen_layers), part_.plan, rules_)),
      ties_(ties_of(part_, rules_, pipelines_)) {}

void SerialTraining::restore(const std::function<std::optional<StageState>(size_t)>& start) {
  for (const auto& pipeline : pipelines_) pipeline->restore(start);
}

void SerialTraining::go_on_from(const SerialTraining& before) {
  for (const auto& pipeline : pipelines_) pipeline->go_on_from(before.pipelines_.front()->carried());
}

int64_t SerialTraining::train(Span span, const SerialHooks& hooks, std::optional<int64_t> began) {
  const bool in_turn = pipelines_.size() == 1 || !shares_minibatches(rules_.sync);
  const HandedOut handed_out =
      in_turn ? HandedOut() : handed_out_in(span, part_.minibatches, pipelines_.size());
  std::vector<int64_t> next;
  for (const auto& pipeline : pipelines_) {
    pipeline->begin(span, in_turn ? nullptr : &handed_out[next.size()], began);
    next.push_back(pipeline->span().first);
  }
  ties_->begin(pipelines_, span);
  std::map<int64_t, MinibatchFields> asked_for;
  int64_t ask_next = span.first;
  const auto look_at = [&](int64_t k) -> const MinibatchFields& {
    for (; ask_next <= k; ++ask_next) asked_for[ask_next] = hooks.fields(ask_next);
    return asked_for.at(k);
  };
  const SerialPerform perform = [&](ActionKind kind, int64_t k, const std::function<void()>& work) {
    if (hooks.perform) return hooks.perform(kind, k, work);
    work();
    return true;
  };
  // In any order in which each finds what it reads.
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t i = 0; i < pipelines_.size(); ++i) {
      SerialPipeline& pipeline = *pipelines_[i];
      std::optional<std::pair<int64_t, double>> trained;
      if (next[i] < pipeline.span().end() && pipeline.can_train(next[i])) {
        const int64_t own = next[i]++, k = pipeline.in_run(own);
        const auto fields_of = [&] {
          pipeline.count_labels(own, look_at);
          look_at(k);
          return asked_for.extract(k).mapped();
        };
        const auto loss = pipeline.train(own, fields_of, perform);
        if (!loss) return k;
        trained = {k, *loss};
        moves = true;
      }
      if (pipeline.has_due()) {
        perform(ActionKind::kUpdate, trained ? trained->first : span.end() - 1, [&] {
          for (size_t s = 0; s < pipeline.stage_count(); ++s) {
            while (pipeline.update(s)) {
              ties_->updated(pipelines_, i, s);
              moves = true;
            }
          }
        });
      }
      if (trained) hooks.trained(trained->first, trained->second);
    }
  }
  for (size_t i = 0; i < pipelines_.size(); ++i) {
    if (next[i] < pipelines_[i]->span().end() || !pipelines_[i]->is_done()) {
      throw InputError("pipeline " + std::to_string(i) + " waits for ever for its group before minibatch " +
                           std::to_string(next[i]) + " of its own",
                       "The groups cannot be those of this training.");
    }
  }
  ties_->end(pipelines_);
  return span.end();
}

void SerialTraining::drain() {
  for (const auto& pipeline : pipelines_) pipeline->end();
  if (pipelines_.size() > 1) average_drained(pipelines_);
}

std::map<int64_t, double> SerialTraining::take_gradient_norms() {
  std::map<int64_t, double> norms;
  for (const auto& pipeline : pipelines_) norms.merge(pipeline->take_gradient_norms());
  return norms;
}

// They end with the same weights.
ReferenceResult SerialTraining::result() const {
  ReferenceResult result = pipelines_.front()->result();
  for (size_t i = 1; i < pipelines_.size(); ++i) {
    const ReferenceResult other = pipelines_[i]->result();
    for (const auto& [name, weight] : other.weights)
      PW_CHECK(weight.equal(result.weights.at(name)), "pipelines end with another '" << name << "'");
    for (size_t s = 0; s < result.buffers.size(); ++s) result.buffers[s].push_back(other.buffers[s].at(0));
  }
  return result;
}

}  // namespace pipewright
