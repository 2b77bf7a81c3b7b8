#include "runtime/verify/reference.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <set>
#include <utility>

#include "graph/error.h"
#include "graph/update_rules.h"
#include "models/initialise.h"
#include "models/run/interpreter.h"
#include "runtime/stage/partition.h"
#include "runtime/update/gradient_norm.h"

namespace pipewright {
namespace {

using Tensors = std::vector<at::Tensor>;

// Who processes the minibatches of a cycle: in each step every replica gains its share, the one that has most
// (the first of equals) takes the minibatch and pays the sum of all shares.
std::vector<size_t> cycle_of(const Stage& stage) {
  const std::vector<int64_t> shares =
      stage.shares.empty() ? std::vector<int64_t>(stage.ranks.size(), 1) : stage.shares;
  const int64_t sum = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  std::vector<int64_t> gained(shares.size(), 0);
  std::vector<size_t> cycle;
  for (int64_t i = 0; i < sum; ++i) {
    for (size_t q = 0; q < shares.size(); ++q) gained[q] += shares[q];
    size_t taker = 0;
    for (size_t q = 1; q < shares.size(); ++q)
      if (gained[q] > gained[taker]) taker = q;
    gained[taker] -= sum;
    cycle.push_back(taker);
  }
  return cycle;
}

// How many minibatches a stage of this depth runs ahead of its backwards: the largest W that is at most
// (depth - 1) cycles / the largest share, such that no W + 1 minibatches in a row give one replica more than
// `depth`.
int64_t run_ahead(const std::vector<size_t>& cycle, int64_t depth) {
  const auto length = static_cast<int64_t>(cycle.size());
  const size_t replicas = 1 + *std::max_element(cycle.begin(), cycle.end());
  int64_t largest = 0;
  for (size_t q = 0; q < replicas; ++q)
    largest = std::max<int64_t>(largest, std::count(cycle.begin(), cycle.end(), q));
  int64_t ahead = (depth - 1) * length / largest;
  const auto fits = [&] {
    for (int64_t from = 0; from < length; ++from) {
      std::vector<int64_t> taken(replicas, 0);
      for (int64_t i = from; i <= from + ahead; ++i)
        if (++taken[cycle[static_cast<size_t>(i % length)]] > depth) return false;
    }
    return true;
  };
  while (ahead > 0 && !fits()) --ahead;
  return ahead;
}

class SerialStage {
 public:
  SerialStage(const Model& model, const StageInterface& interface, const Stage& stage, bool last,
              const TrainingRules& rules)
      : interface(interface),
        cycle(cycle_of(stage)),
        segment(model.graph, interface.nodes, last ? model.graph.outputs : interface.sent) {
    Tensors first;
    for (const std::string& name : segment.parameters()) {
      const auto parameter = std::find_if(model.graph.parameters.begin(), model.graph.parameters.end(),
                                          [&](const Parameter& p) { return p.name == name; });
      if (parameter->trainable) {
        trainable.push_back(first.size());
        // As an optimizer of its own.
        const ParameterSettings own = parameter_settings(rules.optimizer, {name}).front();
        OptimizerSettings settings = rules.optimizer;
        settings.weight_decay = own.weight_decay;
        this->rules.push_back(make_update_rule(settings));
        rate_scales.push_back(own.learning_rate_scale);
      }
      first.push_back(initial_parameter(model, name, rules.seed).requires_grad_(parameter->trainable));
    }
    versions[0] = std::move(first);
    for (size_t q = 0; q < stage.ranks.size(); ++q) {
      buffers.emplace_back();
      for (const std::string& name : segment.buffers()) buffers.back().push_back(initial_buffer(model, name));
    }
    sums.resize(stage.ranks.size());
  }

  void restore(const StageState& state) {
    PW_CHECK_EQ(state.weights.size(), latest().size());
    Tensors weights;
    for (size_t i = 0; i < state.weights.size(); ++i)
      weights.push_back(state.weights[i].detach().clone().requires_grad_(latest()[i].requires_grad()));
    versions.clear();
    versions[state.updates] = std::move(weights);
    for (Tensors& replica : buffers)
      for (size_t b = 0; b < replica.size(); ++b) replica[b] = state.buffers.at(b).clone();
    for (size_t i = 0; i < rules.size(); ++i) {
      UpdateState remembered;
      if (!state.optimizer.updates.empty()) remembered.updates = {state.optimizer.updates[i]};
      for (const auto& [name, slots] : state.optimizer.slots)
        remembered.slots.push_back({name, {slots[i].clone()}});
      rules[i]->restore(std::move(remembered));
    }
  }

