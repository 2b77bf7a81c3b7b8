// Training on a device against training on the CPU.
#pragma once

#include "models/load.h"
#include "models/run/autocast.h"
#include "runtime/stage/partition.h"
#include "runtime/transport/copy_engine.h"
#include "runtime/transport/staged.h"
#include "runtime/verify/rounding.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/random_pipelines.h"

namespace pipewright::testing {

// Largest difference between two lists of tensors, relative to the larger of 1 and the numbers themselves.
inline double distance(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor a = one.detach().cpu().to(at::kDouble), b = other.detach().cpu().to(at::kDouble);
  return ((a - b).abs() / b.abs().clamp_min(1)).max().item<double>();
}

/// How tensors of a device go from rank to rank: through memory of the host that it reaches; handed over; or
/// (the stand-in device's only) through blocks of its own.
enum class Way { kStaged, kHandedOver, kBlocks };

/// Ranks as threads. Messages of several tensors are packed, as between ranks of a job.
inline std::vector<std::unique_ptr<Transport>> make_device_world(at::Device device, int64_t size,
                                                                 Way way = Way::kStaged) {
  if (way == Way::kHandedOver) return make_world("local", size);
  std::vector<std::unique_ptr<Transport>> world;
  for (auto& own : make_world("local", size)) {
    const std::shared_ptr<Transport> host = std::move(own);
    auto between = way == Way::kStaged ? make_staged_transport(host, make_copy_engine(device))
                                       : make_block_transport(host, std::make_unique<LateBlocks>());
    world.push_back(make_device_routed_transport(
        host, std::move(between), std::vector<bool>(static_cast<size_t>(size), true), Packer()));
  }
  return world;
}

/// How far numbers of the serial program may lie apart that differ by rounding only.
struct Rounding {
  double weights = 0;
  std::vector<double> losses;  ///< by minibatch: of it and those before it
};
inline Rounding rounding_of(const RandomJob& job, const TrainingRules& rules, const ReferenceResult& expected,
                            const std::function<MinibatchFields(int64_t)>& fields) {
  const auto interfaces = partition(job.model.graph, job.plan);
  const ReferenceResult shifted = train_serially(
      job.model, job.plan, rules, job.spans, fields, [&](size_t s) -> std::optional<StageState> {
        const StageProgram stage(job.model.graph, interfaces, s);
        StageState state = initial_state(job.model, stage, rules.seed);
        shift_by_rounding(stage, state);
        return state;
      });
  Rounding rounding;
  for (const auto& [name, weight] : expected.weights)
    rounding.weights = std::max(rounding.weights, distance(shifted.weights.at(name), weight));
  double largest = 0;
  for (size_t k = 0; k < expected.losses.size(); ++k) {
    largest = std::max(largest, std::abs(shifted.losses[k] / expected.losses[k] - 1));
    rounding.losses.push_back(largest);
  }
  return rounding;
}

/// Trains on the device and compares with the serial program on the CPU. The steps' operators round
/// elsewhere (runtime/update/device_step.h), so equality is up to `tolerance`, or thirty times what rounding
/// does in the serial program where training enlarges it more (large rates, few samples in a batch norm;
/// there it is rounded otherwise once, here at every step), but never more than a hundredth: from where
/// rounding makes more of it nothing is said. False if that came before the end.
inline bool compare_on_device(const RandomJob& job, at::Device device, double tolerance,
                              Way way = Way::kStaged) {
  TrainingRules rules = job.rules;
  rules.total_minibatches = job.spans.back().end();
  const auto minibatches = random_minibatches(job.model.graph, rules.total_minibatches, 5);
  const auto fields = [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; };
  const ReferenceResult expected = train_serially(job.model, job.plan, rules, job.spans, fields);
  const Rounding rounding = rounding_of(job, rules, expected, fields);
  const auto says_something = [](double rounded) { return 30 * rounded <= 1e-2; };
  const auto allowed = [&](double rounded) { return std::max(tolerance, 30 * rounded); };
  rules.device = device;
  const auto world = [&] {
    return job.plan.world_size == 1 ? std::vector<std::unique_ptr<Transport>>()
                                    : make_device_world(device, job.plan.world_size, way);
  };
  const PipelineRun run = run_pipeline(job.model, job.plan, rules, job.spans, minibatches, world());
  CAPTURE(job.plan.shape_text(), job.plan.schedule, job.plan.weights, job.rules.optimizer.name);
  for (size_t k = 0; k < expected.losses.size() && says_something(rounding.losses[k]); ++k) {
    CAPTURE(k);
    const auto here = static_cast<size_t>(job.spans[0].first) + k;
    CHECK(run.losses[here] == Approx(expected.losses[k]).epsilon(allowed(rounding.losses[k])));
  }
  const bool to_the_end = says_something(std::max(rounding.weights, rounding.losses.back()));
  for (const auto& [name, replicas] : run.weights) {
    for (const at::Tensor& weight : replicas) {
      INFO(name);
      CHECK(weight.device() == device);
      if (to_the_end) CHECK(distance(weight, expected.weights.at(name)) < allowed(rounding.weights));
      CHECK(weight.cpu().equal(replicas[0].cpu()));
    }
  }
  for (size_t s = 0; to_the_end && s < run.buffers.size(); ++s) {
    for (size_t q = 0; q < run.buffers[s].size(); ++q) {
      for (const auto& [name, buffer] : run.buffers[s][q])
        CHECK(distance(buffer, expected.buffers[s][q].at(name)) < allowed(rounding.weights));
    }
  }
  return to_the_end;
}

struct WeightsApart {
  std::string what;  ///< schedule, rule, precision
  double apart = 0;  ///< distance(), of the weight that is farthest off
};

/// The weights after `steps` minibatches on the device against those on the CPU, under every schedule
/// and rule. `precision`: of both.
inline std::vector<WeightsApart> weights_apart(at::Device device, const std::string& precision,
                                               int64_t steps) {
  const Model plain = load_model("mlp:layers=6,width=32,image=4,classes=5", 16);
  struct Kind {
    std::string schedule, weights;
    std::vector<int64_t> depths;
    int64_t microbatches;
  };
  std::vector<WeightsApart> all;
  for (const Kind& kind : std::vector<Kind>{{"1f1b", "stash", {2, 1}, 1},
                                            {"1f1b", "vertical", {2, 1}, 1},
                                            {"1f1b", "2bw", {2, 1}, 2},
                                            {"model-parallel", "stash", {1, 1}, 1},
                                            {"gpipe", "flush", {2, 2}, 2},
                                            {"1f1b-flush", "flush", {2, 1}, 2},
                                            {"interleaved", "flush", {}, 2},
                                            {"zb-h1", "flush", {2, 2}, 2}}) {
    const Plan plan = kind.schedule == "interleaved"
                          ? interleaved_plan(plain, 4, 2, 1, kind.microbatches)
                          : with_schedule(plan_of(plain, {1, 1}, kind.depths), kind.schedule, kind.weights,
                                          kind.microbatches);
    TrainingRules rules = momentum_rules();
    rules.optimizer.learning_rate = 0.01;
    rules.total_minibatches = steps;
    const auto minibatches = random_minibatches(plain.graph, steps, 5);
    const auto train = [&](at::Device where) {
      Model model = plain;
      model.graph = with_precision(plain, precision, where);
      rules.device = where;
      return run_pipeline(model, plan, rules, {{0, steps}}, minibatches,
                          where.is_cpu() ? make_world("local", 2) : make_device_world(where, 2));
    };
    const PipelineRun here = train(at::kCPU), there = train(device);
    WeightsApart one{kind.schedule + " " + kind.weights + " " + precision};
    for (const auto& [name, weights] : here.weights)
      one.apart = std::max(one.apart, distance(there.weights.at(name)[0], weights[0]));
    all.push_back(one);
  }
  return all;
}

}  // namespace pipewright::testing
