#include "runtime/serial/reference.h"

#include <algorithm>
#include <utility>

#include "graph/error.h"
#include "graph/sync_rules.h"
#include "models/definition/frozen.h"
#include "runtime/serial/lockstep_groups.h"
#include "runtime/serial/serial_groups.h"
#include "runtime/serial/serial_meetings.h"
#include "runtime/serial/serial_minibatches.h"
#include "runtime/serial/serial_pipeline.h"
#include "runtime/serial/serial_waves.h"

namespace pipewright {
namespace {

// Trains a span, one minibatch or update after the other, in any order in which each finds what it reads.
std::vector<double> train_span(SerialPipelines& pipelines, SerialTies& ties, Span span,
                               const HandedOut* handed_out,
                               const std::function<MinibatchFields(int64_t)>& fields) {
  std::vector<double> losses(static_cast<size_t>(span.count));
  std::map<int64_t, MinibatchFields> asked_for;
  int64_t ask_next = span.first;
  const auto look_at = [&](int64_t k) -> const MinibatchFields& {
    for (; ask_next <= k; ++ask_next) asked_for[ask_next] = fields(ask_next);
    return asked_for.at(k);
  };
  const auto fields_of = [&](int64_t k) {
    look_at(k);
    return asked_for.extract(k).mapped();
  };
  std::vector<int64_t> next;
  for (const auto& pipeline : pipelines) {
    pipeline->begin(span, handed_out ? &handed_out->at(next.size()) : nullptr);
    next.push_back(pipeline->span().first);
  }
  ties.begin(pipelines, span);
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t i = 0; i < pipelines.size(); ++i) {
      SerialPipeline& pipeline = *pipelines[i];
      if (next[i] < pipeline.span().end() && pipeline.can_train(next[i])) {
        const int64_t own = next[i]++, k = pipeline.in_run(own);
        pipeline.count_labels(own, look_at);
        losses[static_cast<size_t>(k - span.first)] = pipeline.train(own, fields_of(k));
        moves = true;
      }
      for (size_t s = 0; s < pipeline.stage_count(); ++s) {
        while (pipeline.update(s)) {
          ties.updated(pipelines, i, s);
          moves = true;
        }
      }
    }
  }
  for (size_t i = 0; i < pipelines.size(); ++i) {
    if (next[i] < pipelines[i]->span().end() || !pipelines[i]->is_done()) {
      throw InputError("pipeline " + std::to_string(i) + " waits for ever for its group before minibatch " +
                           std::to_string(next[i]) + " of its own",
                       "The groups cannot be those of this training.");
    }
  }
  ties.end(pipelines);
  return losses;
}

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

// What all pipelines have trained: they end with the same weights.
ReferenceResult result_of(const SerialPipelines& pipelines) {
  ReferenceResult result = pipelines.front()->result();
  for (size_t i = 1; i < pipelines.size(); ++i) {
    const ReferenceResult other = pipelines[i]->result();
    for (const auto& [name, weight] : other.weights)
      PW_CHECK(weight.equal(result.weights.at(name)), "pipelines end with another '" << name << "'");
    for (size_t s = 0; s < result.buffers.size(); ++s) result.buffers[s].push_back(other.buffers[s].at(0));
  }
  return result;
}

}  // namespace

ReferenceResult train_serially(const Model& model, const Plan& plan, const TrainingRules& rules,
                               const std::vector<Span>& spans,
                               const std::function<MinibatchFields(int64_t)>& fields,
                               const std::function<std::optional<StageState>(size_t)>& start) {
  return train_serially(model, {{plan, spans}}, rules, fields, start);
}

ReferenceResult train_serially(const Model& model, const std::vector<PlanSpans>& parts,
                               const TrainingRules& rules_of_run,
                               const std::function<MinibatchFields(int64_t)>& fields,
                               const std::function<std::optional<StageState>(size_t)>& start) {
  std::vector<double> losses;
  SerialPipelines pipelines;
  std::map<int64_t, double> norms;
  for (const PlanSpans& part : parts) {
    TrainingRules rules = rules_of_run;
    rules.gradient_accumulation = part.gradient_accumulation.value_or(rules.gradient_accumulation);
    rules.optimizer.learning_rate *= part.learning_rate_scale;
    auto next = pipelines_of(frozen_model(model, part.plan.frozen_layers), part.plan, rules);
    for (const auto& pipeline : next) {
      if (!pipelines.empty()) {
        pipeline->go_on_from(pipelines.front()->carried());
      } else if (start) {
        pipeline->restore(start);
      }
    }
    pipelines = std::move(next);
    const auto count = static_cast<int64_t>(pipelines.size());
    const auto ties = ties_of(part, rules, pipelines);
    for (const Span& span : part.spans) {
      const bool in_turn = count == 1 || !shares_minibatches(rules.sync);
      const HandedOut handed_out =
          in_turn ? HandedOut() : handed_out_in(span, part.minibatches, pipelines.size());
      const std::vector<double> of_span =
          train_span(pipelines, *ties, span, in_turn ? nullptr : &handed_out, fields);
      losses.insert(losses.end(), of_span.begin(), of_span.end());
      for (const auto& pipeline : pipelines) pipeline->end();
      if (count > 1) average_drained(pipelines);
      for (const auto& pipeline : pipelines) norms.merge(pipeline->take_gradient_norms());
    }
  }
  PW_CHECK(!pipelines.empty(), "no plan");
  ReferenceResult result = result_of(pipelines);
  result.losses = std::move(losses);
  result.gradient_norms = std::move(norms);
  return result;
}

}  // namespace pipewright