  size_t replica_of(int64_t k) const {
    return cycle[static_cast<size_t>(k % static_cast<int64_t>(cycle.size()))];
  }
  const Tensors& latest() const { return versions.rbegin()->second; }
  /// Trainable ones of a version.
  Tensors leaves(const Tensors& version) const {
    Tensors leaves;
    for (const size_t i : trainable) leaves.push_back(version[i]);
    return leaves;
  }

  StageInterface interface;
  std::vector<size_t> cycle;  // replica by place in the cycle
  Segment segment;
  std::vector<size_t> trainable;        // positions in the segment's parameters
  int64_t round_length = 1;             // minibatches
  int64_t lag = 0;                      // minibatch k reads the rounds that end `lag` or more before it
  int64_t first_version = 0;            // at the begin of the span
  std::map<int64_t, Tensors> versions;  // by number of updates
  std::vector<Tensors> buffers;         // by replica
  std::vector<Tensors> sums;            // by replica: gradients of the round
  Tensors gradient;                     // of the update
  struct Due {
    int64_t last = 0;  // minibatch of the round
    Tensors gradient;
  };
  std::deque<Due> due;        // updates that have not been made yet
  bool awaits_group = false;  // the latest version is not what it will be when its group has averaged it
  std::vector<std::unique_ptr<UpdateRule>> rules;  // by trainable parameter
  std::vector<double> rate_scales;                 // likewise
};

// A pipeline: of the run's minibatches it trains some, which it counts itself. Those in its turn (index,
// index + count, ...) are 0, 1, ...; those that were handed out to it begin in each span with (the first one)
// mod (the length of a round).
class SerialTraining {
 public:
  SerialTraining(const Model& model, const Plan& plan, const TrainingRules& rules, int64_t index,
                 int64_t count)
      : plan_(plan),
        rules_(rules),
        index_(index),
        count_(count),
        differentiable_(differentiable_values(model.graph)) {
    const auto interfaces = partition(model.graph, plan);
    for (size_t s = 0; s < plan.stages.size(); ++s)
      stages_.emplace_back(model, interfaces[s], plan.stages[s], s + 1 == plan.stages.size(), rules);
    apply_rule();
  }

  void restore(const std::function<std::optional<StageState>(size_t)>& start) {
    for (size_t s = 0; s < stages_.size(); ++s)
      if (const auto state = start(s)) stages_[s].restore(*state);
  }

  /// What the next plan goes on from, by parameter and buffer.
  struct Carried {
    std::map<std::string, at::Tensor> tensors;
    std::map<std::string, UpdateState> optimizer;
  };
  Carried carried() const {
    Carried carried;
    for (const SerialStage& stage : stages_) {
      for (size_t i = 0; i < stage.segment.parameters().size(); ++i)
        carried.tensors.emplace(stage.segment.parameters()[i], stage.latest()[i]);
      for (size_t b = 0; b < stage.segment.buffers().size(); ++b)
        carried.tensors.emplace(stage.segment.buffers()[b], stage.buffers[0][b]);
      for (size_t i = 0; i < stage.trainable.size(); ++i)
        carried.optimizer.emplace(stage.segment.parameters()[stage.trainable[i]], stage.rules[i]->state());
    }
    return carried;
  }
  void go_on_from(const Carried& carried) {
    for (SerialStage& stage : stages_) {
      StageState state;
      for (const std::string& name : stage.segment.parameters())
        state.weights.push_back(carried.tensors.at(name));
      for (const std::string& name : stage.segment.buffers())
        state.buffers.push_back(carried.tensors.at(name));
      stage.restore(state);
      for (size_t i = 0; i < stage.trainable.size(); ++i) {
        UpdateState remembered = carried.optimizer.at(stage.segment.parameters()[stage.trainable[i]]);
        for (auto& [name, slots] : remembered.slots)
          for (at::Tensor& slot : slots) slot = slot.clone();
        stage.rules[i]->restore(std::move(remembered));
      }
    }
  }

