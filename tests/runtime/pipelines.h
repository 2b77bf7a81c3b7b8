// Small pipelines that really run, each rank a thread, and their comparison with the serial reference.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <functional>
#include <mutex>

#include "models/zoo/builder.h"
#include "runtime/data/sequences.h"
#include "runtime/schedule/check.h"
#include "runtime/schedule/plan_check.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/side_by_side.h"
#include "runtime/serial/reference.h"
#include "runtime/worker/worker.h"
#include "tests/support/spawn.h"

namespace pipewright::testing {

/// Cuts the nodes into `replicas.size()` parts of about equal numbers.
inline Plan plan_of(const Model& model, const std::vector<int64_t>& replicas,
                    const std::vector<int64_t>& depths) {
  Plan plan;
  plan.model = model.graph.name;
  plan.strategy = "manual";
  int64_t rank = 0;
  const size_t nodes = model.graph.nodes.size();
  for (size_t s = 0; s < replicas.size(); ++s) {
    Stage stage;
    for (size_t i = nodes * s / replicas.size(); i < nodes * (s + 1) / replicas.size(); ++i)
      stage.nodes.push_back(model.graph.nodes[i].name);
    for (int64_t q = 0; q < replicas[s]; ++q) stage.ranks.push_back(rank++);
    stage.in_flight = depths[s];
    plan.stages.push_back(std::move(stage));
  }
  plan.world_size = rank;
  return plan;
}

/// The schedule with its rule, and depths that go with it.
inline Plan with_schedule(Plan plan, const std::string& schedule, const std::string& weights,
                          int64_t microbatches = 1) {
  plan.schedule = schedule;
  plan.weights = weights;
  plan.microbatches = microbatches;
  if (weights == "flush") {
    for (Stage& stage : plan.stages)
      if (schedule == "gpipe") stage.in_flight = microbatches;
  }
  return plan;
}

/// Gives the stages of an interleaved plan their ranks: stage s those of stage s mod groups.
inline Plan interleaved_plan(const Model& model, size_t stages, size_t groups, int64_t replicas,
                             int64_t microbatches) {
  Plan plan =
      plan_of(model, std::vector<int64_t>(stages, replicas), std::vector<int64_t>(stages, microbatches));
  for (size_t s = groups; s < stages; ++s) plan.stages[s].ranks = plan.stages[s - groups].ranks;
  plan.world_size = static_cast<int64_t>(groups) * replicas;
  plan.schedule = "interleaved";
  plan.weights = "flush";
  plan.microbatches = microbatches;
  return plan;
}

/// The same, V-shaped: stage 2p - 1 - s has the ranks of stage s.
inline Plan v_shaped_plan(const Model& model, const std::string& schedule, size_t groups, int64_t replicas,
                          int64_t microbatches) {
  Plan plan = interleaved_plan(model, 2 * groups, groups, replicas, microbatches);
  for (size_t s = 0; s < groups; ++s) plan.stages[2 * groups - 1 - s].ranks = plan.stages[s].ranks;
  plan.schedule = schedule;
  for (Stage& stage : plan.stages) stage.in_flight = 64;
  return with_used_depths(plan);
}

/// Names the parameters that several stages read.
inline void tie(Plan& plan, const Graph& graph) {
  plan.tied_parameters.clear();
  for (const Parameter& parameter : graph.parameters) {
    TiedParameter tied{parameter.name, {}};
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      for (const Node& node : graph.nodes) {
        const auto& nodes = plan.stages[s].nodes;
        if (std::find(nodes.begin(), nodes.end(), node.name) == nodes.end()) continue;
        const auto reads = node.reads();
        if (std::find(reads.begin(), reads.end(), parameter.name) == reads.end()) continue;
        tied.stages.push_back(static_cast<int64_t>(s));
        break;
      }
    }
    if (tied.stages.size() > 1) plan.tied_parameters.push_back(std::move(tied));
  }
}

