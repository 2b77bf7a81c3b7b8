// Ranks as threads whose plan changes: weights and optimizer state really travel.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "models/definition/frozen.h"
#include "runtime/generation/state_moves.h"
#include "tests/runtime/random_pipelines.h"
#include "tests/support/long.h"

namespace pipewright::testing {

inline constexpr int64_t kMostRanks = 6;

// PIPEWRIGHT_GENERATION_CASES, if it is set.
inline uint64_t cases_of(uint64_t usual) {
  const char* count = std::getenv("PIPEWRIGHT_GENERATION_CASES");
  return count ? std::strtoull(count, nullptr, 10) : is_long() ? 10 * usual : usual;
}

struct GenerationsRun {
  std::vector<double> losses;      ///< by minibatch
  std::vector<int> forwards;       ///< of the last stage, by minibatch
  std::vector<NamedState> states;  ///< by rank: at the end
  PipelineRun last;                ///< weights and buffers, as the last plan has them
};

// What ranks do together, and what comes of it.
class Generations {
 public:
  Generations(const Model& model, const TrainingRules& rules, const std::vector<MinibatchFields>& minibatches,
              int64_t world)
      : model_(model), rules_(rules), minibatches_(minibatches) {
    run_.losses.resize(minibatches.size());
    run_.forwards.resize(minibatches.size());
    run_.states.resize(static_cast<size_t>(world));
  }

  // `train_rank` is called on each rank's thread.
  GenerationsRun run(const std::string& transport,
                     const std::function<void(int64_t rank, Transport* links)>& train_rank) {
    const auto rank_of_thread = [&](int64_t rank, Transport* links) {
      at::set_num_threads(1);
      train_rank(rank, links);
    };
    if (run_.states.size() == 1) {
      rank_of_thread(0, nullptr);
    } else {
      spawn(make_world(transport, static_cast<int64_t>(run_.states.size())),
            [&](int64_t rank, Transport& links) { rank_of_thread(rank, &links); });
    }
    return std::move(run_);
  }

  // Null for a rank without a place in `plan`. `last`: the plan before, if there is one, of which the rank
  // has `state`; that is let go.
  std::unique_ptr<Worker> start(int64_t rank, Transport* links, const Plan& plan, const Plan* last,
                                NamedState& state) const {
    std::unique_ptr<StateSource> source;
    if (last) {
      const Graph graph = frozen_graph(model_.graph, plan.frozen_layers);
      const auto moves = state_moves(graph, rules_.optimizer, *last, plan);
      source = state_from_peers(move_state(links, moves, state), rules_.optimizer);
      state.clear();
    }
    if (rank >= plan.world_size) return nullptr;
    return std::make_unique<Worker>(frozen_model(model_, plan.frozen_layers), plan, rank, links, rules_,
                                    source.get());
  }

  WorkerHooks hooks(const Worker& worker) {
    WorkerHooks hooks;
    hooks.fields = fields_from(minibatches_, worker);
    hooks.loss_fields = loss_fields_from(minibatches_, worker);
    hooks.forward_done = [this, &worker](int64_t k, double loss, const std::vector<at::Tensor>&) {
      const std::lock_guard lock(mutex_);
      const auto whole = loss_parts_.add(worker.stage(worker.stage_count() - 1), k, loss);
      if (!whole) return;
      run_.losses[static_cast<size_t>(k)] = *whole;
      ++run_.forwards[static_cast<size_t>(k)];
    };
    return hooks;
  }

  // `worker`, of the last plan, or null.
  void end(int64_t rank, const Plan& plan, const Worker* worker, NamedState state) {
    const std::lock_guard lock(mutex_);
    if (run_.last.buffers.empty()) {
      for (const Stage& stage : plan.stages) run_.last.buffers.emplace_back(stage.ranks.size());
    }
    if (worker) add_state(*worker, run_.last);
    run_.states[static_cast<size_t>(rank)] = std::move(state);
  }

 private:
  const Model& model_;
  const TrainingRules& rules_;
  const std::vector<MinibatchFields>& minibatches_;
  std::mutex mutex_;
  LossParts loss_parts_;
  GenerationsRun run_;
};

inline std::string words(const std::vector<PlanSpans>& parts) {
  std::string text;
  for (const PlanSpans& part : parts) {
    text += part.plan.schedule + "/" + part.plan.weights + " " + part.plan.shape_text();
    if (part.plan.frozen_layers > 0) text += " frozen " + std::to_string(part.plan.frozen_layers);
    for (const Span& span : part.spans)
      text += " " + std::to_string(span.first) + "+" + std::to_string(span.count);
    text += "; ";
  }
  return text;
}

}  // namespace pipewright::testing
