#include "runtime/stage/stage_program.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <set>

#include "graph/error.h"
#include "models/memory/memory_meter.h"
#include "models/run/scalar_types.h"
#include "runtime/update/gradient_norm.h"

namespace pipewright {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::impl::gradient_edge;

std::vector<std::string> segment_outputs(const Graph& graph, const std::vector<StageInterface>& stages,
                                         size_t index, const BackwardCuts& cuts) {
  auto outputs = index + 1 < stages.size() ? stages[index].sent : graph.outputs;
  outputs.insert(outputs.end(), cuts.values.begin(), cuts.values.end());
  return outputs;
}

// Gradients at `leaves`, undefined where none flows.
std::vector<at::Tensor> gradients_at(const edge_list& roots, const std::vector<at::Tensor>& root_gradients,
                                     const edge_list& leaves, bool keep_graph) {
  if (roots.empty() || leaves.empty()) return std::vector<at::Tensor>(leaves.size());
  return torch::autograd::Engine::get_default_engine().execute(
      roots, root_gradients, keep_graph, /*create_graph=*/false, /*accumulate_grad=*/false, leaves);
}

// Tells of the gradients of leaves while autograd runs.
class LeafHooks {
 public:
  /// Nobody else puts hooks on these leaves. With an empty `made` none are put.
  LeafHooks(std::vector<at::Tensor> leaves, const GradientMade& made) {
    if (!made) return;
    leaves_ = std::move(leaves);
    for (size_t i = 0; i < leaves_.size(); ++i)
      torch::autograd::impl::add_hook(leaves_[i], std::make_unique<Hook>(i, made));
  }
  ~LeafHooks() {
    for (const at::Tensor& leaf : leaves_) torch::autograd::impl::clear_hooks(leaf);
  }
  LeafHooks(const LeafHooks&) = delete;
  LeafHooks& operator=(const LeafHooks&) = delete;

 private:
  struct Hook : torch::autograd::FunctionPreHook {
    Hook(size_t leaf, const GradientMade& made) : leaf(leaf), made(made) {}
    std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& gradients) override {
      if (gradients[0].defined()) made(leaf, gradients[0]);
      return gradients;
    }
    size_t leaf;
    const GradientMade& made;
  };
  std::vector<at::Tensor> leaves_;
};

// Where the gradient of a received value arrives. A leaf would hold the value as long as the graph lives;
// this leaves that to the operators that save it.
struct ReceivedValue : torch::autograd::Node {
  std::vector<at::Tensor> apply(std::vector<at::Tensor>&&) override {
    PW_CHECK(false, "autograd ends at what was received");
    return {};
  }
};

std::vector<at::Tensor> inputs_of(const Segment& segment, const std::map<std::string, at::Tensor>& values) {
  std::vector<at::Tensor> inputs;
  for (const std::string& name : segment.inputs()) {
    const auto value = values.find(name);
    PW_CHECK(value != values.end(),
             "the segment reads '" << name << "', which is neither received nor a field");
    inputs.push_back(value->second);
  }
  return inputs;
}

std::vector<MessagePart> parts_of(const Graph& graph, const std::vector<std::string>& names,
                                  const std::vector<bool>* wanted, at::Device device) {
  std::vector<MessagePart> parts;
  for (size_t i = 0; i < names.size(); ++i) {
    if (wanted && !(*wanted)[i]) continue;
    const TensorType type = graph.computed_type(names[i]);
    parts.push_back({type.shape, scalar_type_of(type.dtype), device});
  }
  return parts;
}

}  // namespace