inline std::vector<MinibatchFields> random_minibatches(const Graph& graph, int64_t count, int64_t classes) {
  std::vector<MinibatchFields> minibatches;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(17);
  for (int64_t k = 0; k < count; ++k) {
    minibatches.emplace_back();
    for (const std::string& name : graph.inputs) {
      const TensorType& type = graph.values.at(name);
      minibatches.back()[name] =
          type.dtype == "int64" ? at::randint(classes, type.shape, generator, at::TensorOptions(at::kLong))
                                : at::randn(type.shape, generator, at::TensorOptions());
      // Unequal numbers of labels that ask something; all do in the first minibatch.
      if (name == "labels" && k > 0) minibatches.back()[name].flatten().narrow(0, 0, 1).fill_(kNoLabel);
    }
  }
  return minibatches;
}

struct PipelineRun {
  std::vector<double> losses;
  std::map<std::string, std::vector<at::Tensor>> weights;  ///< one entry for each replica and copy
  std::map<int64_t, double>
      gradient_norms;  ///< by the minibatch behind the round; all replicas said the same
  std::vector<std::vector<std::map<std::string, at::Tensor>>> buffers;       ///< by stage, replica
  std::vector<std::vector<int64_t>> peak_versions, peak_in_flight, updates;  ///< by stage, replica
};

/// WorkerHooks::fields of a worker, which is borrowed, as the minibatches are.
inline std::function<std::vector<at::Tensor>(int64_t, int64_t)> fields_from(
    const std::vector<MinibatchFields>& minibatches, const Worker& worker) {
  return [&](int64_t stage, int64_t k) {
    std::vector<at::Tensor> fields;
    for (size_t i = 0; i < worker.stage_count(); ++i) {
      if (worker.stage(i).stage() != stage) continue;
      for (const auto& name : worker.stage(i).program().fields())
        fields.push_back(minibatches[static_cast<size_t>(k)].at(name));
    }
    return fields;
  };
}

/// Likewise WorkerHooks::loss_fields.
inline std::function<std::vector<at::Tensor>(int64_t)> loss_fields_from(
    const std::vector<MinibatchFields>& minibatches, const Worker& worker) {
  return [&](int64_t k) {
    std::vector<at::Tensor> fields;
    for (const std::string& name : worker.loss_shares().fields())
      fields.push_back(minibatches[static_cast<size_t>(k)].at(name));
    return fields;
  };
}

/// Weights and buffers of a rank at its end. `run.buffers` has a place for each replica of each stage.
inline void add_state(const Worker& worker, PipelineRun& run) {
  for (size_t n = 0; n < worker.stage_count(); ++n) {
    const StageReplica& stage = worker.stage(n);
    for (size_t i = 0; i < stage.weights().size(); ++i)
      run.weights[stage.program().parameters()[i]].push_back(stage.weights()[i].detach());
    auto& buffers = run.buffers[static_cast<size_t>(stage.stage())][static_cast<size_t>(stage.replica())];
    for (size_t i = 0; i < stage.buffers().size(); ++i)
      buffers[stage.program().buffers()[i]] = stage.buffers()[i];
  }
}

/// Losses as workers tell them: of whole minibatches, or of the parts that the last stage's replicas have.
class LossParts {
 public:
  /// The minibatch's, once all its parts are there: their sum, in the order of the replicas.
  std::optional<double> add(const StageReplica& last, int64_t k, double loss) {
    if (!last.turns().splits()) return loss;
    auto& parts = parts_[k];
    parts[last.place()] = loss;
    if (static_cast<int64_t>(parts.size()) < last.turns().replicas()) return std::nullopt;
    double sum = 0;
    for (const auto& [place, part] : parts) sum += part;
    parts_.erase(k);
    return sum;
  }

 private:
  std::map<int64_t, std::map<int64_t, double>> parts_;
};

/// An observer of what a test says.
class Watch : public ActionObserver {
 public:
  explicit Watch(std::function<void(const Action&)> before, std::function<void(const Action&)> after = {})
      : before_(std::move(before)), after_(std::move(after)) {}
  void before(const Action& action) override {
    if (before_) before_(action);
  }
  void after(const Action& action, Clock::time_point, Clock::time_point) override {
    if (after_) after_(action);
  }