  /// `span`: of the run. `handed_out`: null where it trains those in its turn.
  void begin(Span span, const std::vector<int64_t>* handed_out) {
    minibatches_.clear();
    if (handed_out) {
      minibatches_ = *handed_out;
      first_ = minibatches_.empty() ? 0 : minibatches_.front() % stages_[0].round_length;
    } else {
      for (int64_t k = span.first; k < span.end(); ++k)
        if (k % count_ == index_) minibatches_.push_back(k);
      first_ = (span.first + count_ - 1 - index_) / count_;
    }
    span_ = {first_, static_cast<int64_t>(minibatches_.size())};
    for (SerialStage& stage : stages_) stage.first_version = stage.versions.rbegin()->first;
  }
  Span span() const { return span_; }
  /// The run's number of its minibatch `own` of the span.
  int64_t in_run(int64_t own) const { return minibatches_.at(static_cast<size_t>(own - first_)); }
  /// All weights are there that minibatch k reads, as they will stay.
  bool can_train(int64_t k) const {
    return std::all_of(stages_.begin(), stages_.end(), [&](const SerialStage& stage) {
      return version(stage, k, span_) <= stage.versions.rbegin()->first - (stage.awaits_group ? 1 : 0);
    });
  }
  /// Makes the next update of stage s, if one is due and the one before is done with.
  bool update(size_t s) {
    SerialStage& stage = stages_[s];
    if (stage.due.empty() || stage.awaits_group) return false;
    const at::NoGradGuard no_grad;
    update(stage, stage.due.front());
    stage.due.pop_front();
    return true;
  }
  bool is_done() const {
    return std::all_of(stages_.begin(), stages_.end(),
                       [](const SerialStage& stage) { return stage.due.empty() && !stage.awaits_group; });
  }
  SerialStage& stage(size_t s) { return stages_[s]; }
  size_t stage_count() const { return stages_.size(); }

  /// Minibatch k of its own, but for its updates; returns the loss.
  double train(int64_t k, const MinibatchFields& fields) {
    for (SerialStage& stage : stages_) {  // versions that nobody reads any more
      const int64_t oldest = std::min(version(stage, k, span_), stage.versions.rbegin()->first);
      stage.versions.erase(stage.versions.begin(), stage.versions.lower_bound(oldest));
    }
    const double loss = pass(k, span_, fields);
    end_rounds(k, span_);
    return loss;
  }
  void end() { average_buffers(); }

  // All become equal: the mean of trained weights, floating buffers and slots, the most updates.
  static void average(std::vector<std::unique_ptr<SerialTraining>>& pipelines) {
    const at::NoGradGuard no_grad;
    const auto mean = [&](const std::function<at::Tensor(SerialTraining&)>& of) {
      at::Tensor sum;
      for (const auto& pipeline : pipelines)
        sum = sum.defined() ? sum + of(*pipeline).detach() : of(*pipeline).detach();
      return sum / static_cast<double>(pipelines.size());
    };
    for (size_t s = 0; s < pipelines[0]->stages_.size(); ++s) {
      const SerialStage& shape = pipelines[0]->stages_[s];
      int64_t most = 0;
      for (const auto& pipeline : pipelines)
        most = std::max(most, pipeline->stages_[s].versions.rbegin()->first);
      Tensors weights = shape.latest(), buffers = shape.buffers[0];
      for (const size_t i : shape.trainable)
        weights[i] = mean([&](SerialTraining& each) { return each.stages_[s].latest()[i]; });
      for (size_t b = 0; b < buffers.size(); ++b)
        if (buffers[b].is_floating_point())
          buffers[b] = mean([&](SerialTraining& each) { return each.stages_[s].buffers[0][b]; });
      std::vector<UpdateState> optimizer;
      for (size_t i = 0; i < shape.trainable.size() && most > 0; ++i) {
        UpdateState averaged;
        averaged.updates = {most};
        for (const std::string& name : slot_names(pipelines[0]->rules_.optimizer)) {
          averaged.slots.push_back({name, {mean([&](SerialTraining& each) {
                                      for (const auto& [own, slots] : each.stages_[s].rules[i]->state().slots)
                                        if (own == name) return slots[0];
                                      return at::zeros_like(weights[shape.trainable[i]]);
                                    })}});
        }
        optimizer.push_back(std::move(averaged));
      }
      for (const auto& pipeline : pipelines) {
        SerialStage& stage = pipeline->stages_[s];
        Tensors own;
        for (const at::Tensor& weight : weights) own.push_back(weight.detach().clone());
        for (const size_t i : stage.trainable) own[i].requires_grad_(true);
        stage.versions.clear();
        stage.versions[most] = std::move(own);
        for (size_t b = 0; b < buffers.size(); ++b)
          if (buffers[b].is_floating_point()) stage.buffers[0][b] = buffers[b].clone();
        for (size_t i = 0; i < optimizer.size(); ++i) {
          UpdateState remembered = optimizer[i];
          for (auto& [name, slots] : remembered.slots) slots[0] = slots[0].clone();
          stage.rules[i]->restore(std::move(remembered));
        }
      }
    }
  }