StageProgram::StageProgram(const Graph& graph, const std::vector<StageInterface>& stages, size_t index,
                           StageProgramOptions options)
    : options_(options),
      last_(index + 1 == stages.size()),
      cuts_(options.split_backward ? backward_cuts(graph, stages[index].nodes) : BackwardCuts()),
      segment_(graph, stages[index].nodes, segment_outputs(graph, stages, index, cuts_), options.device,
               options.keeping_buffers),
      fields_(stages[index].fields),
      received_(stages[index].received),
      sent_(stages[index].sent) {
  const auto differentiable = differentiable_values(graph);
  for (const auto& name : received_) received_differentiable_.push_back(differentiable.count(name) > 0);
  for (const auto& name : sent_) sent_differentiable_.push_back(differentiable.count(name) > 0);
  std::map<std::string, size_t> uncut;  // trainable weights, by name
  for (size_t i = 0; i < segment_.parameters().size(); ++i) {
    const auto parameter =
        std::find_if(graph.parameters.begin(), graph.parameters.end(),
                     [&](const Parameter& p) { return p.name == segment_.parameters()[i]; });
    if (!parameter->trainable) continue;
    uncut[parameter->name] = trainable_.size();
    trainable_.push_back(i);
    for (size_t n = 0; n < stages[index].nodes.size(); ++n) {
      const auto read = graph.nodes[stages[index].nodes[n]].reads();
      if (std::find(read.begin(), read.end(), parameter->name) == read.end()) continue;
      trainable_reader_.push_back(n);
      break;
    }
  }
  for (const BackwardCuts::Cut& cut : cuts_.cuts) {
    cut_weights_.emplace_back();
    for (const std::string& name : cut.weights) {
      cut_weights_.back().push_back(uncut.at(name));
      uncut.erase(name);
    }
  }
  for (const auto& [name, position] : uncut) uncut_weights_.push_back(position);
  received_parts_ = parts_of(graph, received_, nullptr, options.device);
  sent_parts_ = parts_of(graph, sent_, nullptr, options.device);
  received_gradient_parts_ = parts_of(graph, received_, &received_differentiable_, options.device);
  sent_gradient_parts_ = parts_of(graph, sent_, &sent_differentiable_, options.device);

  std::vector<size_t> first, second;
  for (const size_t i : stages[index].nodes) (i < options_.recompute_from ? first : second).push_back(i);
  if (!options_.recompute || first.empty() || second.empty()) return;
  second_part_ = std::make_unique<Part>(graph, second, segment_.outputs(), segment_, options_);
  std::set<std::string> made;
  for (const size_t i : first) made.insert(graph.nodes[i].outputs.begin(), graph.nodes[i].outputs.end());
  std::vector<std::string> between;
  for (const std::string& name : second_part_->segment.inputs())
    if (made.count(name) > 0) between.push_back(name);
  first_part_ = std::make_unique<Part>(graph, first, std::move(between), segment_, options_);
}

namespace {

std::vector<size_t> positions_in(const std::vector<std::string>& all, const std::vector<std::string>& names) {
  std::vector<size_t> positions;
  for (const std::string& name : names)
    positions.push_back(static_cast<size_t>(std::find(all.begin(), all.end(), name) - all.begin()));
  return positions;
}

std::vector<at::Tensor> picked(const std::vector<at::Tensor>& all, const std::vector<size_t>& positions) {
  std::vector<at::Tensor> tensors;
  for (const size_t i : positions) tensors.push_back(all.at(i));
  return tensors;
}

}  // namespace

StageProgram::Part::Part(const Graph& graph, const std::vector<size_t>& nodes,
                         std::vector<std::string> outputs, const Segment& whole,
                         const StageProgramOptions& options)
    : segment(graph, nodes, std::move(outputs), options.device, options.keeping_buffers),
      parameters(positions_in(whole.parameters(), segment.parameters())),
      buffers(positions_in(whole.buffers(), segment.buffers())) {}

std::vector<at::Tensor> StageProgram::Part::weights_of(const WeightVersion& version) const {
  return picked(version.weights, parameters);
}

std::vector<at::Tensor> StageProgram::Part::copies_of(const WeightVersion& version) const {
  return version.copies.empty() ? version.copies : picked(version.copies, parameters);
}

std::vector<at::Tensor> StageProgram::Part::buffers_of(const std::vector<at::Tensor>& all) const {
  return picked(all, buffers);
}

