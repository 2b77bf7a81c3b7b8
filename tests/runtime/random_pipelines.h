// Jobs that a seed makes up: a model, a plan that goes with it, rules and spans. Over many seeds everything
// that a plan may say meets everything that a run may ask for.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "graph/delay_corrections.h"
#include "graph/sample_ranges.h"
#include "graph/update_rules.h"
#include "models/run/autocast.h"
#include "models/run/device_passes.h"
#include "models/zoo/builder.h"
#include "runtime/schedule/schedule.h"
#include "tests/runtime/pipelines.h"

namespace pipewright::testing {

struct RandomJob {
  Model model;
  Plan plan;
  TrainingRules rules;
  std::vector<Span> spans;
};

/// In bfloat16, with copies of the weights that are made once for each version ("weights-cast-once"). The
/// serial reference has none: there autocast casts a weight at every read.
inline void cast_weights_once(RandomJob& job, at::Device device = at::kCPU) {
  job.model.graph = with_device_passes(with_precision(job.model, "bfloat16", device), "weights-cast-once",
                                       "bfloat16", device);
}

class RandomJobs {
 public:
  explicit RandomJobs(uint64_t seed) : random_(seed) {}

  int64_t between(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  bool chance(int64_t percent) { return between(1, 100) <= percent; }
  template <typename T>
  const T& one_of(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(between(0, static_cast<int64_t>(choices.size()) - 1))];
  }

  /// Any rank takes any place: a plan need not count its ranks stage by stage.
  void renumber_ranks(Plan& plan) {
    std::vector<int64_t> number(static_cast<size_t>(plan.world_size));
    std::iota(number.begin(), number.end(), 0);
    std::shuffle(number.begin(), number.end(), random_);
    for (Stage& stage : plan.stages)
      for (int64_t& rank : stage.ranks) rank = number[static_cast<size_t>(rank)];
  }

  struct Kind {
    std::string schedule, weights;
    bool one_update_for_all() const { return weights == "flush" || weights == "2bw"; }
  };

  /// `most_ranks`: of the world.
  RandomJob next(int64_t most_ranks) {
    RandomJob job;
    const Kind kind = one_of<Kind>({{"1f1b", "stash"},
                                    {"1f1b", "stash"},
                                    {"1f1b", "vertical"},
                                    {"1f1b", "2bw"},
                                    {"1f1b", "paci"},
                                    {"1f1b", "paci"},
                                    {"1f1b", "predict"},
                                    {"1f1b", "predict"},
                                    {"model-parallel", "stash"},
                                    {"gpipe", "flush"},
                                    {"1f1b-flush", "flush"},
                                    {"interleaved", "flush"},
                                    {"zb-h1", "flush"}});
    job.model = model(kind.one_update_for_all());
    job.plan = plan(job.model, kind.schedule, kind.weights, most_ranks);
    if (kind.one_update_for_all()) tie(job.plan, job.model.graph);
    job.rules = rules(kind.weights);
    if (kind.one_update_for_all() && job.model.graph_for && chance(30)) job.rules.loss_average = "labels";
    deepen(job.plan, job.rules);
    int64_t begin = between(0, 3);
    for (int64_t n = between(1, 2); n > 0; --n) {
      job.spans.push_back({begin, between(1, 14)});
      begin = job.spans.back().end();
    }
    renumber_ranks(job.plan);
    return job;
  }