  std::map<int64_t, double> take_gradient_norms() { return std::exchange(gradient_norms_, {}); }

  ReferenceResult result() const {
    ReferenceResult result;
    for (const SerialStage& stage : stages_) {
      const auto& names = stage.segment.parameters();
      for (size_t i = 0; i < names.size(); ++i) {
        const at::Tensor weight = stage.latest()[i].detach();
        const auto [place, fresh] = result.weights.emplace(names[i], weight);
        PW_CHECK(fresh || place->second.equal(weight), "copies of '" << names[i] << "' differ");
      }
      result.buffers.emplace_back();
      for (const Tensors& replica : stage.buffers) {
        result.buffers.back().emplace_back();
        for (size_t b = 0; b < replica.size(); ++b)
          result.buffers.back().back()[stage.segment.buffers()[b]] = replica[b];
      }
    }
    return result;
  }

 private:
  void apply_rule() {
    const bool intervals = plan_.weights == "flush" || plan_.weights == "2bw";
    int64_t ahead_of_first = 0;
    int64_t ahead_of_previous = 0;
    for (size_t s = 0; s < stages_.size(); ++s) {
      SerialStage& stage = stages_[s];
      stage.round_length = intervals
                               ? plan_.microbatches
                               : rules_.gradient_accumulation * static_cast<int64_t>(stage.cycle.size());
      int64_t depth = plan_.schedule == "1f1b" ? plan_.stages[s].in_flight : 1;
      // A stage does not run further ahead than the one before it.
      while (s > 0 && depth > 1 && run_ahead(stage.cycle, depth) > ahead_of_previous) --depth;
      const int64_t ahead = run_ahead(stage.cycle, depth);
      if (s == 0) ahead_of_first = ahead;
      ahead_of_previous = ahead;
      if (plan_.weights == "stash") stage.lag = ahead;
      if (plan_.weights == "vertical") stage.lag = ahead_of_first;
      if (plan_.weights == "2bw") stage.lag = stage.round_length;
      if (plan_.weights == "flush") stage.lag = 0;
    }
  }

  static int64_t version(const SerialStage& stage, int64_t k, Span span) {
    const int64_t first_round = span.first / stage.round_length;
    const int64_t rounds = k < stage.lag ? 0 : (k - stage.lag) / stage.round_length;
    return stage.first_version + std::max<int64_t>(0, rounds - first_round);
  }

  // Forward and backward of minibatch k through all stages, autograd cut at every cut; adds the gradients to
  // the sums of the rounds. Returns the loss.
  double pass(int64_t k, Span span, const MinibatchFields& fields) {
    MinibatchFields crossing;  // by value: what the next stage receives
    std::vector<MinibatchFields> received(stages_.size());
    std::vector<Tensors> outputs(stages_.size());
    for (size_t s = 0; s < stages_.size(); ++s) {
      SerialStage& stage = stages_[s];
      for (const std::string& name : stage.interface.received) {
        at::Tensor leaf = crossing.at(name).detach().clone();
        if (differentiable_.count(name)) leaf.requires_grad_(true);
        received[s][name] = leaf;
      }
      Tensors inputs;
      for (const std::string& name : stage.segment.inputs())
        inputs.push_back(received[s].count(name) ? received[s].at(name) : fields.at(name));
      outputs[s] =
          stage.segment.forward(inputs, stage.versions.at(version(stage, k, span)),
                                stage.buffers[stage.replica_of(k)], {rules_.random_seed(), in_run(k)});
      for (size_t i = 0; i < stage.interface.sent.size(); ++i)
        crossing[stage.interface.sent[i]] = outputs[s][i];
    }
    MinibatchFields gradients;  // by value: what comes from behind the cut
    for (size_t s = stages_.size(); s-- > 0;)
      gradients = backward(stages_[s], k, span, s + 1 == stages_.size(), received[s], outputs[s], gradients);
    return outputs.back()[0].item<double>();
  }