 private:
  std::function<void(const Action&)> before_, after_;
};

using BeforeAction = std::function<void(int64_t rank, const Action&)>;

/// What else a rank of a test does: before the first span, before each and after the last one, on its thread.
struct RankExtras {
  std::function<void(Worker&, WorkerHooks&)> prepare;
  std::function<void(Worker&)> finish;
  std::function<void(Worker&, size_t span)> before_span = {};
  std::optional<int64_t> began;                                      ///< of the only span (Worker::train)
  std::function<std::unique_ptr<Groups>(int64_t rank)> groups = {};  ///< for rules.sync that makes some
  /// For one under which pipelines share minibatches.
  std::function<std::unique_ptr<MinibatchSource>(int64_t rank)> minibatches = {};
};

/// Trains the spans with one thread a rank.
inline PipelineRun run_pipeline(const Model& model, const Plan& plan, const TrainingRules& rules,
                                const std::vector<Span>& spans,
                                const std::vector<MinibatchFields>& minibatches,
                                std::vector<std::unique_ptr<Transport>> world,
                                const BeforeAction& before = {}, const RankExtras& extras = {}) {
  plan.validate("test plan");
  check_plan_for_graph(plan, model.graph);
  PipelineRun run;
  run.losses.resize(minibatches.size());
  for (const Stage& stage : plan.stages) {
    run.buffers.emplace_back(stage.ranks.size());
    run.peak_versions.emplace_back(stage.ranks.size());
    run.peak_in_flight.emplace_back(stage.ranks.size());
    run.updates.emplace_back(stage.ranks.size());
  }
  std::mutex mutex;
  LossParts loss_parts;
  const auto train_rank = [&](int64_t rank, Transport* transport) {
    at::set_num_threads(1);
    const auto groups = extras.groups ? extras.groups(rank) : nullptr;
    const auto handed_out = extras.minibatches ? extras.minibatches(rank) : nullptr;
    Worker worker(model, plan, rank, transport, rules, nullptr, {groups.get(), handed_out.get()});
    WorkerHooks hooks;
    hooks.fields = fields_from(minibatches, worker);
    hooks.loss_fields = loss_fields_from(minibatches, worker);
    hooks.forward_done = [&](int64_t k, double loss, const std::vector<at::Tensor>&) {
      const std::lock_guard lock(mutex);
      if (const auto whole = loss_parts.add(worker.stage(worker.stage_count() - 1), k, loss))
        run.losses[static_cast<size_t>(k)] = *whole;
    };
    hooks.gradient_norm = [&](int64_t end, double norm) {
      const std::lock_guard lock(mutex);
      const auto [place, fresh] = run.gradient_norms.emplace(end, norm);
      if (!fresh && place->second != norm) throw std::runtime_error("replicas have different norms");
    };
    if (before) {
      hooks.observers.push_back(
          std::make_shared<Watch>([&, rank](const Action& action) { before(rank, action); }));
    }
    if (extras.prepare) extras.prepare(worker, hooks);
    for (size_t n = 0; n < spans.size(); ++n) {
      if (extras.before_span) extras.before_span(worker, n);
      worker.train(spans[n], hooks, extras.began);
    }
    if (extras.finish) extras.finish(worker);
    const std::lock_guard lock(mutex);
    add_state(worker, run);
    for (size_t n = 0; n < worker.stage_count(); ++n) {
      const StageReplica& stage = worker.stage(n);
      const auto s = static_cast<size_t>(stage.stage());
      const auto q = static_cast<size_t>(stage.replica());
      run.peak_versions[s][q] = stage.versions().peak_live();
      run.peak_in_flight[s][q] = stage.peak_in_flight();
      run.updates[s][q] = stage.versions().updates();
    }
  };
  if (plan.world_size == 1) {
    train_rank(0, nullptr);
  } else {
    spawn(std::move(world), [&](int64_t rank, Transport& transport) { train_rank(rank, &transport); });
  }
  return run;
}