  /// One whose replicas are pipelines of their own, with rules.sync = `sync`.
  RandomJob next_side_by_side(const std::string& sync, int64_t most_ranks) {
    RandomJob job;
    do {
      job = next(most_ranks);
    } while (weight_rule_facts(job.plan.weights).in_place ||
             (schedule_facts(job.plan.schedule).several_stages ? job.plan.stages[0].ranks.size() == 1
                                                               : job.plan.world_size > most_ranks));
    job.rules.sync = sync;
    job.rules.optimizer.delay_correction = "none";
    job.rules.loss_average = "minibatches";
    if (!schedule_facts(job.plan.schedule).several_stages) {
      const auto stages = std::min<int64_t>(static_cast<int64_t>(job.plan.stages.size()), most_ranks / 2);
      const int64_t replicas = between(2, std::min<int64_t>(4, most_ranks / stages));
      const Plan drawn = job.plan;
      std::vector<int64_t> depths;
      for (int64_t s = 0; s < stages; ++s) depths.push_back(between(1, 5));
      job.plan = with_schedule(plan_of(job.model, std::vector<int64_t>(depths.size(), replicas), depths),
                               drawn.schedule, drawn.weights);
      if (weight_rule_facts(drawn.weights).one_update_for_all) tie(job.plan, job.model.graph);
      recompute(job.plan);
    }
    const auto replicas = static_cast<int64_t>(job.plan.stages[0].ranks.size());
    if (weight_rule_facts(job.plan.weights).one_update_for_all)
      job.plan.microbatches = replicas * between(1, 4);
    deepen(job.plan, job.rules);
    job.plan.microbatches = (job.plan.microbatches + replicas - 1) / replicas * replicas;
    if (!weight_rule_facts(job.plan.weights).one_update_for_all) job.plan.microbatches = 1;
    deepen(job.plan, job.rules);
    renumber_ranks(job.plan);
    return job;
  }

  /// Another plan that trains the same model by the same rules.
  Plan other_plan(const RandomJob& job, int64_t most_ranks) {
    const auto& parameters = job.model.graph.parameters;
    const bool shares = std::any_of(parameters.begin(), parameters.end(),
                                    [](const Parameter& p) { return p.name == "shared.weight"; });
    const bool own_rounds = job.rules.gradient_accumulation > 1 || job.rules.learning_rate_scaling != "none";
    std::vector<Kind> kinds;
    if (!shares && job.rules.loss_average != "labels")
      kinds = {{"1f1b", "stash"}, {"1f1b", "vertical"}, {"1f1b", "paci"}, {"model-parallel", "stash"}};
    if (!kinds.empty() && predicts(job.rules.optimizer)) kinds.push_back({"1f1b", "predict"});
    const std::vector<Kind> together = {{"1f1b", "2bw"},
                                        {"gpipe", "flush"},
                                        {"1f1b-flush", "flush"},
                                        {"interleaved", "flush"},
                                        {"zb-h1", "flush"}};
    if (!own_rounds) kinds.insert(kinds.end(), together.begin(), together.end());
    const DelayCorrectionFacts& correction = delay_correction_facts(job.rules.optimizer.delay_correction);
    if (correction.kind != DelayCorrectionKind::kNone) {
      std::erase_if(kinds, [&](const Kind& kind) {
        return kind.weights == std::string("flush") || weight_rule_facts(kind.weights).in_place ||
               correction.of_one_update != (kind.weights == std::string("2bw"));
      });
    }
    const Kind kind = one_of(kinds);
    Plan plan = this->plan(job.model, kind.schedule, kind.weights, most_ranks);
    if (kind.one_update_for_all()) tie(plan, job.model.graph);
    deepen(plan, job.rules);
    renumber_ranks(plan);
    return plan;
  }

 private:
  static bool predicts(const OptimizerSettings& optimizer) {
    const UpdateRuleFacts& rule = update_rule_facts(optimizer.name);
    return rule.predicts && !rule.slots(optimizer).empty();
  }

  // Depths, and intervals, that the schedule can do with.
  static void deepen(Plan& plan, const TrainingRules& rules) {
    if (plan.weights == "2bw") {
      // The interval must cover what the first stage runs ahead.
      const PipelineShape shape = shape_of(plan);
      const int64_t ahead = StageTurns(shape, 0).run_ahead(usable_in_flight(shape)[0]);
      plan.microbatches = std::max(plan.microbatches, ahead);
    }
    const PipelineShape shape = shape_of(plan, rules.gradient_accumulation);
    const std::vector<int64_t> depths = schedule_named(plan.schedule).depths(shape);
    for (size_t s = 0; s < depths.size(); ++s)
      plan.stages[s].in_flight = std::max(plan.stages[s].in_flight, depths[s]);
  }