  MinibatchFields backward(SerialStage& stage, int64_t k, Span span, bool last,
                           const MinibatchFields& received, const Tensors& outputs,
                           const MinibatchFields& gradients) const {
    Tensors roots, root_gradients;
    const auto add_root = [&](const at::Tensor& root, const at::Tensor& gradient) {
      if (!root.requires_grad()) return;
      roots.push_back(root);
      root_gradients.push_back(gradient);
    };
    if (last) add_root(outputs[0], at::ones_like(outputs[0]));
    const auto& sent = stage.interface.sent;
    for (size_t i = 0; i < sent.size(); ++i) {
      if (differentiable_.count(sent[i]) > 0)
        add_root(received.count(sent[i]) > 0 ? received.at(sent[i]) : outputs[i], gradients.at(sent[i]));
    }
    std::vector<std::string> names;
    Tensors leaves;
    for (const std::string& name : stage.interface.received) {
      if (!differentiable_.count(name)) continue;
      names.push_back(name);
      leaves.push_back(received.at(name));
    }
    for (const at::Tensor& weight : stage.leaves(stage.versions.at(version(stage, k, span))))
      leaves.push_back(weight);
    Tensors found(leaves.size());
    if (!roots.empty() && !leaves.empty())
      found = torch::autograd::grad(roots, leaves, root_gradients, /*retain_graph=*/false,
                                    /*create_graph=*/false, /*allow_unused=*/true);
    MinibatchFields upstream;
    for (size_t i = 0; i < names.size(); ++i) {
      const at::Tensor& gradient = found[i];
      // As it crosses, it lies in memory as it was made, but for gaps and elements of one place.
      upstream[names[i]] =
          gradient.defined() ? gradient.clone() : at::zeros(leaves[i].sizes(), leaves[i].options());
    }
    Tensors& sum = stage.sums[stage.replica_of(k)];
    const bool first = sum.empty();
    for (size_t i = names.size(); i < leaves.size(); ++i) {
      const at::Tensor gradient = found[i].defined() ? found[i] : at::zeros_like(leaves[i]);
      if (first) {
        sum.push_back(gradient);
      } else {
        sum[i - names.size()] = sum[i - names.size()] + gradient;
      }
    }
    return upstream;
  }

  // What the stages whose round ends with minibatch k update with.
  void end_rounds(int64_t k, Span span) {
    const at::NoGradGuard no_grad;
    std::vector<size_t> ended;
    for (size_t s = 0; s < stages_.size(); ++s) {
      SerialStage& stage = stages_[s];
      if ((k + 1) % stage.round_length != 0 && k + 1 != span.end()) continue;
      ended.push_back(s);
      const int64_t begin = std::max(span.first, k / stage.round_length * stage.round_length);
      const Tensors weights = stage.leaves(stage.latest());
      stage.gradient.clear();
      for (size_t i = 0; i < weights.size(); ++i) {
        at::Tensor sum;
        for (const Tensors& replica : stage.sums) {
          const at::Tensor part = replica.empty() ? at::zeros_like(weights[i].detach()) : replica[i];
          sum = sum.defined() ? sum + part : part;
        }
        stage.gradient.push_back(k + 1 - begin == 1 ? sum : sum / static_cast<double>(k + 1 - begin));
      }
      for (Tensors& replica : stage.sums) replica.clear();
    }
    for (const TiedParameter& tied : plan_.tied_parameters) {
      at::Tensor sum;
      for (const bool summing : {true, false}) {
        for (const size_t s : ended) {
          SerialStage& stage = stages_[s];
          for (size_t i = 0; i < stage.trainable.size(); ++i) {
            if (stage.segment.parameters()[stage.trainable[i]] != tied.name) continue;
            at::Tensor& own = stage.gradient[i];
            if (summing) sum = sum.defined() ? sum + own : own;
            if (!summing) own = sum.clone();
          }
        }
      }
    }
    if (rules_.gradient_clipping_norm > 0) clip(ended, k);
    for (const size_t s : ended) stages_[s].due.push_back({k, std::exchange(stages_[s].gradient, {})});
  }