Pass StageProgram::forward(std::vector<at::Tensor> received, std::vector<at::Tensor> fields,
                           std::shared_ptr<const WeightVersion> version,
                           const std::vector<at::Tensor>& buffers, RandomKey key) const {
  PW_CHECK_EQ(received.size(), received_.size());
  PW_CHECK_EQ(fields.size(), fields_.size());
  const MemoryScope scope(MemoryPurpose::kActivations);
  Pass pass;
  pass.version = std::move(version);
  pass.key = key;
  if (!options_.recompute || !at::GradMode::is_enabled()) {
    run(pass, std::move(received), std::move(fields), buffers);
    return pass;
  }
  for (const at::Tensor& buffer : second_part_ ? second_part_->buffers_of(buffers) : buffers)
    pass.buffers.push_back(buffer.clone());
  if (!second_part_) {
    pass.received = received;
    pass.fields = fields;
  }
  // With autograd, although its graph is dropped at once: so this forward and the second one run the same
  // kernels, and the memory that it takes here the backward will take again.
  run(pass, std::move(received), std::move(fields), buffers);
  pass.roots.clear();
  if (!second_part_) pass.received_edges.clear();
  pass.cut_edges.clear();
  return pass;
}

void StageProgram::run(Pass& pass, std::vector<at::Tensor> received, std::vector<at::Tensor> fields,
                       const std::vector<at::Tensor>& buffers, const NodeObserver* observer) const {
  for (size_t i = 0; i < received.size(); ++i) {
    received[i] = received[i].detach();
    if (!at::GradMode::is_enabled() || !received_differentiable_[i]) continue;
    torch::autograd::create_gradient_edge(received[i], std::make_shared<ReceivedValue>());
    pass.received_edges.push_back(gradient_edge(received[i]));
  }
  // Segments ask for their inputs in their own order: received values and fields by name.
  std::map<std::string, at::Tensor> values;
  for (size_t i = 0; i < received.size(); ++i) values.emplace(received_[i], std::move(received[i]));
  for (size_t i = 0; i < fields.size(); ++i) values.emplace(fields_[i], std::move(fields[i]));
  received.clear();
  fields.clear();
  if (second_part_ && at::GradMode::is_enabled())
    return take_outputs(pass, run_parts(pass, std::move(values), buffers));
  std::vector<at::Tensor> inputs = inputs_of(segment_, values);
  values.clear();
  take_outputs(pass, segment_.forward(std::move(inputs), pass.version->weights, buffers, pass.key, observer,
                                      pass.version->copies));
}

std::vector<at::Tensor> StageProgram::run_parts(Pass& pass, std::map<std::string, at::Tensor> values,
                                                const std::vector<at::Tensor>& buffers) const {
  const auto made = first_part_->segment.forward(inputs_of(first_part_->segment, values),
                                                 first_part_->weights_of(*pass.version),
                                                 first_part_->buffers_of(buffers), pass.key,
                                                 /*observer=*/nullptr, first_part_->copies_of(*pass.version));
  for (size_t i = 0; i < made.size(); ++i) values[first_part_->segment.outputs()[i]] = made[i];
  pass.between = inputs_of(second_part_->segment, values);
  values.clear();
  return run_second_part(pass, second_part_->buffers_of(buffers));
}

std::vector<at::Tensor> StageProgram::run_second_part(const Pass& pass,
                                                      const std::vector<at::Tensor>& buffers) const {
  return second_part_->segment.forward(pass.between, second_part_->weights_of(*pass.version), buffers,
                                       pass.key, /*observer=*/nullptr,
                                       second_part_->copies_of(*pass.version));
}

void StageProgram::take_outputs(Pass& pass, std::vector<at::Tensor> outputs) const {
  const size_t cuts_begin = outputs.size() - cuts_.values.size();
  const size_t roots = last_ ? 1 : cuts_begin;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (i >= roots && i < cuts_begin) continue;  // handed out only
    auto& edges = i < roots ? pass.roots : pass.cut_edges;
    edges.push_back(outputs[i].requires_grad() ? gradient_edge(outputs[i]) : Edge());
  }
  outputs.resize(cuts_begin);
  for (at::Tensor& output : outputs) output = output.detach();
  if (last_) {
    pass.loss = outputs[0];
    pass.handed_out.assign(outputs.begin() + 1, outputs.end());
  } else {
    pass.sent = std::move(outputs);
  }
}