  // Layers in a row with additions over any distance; with `tied`, several layers may share a weight. Half of
  // the models can be made for another number of samples.
  Model model(bool tied) {
    const uint64_t seed = random_();
    const int64_t samples = chance(50) ? between(2, 4) : between(4, 9);
    Model model = RandomJobs(seed).model_of(tied, samples);
    if (chance(70))
      model.graph_for = [=](int64_t other) { return RandomJobs(seed).model_of(tied, other).graph; };
    return model;
  }

  Model model_of(bool tied, int64_t samples) {
    ModelBuilder model("random", samples);
    const int64_t width = between(3, 9);
    std::string x = model.input("images", "float32", {width});
    std::string shared;
    if (tied && chance(60))
      shared = model.parameter("shared.weight", {width, width}, Initialiser::uniform(0.4));
    const bool norms = chance(50);
    std::vector<std::string> made = {x};
    const int64_t layers = between(6, 10);
    for (int64_t i = 0; i < layers; ++i) {
      const auto layer = model.layer("layer" + std::to_string(i));
      if (!shared.empty() && (i == 0 || chance(40))) {
        x = model.call("linear", "", {{"input", TensorArgument{x}}, {"weight", TensorArgument{shared}}},
                       {model.type(x)})[0];
      } else {
        x = model.linear(x, {.features = width, .bias = chance(70)});
      }
      if (norms && chance(50)) {
        const auto norm = model.layer("norm");
        x = chance(50) ? model.batch_norm(x) : model.layer_norm(x);
      }
      if (chance(70)) x = chance(50) ? model.relu(x) : model.gelu(x);
      if (chance(30)) x = model.dropout(x, 0.25);
      if (chance(40)) x = model.add(x, one_of(made));
      made.push_back(x);
    }
    const auto head = model.layer("head");
    return model.finish_classification(model.linear(x, {.features = 5}));
  }

  Plan plan(const Model& model, const std::string& schedule, const std::string& weights, int64_t most_ranks) {
    const bool several = schedule == "interleaved";
    const int64_t groups = several ? between(2, 3) : between(1, 6);
    std::vector<int64_t> replicas, depths;
    int64_t ranks = 0;
    for (int64_t s = 0; s < groups; ++s) {
      const int64_t room = most_ranks - ranks - (groups - s - 1);  // each further stage has one at least
      const bool like_first = s > 0 && weights == "vertical";
      replicas.push_back(std::clamp<int64_t>(like_first ? replicas[0] : between(1, 4), 1, room));
      if (like_first && replicas.back() != replicas[0]) {
        replicas.assign(replicas.size(), 1);
        ranks = s;
      }
      ranks += replicas.back();
      depths.push_back(between(1, 5));
    }
    const int64_t microbatches = between(1, 7);
    if (several) {
      const int64_t each = between(2, groups == 2 ? 3 : 2);
      Plan plan = interleaved_plan(model, static_cast<size_t>(groups * each), static_cast<size_t>(groups),
                                   std::min<int64_t>(replicas[0], most_ranks / groups), microbatches);
      recompute(plan);
      return plan;
    }
    Plan plan = with_schedule(plan_of(model, replicas, depths), schedule, weights, microbatches);
    recompute(plan);
    if (model.graph_for && chance(60)) {
      split(plan, model.graph, weights == "vertical");
    } else if (weights != "vertical" && chance(30)) {
      for (Stage& stage : plan.stages) {
        if (stage.ranks.size() == 1 || chance(40)) continue;
        for (size_t q = 0; q < stage.ranks.size(); ++q) stage.shares.push_back(between(1, 3));
      }
    }
    return plan;
  }