  // Over the model where all stages update together or must scale alike, else each stage by itself.
  void clip(const std::vector<size_t>& ended, int64_t k) {
    std::vector<double> sums;
    double of_model = 0;
    for (const size_t s : ended) {
      SerialStage& stage = stages_[s];
      Tensors counted;  // a tied parameter once, at its first stage
      for (size_t i = 0; i < stage.trainable.size(); ++i) {
        const std::string& name = stage.segment.parameters()[stage.trainable[i]];
        const bool elsewhere = std::any_of(
            plan_.tied_parameters.begin(), plan_.tied_parameters.end(), [&](const TiedParameter& tied) {
              return tied.name == name && tied.stages.front() < static_cast<int64_t>(s);
            });
        if (!elsewhere) counted.push_back(stage.gradient[i]);
      }
      sums.push_back(square_sum(counted));
      of_model += sums.back();
    }
    for (size_t e = 0; e < ended.size(); ++e) {
      const bool over_model = plan_.weights == "flush" || !plan_.tied_parameters.empty();
      const double sum = over_model ? of_model : sums[e];
      if (ended[e] + 1 == stages_.size()) gradient_norms_[in_run(k) + 1] = std::sqrt(sum);
      scale(stages_[ended[e]].gradient, clipping_factor(sum, rules_.gradient_clipping_norm));
    }
  }

  void update(SerialStage& stage, const SerialStage::Due& due) {
    const int64_t begin = std::max(span_.first, due.last / stage.round_length * stage.round_length);
    double rate = learning_rate_at(rules_.learning_rate_policy, rules_.optimizer.learning_rate, in_run(begin),
                                   rules_.minibatches_per_epoch, rules_.total_minibatches);
    if (rules_.learning_rate_scaling == "pipedream")
      rate *= static_cast<double>(stage.round_length) / static_cast<double>(stages_[0].round_length);
    Tensors next = stage.latest();
    for (size_t i = 0; i < stage.trainable.size(); ++i) {
      at::Tensor& weight = next[stage.trainable[i]];
      const Tensors stepped = stage.rules[i]->step({weight}, {due.gradient[i]}, rate * stage.rate_scales[i]);
      weight = stepped.front().detach().requires_grad_(true);
    }
    stage.versions[stage.versions.rbegin()->first + 1] = std::move(next);
  }

  // When the pipeline has drained.
  void average_buffers() {
    const at::NoGradGuard no_grad;
    for (SerialStage& stage : stages_) {
      if (stage.buffers.size() == 1) continue;
      for (size_t b = 0; b < stage.segment.buffers().size(); ++b) {
        if (!stage.buffers[0][b].is_floating_point()) continue;
        at::Tensor sum = stage.buffers[0][b];
        for (size_t q = 1; q < stage.buffers.size(); ++q) sum = sum + stage.buffers[q][b];
        for (Tensors& replica : stage.buffers) replica[b] = sum / static_cast<double>(stage.buffers.size());
      }
    }
  }

  Plan plan_;
  TrainingRules rules_;
  int64_t index_, count_;
  Span span_;                         // as this pipeline counts
  int64_t first_ = 0;                 // of the span
  std::vector<int64_t> minibatches_;  // of the span, as the run counts, from first_ on
  std::set<std::string> differentiable_;
  std::vector<SerialStage> stages_;
  std::map<int64_t, double> gradient_norms_;
};

// Which updates of which pipelines are averaged with each other, at one stage after the other.
class SerialGroups {
 public:
  SerialGroups(const GroupsByStage& groups, size_t pipelines)
      : groups_(groups), next_(groups.size()), here_(groups.size()) {
    for (size_t s = 0; s < groups.size(); ++s) {
      here_[s].resize(groups[s].size());
      for (const std::vector<int64_t>& group : groups[s])
        for (const int64_t member : group)
          if (member < 0 || member >= static_cast<int64_t>(pipelines))
            throw InputError("a group of stage " + std::to_string(s) + " has pipeline " +
                                 std::to_string(member) + " of " + std::to_string(pipelines),
                             "Do the groups belong to another run?");
    }
  }

