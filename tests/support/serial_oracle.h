// Asynchronous pipeline training written down serially: one process, no schedule, no transport, no worker.
// What docs/semantics.md says, in the plainest way; the runtime must end with the same bits.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/run.h"
#include "models/initialise.h"
#include "models/interpreter.h"
#include "models/model.h"
#include "runtime/partition.h"

namespace pipewright::testing {

/// Fields of minibatch k by name.
using Minibatch = std::map<std::string, at::Tensor>;

struct OracleResult {
  std::map<std::string, at::Tensor> weights;               ///< by parameter name, after the last update
  std::vector<std::map<std::string, at::Tensor>> buffers;  ///< per replica of each stage, flattened: by rank
  std::vector<double> losses;                              ///< by minibatch
};

/// Trains minibatches 0 .. minibatches.size()-1 under a 1f1b plan with SGD (momentum, decay) at a constant
/// rate.
///
/// Stage with r replicas and depth d: minibatch k belongs to round k / r, and its forward and backward read
/// the weights after max(0, k / r - d + 1) rounds: when replica k mod r forwards its i-th minibatch (i = k /
/// r), it has d - 1 older ones in flight and has finished the rounds of the others. A round's gradient is the
/// sum over its minibatches in order, divided by their number.
inline OracleResult train_serially(const Model& model, const Plan& plan, const OptimizerSettings& sgd,
                                   uint64_t seed, const std::vector<Minibatch>& minibatches) {
  const Graph& graph = model.graph;
  const auto interfaces = partition(graph, plan);
  const auto differentiable = differentiable_values(graph);
  const auto count = static_cast<int64_t>(minibatches.size());
  struct SerialStage {
    Segment segment;
    int64_t replicas;
    int64_t depth;
    std::vector<std::vector<at::Tensor>> history;  // weights by version, never thrown away
    std::vector<at::Tensor> velocity;
    std::vector<std::vector<at::Tensor>> buffers;  // per replica
    std::vector<std::vector<at::Tensor>> round;    // gradients of the round under way
  };
  std::vector<SerialStage> stages;
  for (size_t s = 0; s < interfaces.size(); ++s) {
    const bool last = s + 1 == interfaces.size();
    stages.push_back({Segment(graph, interfaces[s].nodes, last ? graph.outputs : interfaces[s].sent),
                      static_cast<int64_t>(plan.stages[s].ranks.size()),
                      plan.stages[s].in_flight,
                      {},
                      {},
                      {},
                      {}});
    SerialStage& stage = stages.back();
    stage.history.emplace_back();
    for (const auto& name : stage.segment.parameters()) {
      stage.history[0].push_back(initial_parameter(model, name, seed).requires_grad_(true));
    }
    for (int64_t q = 0; q < stage.replicas; ++q) {
      stage.buffers.emplace_back();
      for (const auto& name : stage.segment.buffers())
        stage.buffers.back().push_back(initial_buffer(model, name));
    }
  }

  OracleResult result;
  for (int64_t k = 0; k < count; ++k) {
    // Forward through the stages, cutting autograd at every cut.
    std::map<std::string, at::Tensor> crossing;  // by value name: what the next stage receives
    std::vector<std::map<std::string, at::Tensor>> received(stages.size());
    std::vector<std::vector<at::Tensor>> outputs(stages.size());
    const auto version_of = [&](const SerialStage& stage) -> const std::vector<at::Tensor>& {
      return stage.history[static_cast<size_t>(std::max<int64_t>(0, k / stage.replicas - stage.depth + 1))];
    };
    for (size_t s = 0; s < stages.size(); ++s) {
      SerialStage& stage = stages[s];
      for (const auto& name : interfaces[s].received) {
        at::Tensor leaf = crossing.at(name).detach().clone();
        if (differentiable.count(name)) leaf.requires_grad_(true);
        received[s][name] = leaf;
      }
      std::vector<at::Tensor> inputs;
      for (const auto& name : stage.segment.inputs()) {
        inputs.push_back(received[s].count(name) ? received[s][name]
                                                 : minibatches[static_cast<size_t>(k)].at(name));
      }
      outputs[s] = stage.segment.forward(inputs, version_of(stage),
                                         stage.buffers[static_cast<size_t>(k % stage.replicas)], {seed, k});
      for (size_t i = 0; i < interfaces[s].sent.size(); ++i) crossing[interfaces[s].sent[i]] = outputs[s][i];
    }
    result.losses.push_back(outputs.back()[0].item<double>());

    // Backward, last stage first.
    std::map<std::string, at::Tensor> gradients;  // by value name: what comes from behind the cut
    for (size_t s = stages.size(); s-- > 0;) {
      SerialStage& stage = stages[s];
      std::vector<at::Tensor> roots, root_gradients, leaves;
      if (s + 1 == stages.size()) {
        roots = {outputs[s][0]};
        root_gradients = {at::ones({})};
      }
      for (size_t i = 0; i < interfaces[s].sent.size(); ++i) {
        const auto& name = interfaces[s].sent[i];
        if (!differentiable.count(name) || received[s].count(name)) continue;
        roots.push_back(outputs[s][i]);
        root_gradients.push_back(gradients.at(name));
      }
      std::vector<std::string> names;
      for (const auto& name : interfaces[s].received) {
        if (!differentiable.count(name)) continue;
        names.push_back(name);
        leaves.push_back(received[s][name]);
      }
      const auto& weights = version_of(stage);
      leaves.insert(leaves.end(), weights.begin(), weights.end());
      const auto found = torch::autograd::grad(roots, leaves, root_gradients, false, false, true);
      std::map<std::string, at::Tensor> upstream;
      for (size_t i = 0; i < names.size(); ++i) {
        at::Tensor gradient = found[i];
        const bool carried = std::find(interfaces[s].sent.begin(), interfaces[s].sent.end(), names[i]) !=
                             interfaces[s].sent.end();
        if (carried)
          gradient = gradient.defined() ? gradient + gradients.at(names[i]) : gradients.at(names[i]);
        upstream[names[i]] = gradient;
      }
      gradients = std::move(upstream);
      stage.round.emplace_back(found.begin() + static_cast<ptrdiff_t>(names.size()), found.end());

      // The end of a round: average, step.
      if ((k + 1) % stage.replicas != 0 && k + 1 != count) continue;
      std::vector<at::Tensor> next;
      const auto size = static_cast<double>(stage.round.size());
      const bool first = stage.velocity.empty();
      for (size_t p = 0; p < weights.size(); ++p) {
        const at::NoGradGuard no_grad;
        at::Tensor sum = stage.round[0][p];
        for (size_t i = 1; i < stage.round.size(); ++i) sum = sum + stage.round[i][p];
        if (stage.replicas > 1) sum = sum / size;
        const at::Tensor& latest = stage.history.back()[p];
        at::Tensor direction = sgd.weight_decay != 0 ? sum.add(latest, sgd.weight_decay) : sum;
        if (sgd.momentum != 0) {
          if (first) {
            stage.velocity.push_back(direction);
          } else {
            stage.velocity[p] = stage.velocity[p].mul(sgd.momentum).add(direction);
          }
          direction = stage.velocity[p];
        }
        next.push_back(latest.add(direction, -sgd.learning_rate).requires_grad_(true));
      }
      stage.round.clear();
      stage.history.push_back(std::move(next));
    }
  }

  for (SerialStage& stage : stages) {
    const at::NoGradGuard no_grad;
    for (size_t p = 0; p < stage.segment.parameters().size(); ++p) {
      result.weights[stage.segment.parameters()[p]] = stage.history.back()[p].detach();
    }
    // Floating buffers of replicas are averaged when the pipeline has drained.
    std::map<std::string, at::Tensor> averaged;
    for (size_t b = 0; b < stage.segment.buffers().size(); ++b) {
      at::Tensor sum = stage.buffers[0][b];
      for (size_t q = 1; q < stage.buffers.size(); ++q) sum = sum + stage.buffers[q][b];
      averaged[stage.segment.buffers()[b]] =
          stage.replicas > 1 ? sum / static_cast<double>(stage.replicas) : sum;
    }
    for (int64_t q = 0; q < stage.replicas; ++q) result.buffers.push_back(averaged);
  }
  return result;
}

}  // namespace pipewright::testing
