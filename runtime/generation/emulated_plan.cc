#include "runtime/generation/emulated_plan.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "graph/error.h"
#include "graph/units.h"
#include "graph/update_rules.h"
#include "models/memory/free_memory.h"
#include "runtime/checkpoint/checkpoint_state.h"
#include "runtime/stage/partition.h"

namespace pipewright {
namespace {

using Clock = ActionObserver::Clock;

std::vector<StageProgram> programs_of(const Graph& graph, const Plan& plan) {
  const auto interfaces = partition(graph, plan);
  std::vector<StageProgram> programs;
  for (size_t s = 0; s < interfaces.size(); ++s) programs.emplace_back(graph, interfaces, s);
  return programs;
}

}  // namespace

EmulatedPlan::EmulatedPlan(const Model& model, const Plan& plan, const TrainingRules& rules,
                           StateSource& source)
    : plan_(plan),
      whole_(single_stage_plan(model.graph, 1)),
      optimizer_(rules.optimizer),
      programs_(programs_of(model.graph, plan)),
      serial_(model, {plan, {}}, rules) {
  std::map<std::pair<size_t, size_t>, std::vector<at::Tensor>> buffers;
  serial_.restore([&](size_t s) {
    std::optional<StageState> first;
    for (size_t q = 0; q < plan.stages[s].ranks.size(); ++q) {
      auto state = source.state_of(static_cast<int64_t>(s), static_cast<int64_t>(q), programs_[s]);
      if (!state) return state;
      buffers[{s, q}] = state->buffers;
      if (!first) first = std::move(state);
    }
    return first;
  });
  for (auto& [place, own] : buffers) serial_.pipeline().stage(place.first).set_buffers(place.second, own);
  last_round_length_ = serial_.pipeline().stage(programs_.size() - 1).rule.round_length;
}

void EmulatedPlan::train(Span span, const std::vector<std::string>& fields, const WorkerHooks& hooks,
                         const std::function<void(int64_t n)>& checkpoint, int64_t began) {
  span_ = span;
  SerialPipeline& pipeline = serial_.pipeline();
  SerialHooks serial;
  serial.fields = [&](int64_t k) {
    std::vector<at::Tensor> tensors = hooks.fields(0, k);
    MinibatchFields named;
    for (size_t i = 0; i < fields.size(); ++i) named[fields[i]] = std::move(tensors[i]);
    return named;
  };
  serial.perform = [&](ActionKind kind, int64_t k, const std::function<void()>& work) {
    const Action action{kind, kind == ActionKind::kUpdate ? k / last_round_length_ : k};
    for (const auto& observer : hooks.observers) observer->before(action);
    if (kind == ActionKind::kForward) {
      if (hooks.stop_before && hooks.stop_before() <= k) return false;
      for (size_t s = 0; s < pipeline.stage_count(); ++s)
        peak_versions_ = std::max(peak_versions_, static_cast<int64_t>(pipeline.stage(s).versions.size()));
    }
    const auto begin = Clock::now();
    work();
    for (const auto& observer : hooks.observers) observer->prolong(action, begin);
    const auto end = Clock::now();
    counts_.busy_seconds += std::chrono::duration<double>(end - begin).count();
    for (const auto& observer : hooks.observers) observer->after(action, begin, end);
    return true;
  };
  auto next_checkpoint = hooks.checkpoints.begin();
  serial.trained = [&](int64_t k, double loss) {
    hooks.forward_done(k, loss, {});
    for (const auto& [end, norm] : serial_.take_gradient_norms()) hooks.gradient_norm(end, norm);
    if (next_checkpoint == hooks.checkpoints.end() || *next_checkpoint != k + 1) return;
    ++next_checkpoint;
    checkpoint(k + 1);
  };
  if (serial_.train(span, serial, began) == span.end()) serial_.drain();
}

void EmulatedPlan::end_span(int64_t n) {
  PW_CHECK(span_.first <= n && n <= span_.end(), "minibatch " << n << " is not of the span");
  span_.count = n - span_.first;
  serial_.drain();
}

void EmulatedPlan::states_before(int64_t n, const TakeState& take) const {
  for (size_t s = 0; s < programs_.size(); ++s) {
    for (size_t q = 0; q < plan_.stages[s].ranks.size(); ++q) {
      StageState state = serial_.pipeline().stage(s).state_before(n, span_.end(), q);
      if (q > 0) state.older.clear();
      take({static_cast<int64_t>(s), static_cast<int64_t>(q), programs_[s]}, std::move(state));
    }
  }
}

size_t EmulatedPlan::places() const {
  size_t places = 0;
  for (const Stage& stage : plan_.stages) places += stage.ranks.size();
  return places;
}

NamedTensors EmulatedPlan::tensors_of(size_t s) const {
  NamedTensors tensors;
  const SerialStage& stage = serial_.pipeline().stage(s);
  const StageProgram& program = programs_[s];
  for (size_t i = 0; i < program.parameters().size(); ++i)
    tensors.emplace_back(program.parameters()[i], stage.latest()[i]);
  for (size_t i = 0; i < program.buffers().size(); ++i)
    tensors.emplace_back(program.buffers()[i], stage.buffers[0][i]);
  return tensors;
}

StageState EmulatedPlan::gathered(const StageProgram& whole, bool with_optimizer) const {
  const auto carried = serial_.pipeline().carried();
  StageState state;
  for (size_t s = 0; s < programs_.size(); ++s)
    state.updates = std::max(state.updates, serial_.pipeline().stage(s).latest_version());
  for (const std::string& name : whole.parameters()) state.weights.push_back(carried.tensors.at(name));
  for (const std::string& name : whole.buffers()) state.buffers.push_back(carried.tensors.at(name).clone());
  for (size_t t = 0; with_optimizer && t < whole.trainable().size(); ++t) {
    const UpdateState& own = carried.optimizer.at(whole.parameters()[whole.trainable()[t]]);
    if (own.updates.empty()) continue;
    state.optimizer.updates.push_back(own.updates[0]);
    state.optimizer.slots.resize(own.slots.size());
    for (size_t slot = 0; slot < own.slots.size(); ++slot) {
      state.optimizer.slots[slot].first = own.slots[slot].first;
      state.optimizer.slots[slot].second.push_back(own.slots[slot].second[0]);
    }
  }
  return state;
}

StageState EmulatedPlan::latest_for(const StageProgram& whole) const { return gathered(whole, false); }

NamedState EmulatedPlan::drained_state(const StageProgram& whole) const {
  NamedState named;
  for (auto& [name, tensor] : stage_tensors(whole, gathered(whole, true))) named[name] = std::move(tensor);
  return named;
}

int64_t EmulatedPlan::most_versions() const {
  int64_t most = 0;
  for (size_t s = 0; s < programs_.size(); ++s)
    most = std::max(most, 1 + serial_.pipeline().stage(s).further_versions());
  return most;
}

StageMemory EmulatedPlan::memory() const {
  StageMemory all;
  const std::vector<std::string> slots = slot_names(optimizer_);
  for (size_t s = 0; s < programs_.size(); ++s) {
    const SerialStage& stage = serial_.pipeline().stage(s);
    int64_t trainable = 0;
    for (const at::Tensor& weight : stage.latest())
      all.weights_bytes += static_cast<int64_t>(weight.nbytes());
    for (const auto& replica : stage.buffers)
      for (const at::Tensor& buffer : replica) all.weights_bytes += static_cast<int64_t>(buffer.nbytes());
    for (const size_t i : stage.trainable) {
      const at::Tensor& weight = stage.latest()[i];
      trainable += static_cast<int64_t>(weight.nbytes());
      for (size_t slot = 0; slot < slots.size(); ++slot) {
        const auto shape = slot_shape(optimizer_, slot, stage.segment.parameters()[i], weight.sizes().vec());
        all.optimizer_bytes += c10::multiply_integers(shape) * static_cast<int64_t>(weight.element_size());
      }
    }
    all.versions_bytes += trainable * (1 + stage.further_versions());
    all.gradients_bytes +=
        trainable * std::min(static_cast<int64_t>(stage.buffers.size()), stage.rule.round_length);
    if (!plan_.predicted) continue;
    const StageMemory& predicted = plan_.predicted->stages[s].memory;
    all.activations_bytes += predicted.activations_bytes / plan_.stages[s].in_flight;
    all.workspace_bytes = std::max(all.workspace_bytes, predicted.workspace_bytes);
  }
  return all;
}

void EmulatedPlan::demand_memory() const {
  const StageMemory needed = memory();
  int64_t there = 0;
  for (size_t s = 0; s < programs_.size(); ++s)
    for (const at::Tensor& weight : serial_.pipeline().stage(s).latest())
      there += 2 * static_cast<int64_t>(weight.nbytes());  // the evaluating worker's, too
  const auto text = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  const MemoryThere room = memory_there();
  if (needed.total_bytes() - there <= room.bytes) return;
  throw InfeasibleError("emulate: up to " + std::to_string(most_versions()) +
                            " versions of a stage's weights and what goes with them take " +
                            text(needed.total_bytes()) + ", and " + text(room.bytes) + " " + room.what,
                        "Take a plan of fewer stages or smaller depths, or weights 2bw or flush.");
}

double EmulatedPlan::learning_rate_of(int64_t minibatch) const {
  return serial_.pipeline().learning_rate_of(minibatch);
}

}  // namespace pipewright