  /// The pipeline has made an update at stage s: it has to wait for its group, or is the last of it.
  void updated(std::vector<std::unique_ptr<SerialTraining>>& pipelines, size_t pipeline, size_t s) {
    if (groups_.empty()) return;
    const size_t group = next_group(pipeline, s);
    const std::vector<int64_t>& members = groups_[s][group];
    pipelines[pipeline]->stage(s).awaits_group = true;
    if (++here_[s][group] < members.size()) return;
    const at::NoGradGuard no_grad;
    const auto stage = [&](int64_t member) -> SerialStage& {
      return pipelines[static_cast<size_t>(member)]->stage(s);
    };
    const std::vector<size_t> trainable = stage(members.front()).trainable;
    for (const size_t i : trainable) {
      at::Tensor sum;
      for (const int64_t member : members) {
        const at::Tensor weight = stage(member).latest()[i].detach();
        sum = sum.defined() ? sum + weight : weight;
      }
      const at::Tensor mean = sum / static_cast<double>(members.size());
      for (const int64_t member : members)
        stage(member).versions.rbegin()->second[i] = mean.clone().requires_grad_(true);
    }
    for (const int64_t member : members) stage(member).awaits_group = false;
  }

 private:
  size_t next_group(size_t pipeline, size_t s) {
    if (s < groups_.size()) {
      size_t& next = next_[s][pipeline];
      while (next < groups_[s].size()) {
        const std::vector<int64_t>& group = groups_[s][next++];
        if (std::find(group.begin(), group.end(), static_cast<int64_t>(pipeline)) != group.end())
          return next - 1;
      }
    }
    throw InputError("the groups of stage " + std::to_string(s) + " end before the updates of pipeline " +
                         std::to_string(pipeline),
                     "Do they belong to another run?");
  }