  // Lets replicas of some stages share each minibatch; of all or none where stages must update together.
  void split(Plan& plan, const Graph& graph, bool all) {
    const auto samples = static_cast<int64_t>(graph.values.at(graph.inputs[0]).shape[0]);
    const Plan turns = plan;
    bool has_turns = false;
    for (Stage& stage : plan.stages) {
      const bool mixes = std::any_of(stage.nodes.begin(), stage.nodes.end(), [&](const std::string& name) {
        return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
          return node.name == name && node.op == "aten::batch_norm";
        });
      });
      if (stage.ranks.size() == 1) continue;
      for (size_t q = 0; q < stage.ranks.size(); ++q) stage.split.push_back(between(1, 3));
      const auto ranges = sample_ranges(samples, stage.split);
      const bool fits =
          std::all_of(ranges.begin(), ranges.end(), [](const SampleRange& r) { return r.size() > 0; });
      if (mixes || !fits || (!all && chance(30))) stage.split.clear();
      has_turns = has_turns || stage.split.empty();
    }
    if (all && has_turns) plan = turns;
  }

  void recompute(Plan& plan) {
    for (Stage& stage : plan.stages) {
      stage.recompute = chance(35) && !weight_rule_facts(plan.weights).in_place;
      if (stage.recompute) stage.recompute_ratio = one_of<double>({1, 1, 0.2, 0.4, 0.5, 0.75});
    }
  }

  TrainingRules rules(const std::string& weights) {
    TrainingRules rules;
    rules.seed = static_cast<uint64_t>(between(0, 1000));
    rules.optimizer.name = one_of<std::string>({"sgd", "sgd", "adam", "adamw", "nadam", "lion", "muon", "adafactor"});
    rules.optimizer.learning_rate = rules.optimizer.name == "sgd" ? 0.05 : 0.01;
    if (rules.optimizer.name == "sgd" && chance(60)) rules.optimizer.momentum = 0.9;
    if (rules.optimizer.name == "muon") rules.optimizer.momentum = 0.95;
    if (weight_rule_facts(weights).predicts && !predicts(rules.optimizer)) {
      rules.optimizer.name = one_of<std::string>({"sgd", "adam", "adamw"});
      rules.optimizer.momentum = 0.9;
    }
    rules.optimizer.nesterov = rules.optimizer.momentum > 0 && chance(30);
    rules.optimizer.weight_decay = chance(50) ? 1e-3 : 0;
    if (chance(30)) rules.optimizer.no_decay = "bias|norm";
    if (weights != "flush" && !weight_rule_facts(weights).in_place && chance(50)) {
      rules.optimizer.delay_correction =
          weights == "2bw" ? one_of<std::string>({"error-feedback", "dc"}) : "pipemare-t1";
    }
    if (chance(30)) rules.optimizer.parameter_groups.push_back({"layer[0-4]|shared", 0.5, {}});
    if (chance(30)) rules.optimizer.parameter_groups.push_back({"head|[.]weight$", 3, 0.01});
    if (chance(50)) rules.optimizer.parameter_groups.push_back({"head|layer1", {}, {}, false});
    rules.gradient_clipping_norm = chance(25) ? 0.1 : 0;
    const bool own_rounds = !weight_rule_facts(weights).one_update_for_all;
    rules.gradient_accumulation = own_rounds ? one_of<int64_t>({1, 1, 2, 3}) : 1;
    rules.learning_rate_scaling = own_rounds && weights != "vertical" && chance(40) ? "pipedream" : "none";
    rules.learning_rate_policy.name =
        one_of<std::string>({"constant", "cosine", "exponential", "polynomial"});
    rules.learning_rate_policy.warmup_minibatches = chance(30) ? 4 : 0;
    rules.minibatches_per_epoch = 6;
    return rules;
  }

  std::mt19937_64 random_;
};

}  // namespace pipewright::testing