std::string StageProgram::where_not_finite(const Pass& pass, std::vector<at::Tensor> received,
                                           std::vector<at::Tensor> fields,
                                           const std::vector<at::Tensor>& buffers) const {
  const at::NoGradGuard no_grad;
  Pass again;
  again.version = pass.version;
  again.key = pass.key;
  std::vector<at::Tensor> copies;
  for (const at::Tensor& buffer : buffers) copies.push_back(buffer.clone());
  std::string nan;
  std::string infinite;
  NodeObserver observer;
  observer.made = [&](size_t node, size_t, const at::Tensor& tensor) {
    if (!nan.empty() || all_finite(tensor)) return;
    if (tensor.isnan().any().item<bool>()) {
      nan = segment_.label(node);
    } else if (infinite.empty()) {
      infinite = segment_.label(node);  // may be meant: masks are filled with it
    }
  };
  run(again, std::move(received), std::move(fields), copies, &observer);
  if (nan.empty()) return infinite.empty() ? "" : "first in " + infinite;
  return "first not a number in " + nan +
         (infinite.empty() ? "" : ", first infinite before it in " + infinite);
}

void StageProgram::recompute(Pass& pass) const {
  const MemoryScope scope(MemoryPurpose::kActivations);
  const at::AutoGradMode with_gradients(true);
  if (second_part_) {
    // Its inputs are those of the first run, with the graph that the first part has left: so the backward
    // runs over one graph, the same as without recomputing.
    take_outputs(pass, run_second_part(pass, pass.buffers));
    pass.between.clear();
  } else {
    run(pass, std::move(pass.received), std::move(pass.fields), pass.buffers);
  }
  pass.buffers.clear();
  pass.sent.clear();
}

StageProgram::Roots StageProgram::roots_of(const Pass& pass, std::vector<at::Tensor> sent_gradients) const {
  Roots roots;
  const auto add = [&](const Edge& edge, at::Tensor gradient) {
    if (!edge.is_valid()) return;
    roots.edges.push_back(edge);
    roots.gradients.push_back(std::move(gradient));
  };
  // A loss that counts nothing may be 0 / 0, and so would be its gradient.
  if (last_ && pass.loss_weight != 0) {
    add(pass.roots[0], pass.loss_gradient.defined() ? pass.loss_gradient
                       : pass.loss_weight == 1      ? at::ones_like(pass.loss)
                                                    : at::full_like(pass.loss, pass.loss_weight));
  }
  std::map<std::string, Edge>
      received;  // of a value carried through: there autograd adds what comes from here
  for (size_t i = 0, next = 0; i < received_.size(); ++i)
    if (received_differentiable_[i]) received[received_[i]] = pass.received_edges.at(next++);
  size_t next = 0;
  for (size_t i = 0; i < sent_.size(); ++i) {
    if (!sent_differentiable_[i]) continue;
    const auto carried = received.find(sent_[i]);
    add(carried != received.end() ? carried->second : pass.roots[i], std::move(sent_gradients.at(next++)));
  }
  PW_CHECK_EQ(next, sent_gradients.size());
  return roots;
}

std::vector<at::Tensor> StageProgram::message_upstream(const std::vector<at::Tensor>& gradients) const {
  std::vector<at::Tensor> message;
  for (size_t i = 0; i < received_.size(); ++i) {
    if (!received_differentiable_[i]) continue;
    const at::Tensor& gradient = gradients[message.size()];
    const MessagePart& part = received_parts_[i];
    message.push_back(gradient.defined() ? gradient : at::zeros(part.shape, part.options()));
    count_memory_as(message.back(), MemoryPurpose::kMessages);
  }
  return message;
}