  const GroupsByStage& groups_;
  std::vector<std::map<size_t, size_t>> next_;  // by stage and pipeline: the first group that it has not had
  std::vector<std::vector<size_t>> here_;       // by stage and group: how many of its members are there
};

using HandedOut = std::vector<std::vector<int64_t>>;  // by pipeline: minibatches of the run

// What of the span each pipeline got. Each minibatch of it must be one's.
HandedOut handed_out_in(Span span, const PartsBySpan& parts, size_t pipelines) {
  HandedOut minibatches(pipelines);
  std::set<int64_t> left;
  for (int64_t k = span.first; k < span.end(); ++k) left.insert(k);
  const std::string where = "the span that begins with minibatch " + std::to_string(span.first);
  if (const auto found = parts.find(span.first); found != parts.end()) {
    for (const auto& [pipeline, of_pipeline] : found->second) {
      if (pipeline < 0 || pipeline >= static_cast<int64_t>(pipelines))
        throw InputError(where + ": handed out to pipeline " + std::to_string(pipeline),
                         "Does it belong to another run?");
      for (const Span& part : of_pipeline) {
        for (int64_t k = part.first; k < std::min(part.end(), span.end()); ++k) {
          if (left.erase(k) == 0)
            throw InputError(
                where + ": minibatch " + std::to_string(k) + " was handed out twice, or is not of it",
                "Does it belong to another run?");
          minibatches[static_cast<size_t>(pipeline)].push_back(k);
        }
      }
    }
  }
  if (!left.empty()) {
    throw InputError(where + ": minibatch " + std::to_string(*left.begin()) + " was handed out to nobody",
                     "Was the list cut, or does it belong to another run?");
  }
  return minibatches;
}

// Trains a span, one minibatch or update after the other, in any order in which each finds what it reads.
std::vector<double> train_span(std::vector<std::unique_ptr<SerialTraining>>& pipelines, SerialGroups& groups,
                               Span span, const HandedOut* handed_out,
                               const std::function<MinibatchFields(int64_t)>& fields) {
  std::vector<double> losses(static_cast<size_t>(span.count));
  std::map<int64_t, MinibatchFields> asked_for;
  int64_t ask_next = span.first;
  const auto fields_of = [&](int64_t k) {
    for (; ask_next <= k; ++ask_next) asked_for[ask_next] = fields(ask_next);
    return asked_for.extract(k).mapped();
  };
  std::vector<int64_t> next;
  for (const auto& pipeline : pipelines) {
    pipeline->begin(span, handed_out ? &handed_out->at(next.size()) : nullptr);
    next.push_back(pipeline->span().first);
  }
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t i = 0; i < pipelines.size(); ++i) {
      SerialTraining& pipeline = *pipelines[i];
      if (next[i] < pipeline.span().end() && pipeline.can_train(next[i])) {
        const int64_t own = next[i]++, k = pipeline.in_run(own);
        losses[static_cast<size_t>(k - span.first)] = pipeline.train(own, fields_of(k));
        moves = true;
      }
      for (size_t s = 0; s < pipeline.stage_count(); ++s) {
        while (pipeline.update(s)) {
          groups.updated(pipelines, i, s);
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
  return losses;
}

// The pipelines of a plan: one, or, where replicas are not held together, one for each replica.
std::vector<std::unique_ptr<SerialTraining>> pipelines_of(const Model& model, const Plan& plan,
                                                          const TrainingRules& rules) {
  std::vector<std::unique_ptr<SerialTraining>> pipelines;
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
    pipelines.push_back(std::make_unique<SerialTraining>(model, own, rules, static_cast<int64_t>(i),
                                                         static_cast<int64_t>(count)));
  }
  return pipelines;
}

}  // namespace

ReferenceResult train_serially(const Model& model, const Plan& plan, const TrainingRules& rules,
                               const std::vector<Span>& spans,
                               const std::function<MinibatchFields(int64_t)>& fields,
                               const std::function<std::optional<StageState>(size_t)>& start) {
  return train_serially(model, {{plan, spans}}, rules, fields, start);
}

ReferenceResult train_serially(const Model& model, const std::vector<PlanSpans>& parts,
                               const TrainingRules& rules,
                               const std::function<MinibatchFields(int64_t)>& fields,
                               const std::function<std::optional<StageState>(size_t)>& start) {
  std::vector<double> losses;
  std::vector<std::unique_ptr<SerialTraining>> pipelines;
  std::map<int64_t, double> norms;
  for (const PlanSpans& part : parts) {
    auto next = pipelines_of(model, part.plan, rules);
    for (const auto& pipeline : next) {
      if (!pipelines.empty()) {
        pipeline->go_on_from(pipelines.front()->carried());
      } else if (start) {
        pipeline->restore(start);
      }
    }
    pipelines = std::move(next);
    const auto count = static_cast<int64_t>(pipelines.size());
    SerialGroups groups(part.groups, pipelines.size());
    for (const Span& span : part.spans) {
      const bool in_turn = count == 1 || !shares_minibatches(rules.sync);
      const HandedOut handed_out =
          in_turn ? HandedOut() : handed_out_in(span, part.minibatches, pipelines.size());
      const std::vector<double> of_span =
          train_span(pipelines, groups, span, in_turn ? nullptr : &handed_out, fields);
      losses.insert(losses.end(), of_span.begin(), of_span.end());
      for (const auto& pipeline : pipelines) pipeline->end();
      if (count > 1) SerialTraining::average(pipelines);
      for (const auto& pipeline : pipelines) norms.merge(pipeline->take_gradient_norms());
    }
  }
  PW_CHECK(!pipelines.empty(), "no plan");
  ReferenceResult result = pipelines.front()->result();
  for (size_t i = 1; i < pipelines.size(); ++i) {
    const ReferenceResult other = pipelines[i]->result();
    for (const auto& [name, weight] : other.weights)
      PW_CHECK(weight.equal(result.weights.at(name)), "pipelines end with another '" << name << "'");
    for (size_t s = 0; s < result.buffers.size(); ++s) result.buffers[s].push_back(other.buffers[s].at(0));
  }
  result.losses = std::move(losses);
  result.gradient_norms = std::move(norms);
  return result;
}

Plan one_device_plan(const Model& model, const Plan& plan, const TrainingRules& rules) {
  Plan single = single_stage_plan(model.graph, 1);
  single.schedule = "gpipe";
  single.weights = "flush";
  const size_t cycle = cycle_of(plan.stages[0]).size();
  if (rules.sync != "all-reduce" && cycle > 1) {
    single.schedule.clear();
    return single;
  }
  const bool together = std::all_of(plan.stages.begin(), plan.stages.end(),
                                    [&](const Stage& stage) { return cycle_of(stage).size() == cycle; });
  // Nobody runs ahead of the first stage.
  const bool fresh =
      plan.weights != "2bw" && (plan.schedule == "model-parallel" ||
                                run_ahead(cycle_of(plan.stages[0]), plan.stages[0].in_flight) == 0);
  const bool clips_alike = plan.stages.size() == 1 || rules.gradient_clipping_norm == 0;
  if (plan.weights == "flush") {
    single.microbatches = plan.microbatches;
  } else if (fresh && together && clips_alike) {
    single.microbatches = rules.gradient_accumulation * static_cast<int64_t>(cycle);
  } else {
    single.schedule.clear();
  }
  single.stages[0].in_flight = single.microbatches;
  return single;
}

}  // namespace pipewright