/// Weights and buffers are the reference's, bit for bit.
inline void check_state(const PipelineRun& run, const ReferenceResult& expected) {
  for (const auto& [name, replicas] : run.weights) {
    for (const at::Tensor& weight : replicas) {
      INFO(name << " differs by " << (weight - expected.weights.at(name)).abs().max().item<double>());
      CHECK(weight.equal(expected.weights.at(name)));
    }
  }
  for (size_t s = 0; s < run.buffers.size(); ++s) {
    for (size_t q = 0; q < run.buffers[s].size(); ++q) {
      for (const auto& [name, buffer] : run.buffers[s][q]) {
        INFO(name << " at stage " << s << " replica " << q);
        CHECK(buffer.equal(expected.buffers[s][q].at(name)));
      }
    }
  }
}

/// Compares every weight, buffer and loss with the reference's, bit for bit, and what the ranks held with
/// what the dry run says.
inline void check_run(const Plan& plan, const TrainingRules& rules, const std::vector<Span>& spans,
                      const PipelineRun& run, const ReferenceResult& expected) {
  CAPTURE(plan.shape_text(), plan.schedule, plan.weights, plan.microbatches, rules.gradient_accumulation);
  CHECK(std::vector<double>(run.losses.begin() + spans[0].first, run.losses.end()) == expected.losses);
  CHECK(run.gradient_norms == expected.gradient_norms);
  check_state(run, expected);
  if (spans.size() != 1 || shares_minibatches(rules.sync)) return;
  std::vector<std::vector<int64_t>> updates(plan.stages.size());  // by stage, pipeline
  const int64_t pipelines = turn_of(plan, sync_facts(rules.sync), 0).count;
  for (int64_t i = 0; i < pipelines; ++i) {
    const PipelineTurn turn{i, pipelines};
    const PipelineShape shape = shape_of(pipeline_of(plan, turn), rules.gradient_accumulation);
    const auto theory = check_schedule(plan.schedule, shape, turn.own(spans[0]));
    CHECK(theory.problem == "");
    for (const RankCheck& rank : theory.ranks) {
      const auto s = static_cast<size_t>(rank.placement.stage);
      const auto q = static_cast<size_t>(pipelines > 1 ? i : rank.placement.replica);
      INFO("stage " << s << " replica " << q);
      const int64_t own = turn.own(spans[0]).count;
      CHECK(run.peak_versions[s][q] == (own > 0 ? rank.peak_versions : 1));
      CHECK(run.peak_in_flight[s][q] == rank.peak_in_flight);
      updates[s].push_back(rank.updates);
    }
  }
  for (size_t s = 0; s < updates.size(); ++s)  // a drain makes them equal
    for (const int64_t made : run.updates[s])
      CHECK(made == *std::max_element(updates[s].begin(), updates[s].end()));
}

/// Trains for real, and serially.
inline void compare(const Model& model, const Plan& plan, TrainingRules rules, const std::vector<Span>& spans,
                    std::vector<std::unique_ptr<Transport>> world, int64_t classes = 5,
                    const BeforeAction& before = {}, const RankExtras& extras = {}) {
  rules.total_minibatches = spans.back().end();
  const auto minibatches = random_minibatches(model.graph, spans.back().end(), classes);
  const ReferenceResult expected = train_serially(
      model, plan, rules, spans, [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
  const PipelineRun run =
      run_pipeline(model, plan, rules, spans, minibatches, std::move(world), before, extras);
  CHECK(run.weights.size() == model.graph.parameters.size());
  check_run(plan, rules, spans, run, expected);
}

inline OptimizerSettings momentum_sgd() {
  OptimizerSettings sgd;
  sgd.learning_rate = 0.05;
  sgd.momentum = 0.9;
  sgd.weight_decay = 1e-3;
  return sgd;
}

inline TrainingRules momentum_rules() {
  TrainingRules rules;
  rules.optimizer = momentum_sgd();
  rules.seed = 5;
  return rules;
}

}  // namespace pipewright::testing