StageGradients StageProgram::backward(Pass pass, std::vector<at::Tensor> sent_gradients,
                                      const GradientMade& made, bool keep_graph) const {
  const MemoryScope scope(MemoryPurpose::kGradients);
  if (options_.recompute) recompute(pass);
  const Roots roots = roots_of(pass, std::move(sent_gradients));
  std::vector<Edge> leaves = pass.received_edges;
  const size_t first_weight = leaves.size();
  leaves.reserve(first_weight + trainable_.size());
  for (const size_t i : trainable_) leaves.push_back(gradient_edge(pass.version->weights[i]));
  const LeafHooks hooks(made ? picked(pass.version->weights, trainable_) : std::vector<at::Tensor>(), made);
  std::vector<at::Tensor> gradients = gradients_at(roots.edges, roots.gradients, leaves, keep_graph);
  StageGradients result;
  result.received = message_upstream(gradients);
  for (size_t i = 0; i < trainable_.size(); ++i) {
    at::Tensor gradient = std::move(gradients[first_weight + i]);
    result.weights.push_back(gradient.defined() ? std::move(gradient)
                                                : at::zeros_like(pass.version->weights[trainable_[i]]));
  }
  return result;
}

std::vector<at::Tensor> StageProgram::backward_input(Pass& pass,
                                                     std::vector<at::Tensor> sent_gradients) const {
  PW_CHECK(options_.split_backward, "the backward of this stage comes in one piece");
  const MemoryScope scope(MemoryPurpose::kGradients);
  if (options_.recompute) recompute(pass);
  const Roots roots = roots_of(pass, std::move(sent_gradients));
  std::vector<Edge> leaves = pass.received_edges;
  const size_t first_weight = leaves.size();
  for (const size_t i : uncut_weights_) leaves.push_back(gradient_edge(pass.version->weights[trainable_[i]]));
  std::vector<size_t> cut_values;  // those that a gradient may reach
  for (size_t i = 0; i < pass.cut_edges.size(); ++i) {
    if (!pass.cut_edges[i].is_valid()) continue;
    cut_values.push_back(i);
    leaves.push_back(pass.cut_edges[i]);
  }
  const std::vector<at::Tensor> gradients =
      gradients_at(roots.edges, roots.gradients, leaves, /*keep_graph=*/true);
  size_t next = first_weight;
  pass.weight_gradients.resize(trainable_.size());
  for (const size_t i : uncut_weights_) pass.weight_gradients[i] = gradients[next++];
  pass.cut_gradients.resize(pass.cut_edges.size());
  for (const size_t i : cut_values) pass.cut_gradients[i] = gradients[next++];
  return message_upstream(gradients);
}

std::vector<at::Tensor> StageProgram::backward_weight(Pass pass, const GradientMade& made,
                                                      bool keep_graph) const {
  const MemoryScope scope(MemoryPurpose::kGradients);
  std::vector<at::Tensor> result = std::move(pass.weight_gradients);
  const auto tell = [&](size_t i) {
    if (made && result[i].defined()) made(i, result[i]);
  };
  for (const size_t i : uncut_weights_) tell(i);
  for (size_t c = cuts_.cuts.size(); c-- > 0;) {
    edge_list roots;
    std::vector<at::Tensor> root_gradients;
    for (const size_t value : cuts_.cuts[c].values) {
      if (!pass.cut_gradients[value].defined()) continue;
      roots.push_back(pass.cut_edges[value]);
      root_gradients.push_back(std::move(pass.cut_gradients[value]));
    }
    edge_list leaves;
    for (const size_t i : cut_weights_[c])
      leaves.push_back(gradient_edge(pass.version->weights[trainable_[i]]));
    std::vector<at::Tensor> gradients = gradients_at(roots, root_gradients, leaves, keep_graph);
    for (size_t i = 0; i < gradients.size(); ++i) {
      result[cut_weights_[c][i]] = std::move(gradients[i]);
      tell(cut_weights_[c][i]);
    }
  }
  for (size_t i = 0; i < result.size(); ++i) {
    if (!result[i].defined()) result[i] = at::zeros_like(pass.version->weights[trainable_[i]]);
  }
  return result;
}

}  // namespace pipewright
