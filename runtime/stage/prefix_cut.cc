#include "runtime/stage/prefix_cut.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/digest.h"
#include "graph/error.h"
#include "graph/graph_identity.h"

namespace pipewright {
namespace {

size_t place_of(const std::vector<std::string>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  PW_CHECK(found != names.end(), "'" << name << "' is not among what the stage has");
  return static_cast<size_t>(found - names.begin());
}

std::vector<at::Tensor> picked(const std::vector<std::string>& wanted, const std::vector<std::string>& names,
                               const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const std::string& name : wanted) result.push_back(tensors.at(place_of(names, name)));
  return result;
}

// What the rest of the stage runs of the nodes before `end`: those that no sample decides, and those that
// every stage runs by itself.
std::set<size_t> repeated(const Graph& graph, const std::vector<size_t>& nodes, size_t end) {
  std::set<std::string> of_samples(graph.inputs.begin(), graph.inputs.end());
  const std::set<std::string> everywhere(graph.everywhere.begin(), graph.everywhere.end());
  std::set<size_t> result;
  for (const size_t i : nodes) {
    if (i >= end) break;
    const Node& node = graph.nodes[i];
    const auto read = node.reads();
    const bool of_sample = std::any_of(read.begin(), read.end(),
                                       [&](const std::string& name) { return of_samples.count(name) > 0; });
    if (of_sample) of_samples.insert(node.outputs.begin(), node.outputs.end());
    if (!of_sample || everywhere.count(node.name)) result.insert(i);
  }
  return result;
}

// The program behind the cut: the first stage, with other nodes and fields.
std::vector<StageInterface> interfaces_behind(const Graph& graph, std::vector<StageInterface> stages,
                                              size_t end, std::vector<std::string>& values) {
  StageInterface& stage = stages[0];
  const std::set<size_t> again = repeated(graph, stage.nodes, end);
  std::set<std::string> needed(stage.sent.begin(), stage.sent.end());
  if (stages.size() == 1) needed.insert(graph.outputs.begin(), graph.outputs.end());
  std::vector<size_t> nodes;
  std::set<std::string> crossing;
  for (auto at = stage.nodes.rbegin(); at != stage.nodes.rend(); ++at) {
    const Node& node = graph.nodes[*at];
    const bool makes = std::any_of(node.outputs.begin(), node.outputs.end(),
                                   [&](const std::string& name) { return needed.count(name) > 0; });
    if (*at < end && !makes) continue;
    if (*at < end && !again.count(*at)) {
      for (const std::string& name : node.outputs)
        if (needed.count(name)) crossing.insert(name);
      continue;
    }
    nodes.push_back(*at);
    for (const std::string& name : node.reads()) needed.insert(name);
  }
  for (const size_t i : stage.nodes)
    for (const std::string& name : graph.nodes[i].outputs)
      if (crossing.count(name)) values.push_back(name);
  std::vector<std::string> fields = values;
  for (const std::string& name : stage.fields)
    if (needed.count(name)) fields.push_back(name);
  stage.nodes.assign(nodes.rbegin(), nodes.rend());
  stage.fields = std::move(fields);
  return stages;
}

}  // namespace

PrefixCut::PrefixCut(const Graph& graph, const std::vector<StageInterface>& stages, size_t end,
                     const StageProgram& whole, StageProgramOptions options)
    : graph_(graph),
      nodes_(stages.at(0).nodes),
      end_(end),
      device_(options.device),
      fields_(whole.fields()),
      parameters_(whole.parameters()),
      buffers_(whole.buffers()) {
  const auto behind = interfaces_behind(graph, stages, end, values_);
  const int64_t samples = samples_of(graph);
  for (const std::string& name : values_) {
    types_.push_back(graph.computed_type(name));
    const auto& shape = types_.back().shape;
    if (shape.empty() || shape[0] != samples)
      obstacle_ = "'" + name + "', which leaves the frozen layers, is not one value for each sample";
  }
  if (values_.empty()) obstacle_ = "nothing of the samples leaves the frozen layers";
  if (!obstacle_.empty()) return;
  prefix_ = std::make_unique<Segment>(graph_, makers({}), values_, device_, end_);
  if (!prefix_->random_nodes().empty()) {
    obstacle_ = prefix_->label(prefix_->random_nodes()[0]) + " of the frozen layers draws random numbers";
    return;
  }
  behind_ = std::make_unique<StageProgram>(graph, behind, 0, options);
  PW_CHECK_EQ(behind_->trainable().size(), whole.trainable().size());
}

std::vector<size_t> PrefixCut::makers(const std::vector<std::string>& given) const {
  std::set<std::string> needed(values_.begin(), values_.end());
  for (const std::string& name : given) needed.erase(name);
  std::vector<size_t> nodes;
  for (auto at = nodes_.rbegin(); at != nodes_.rend(); ++at) {
    const Node& node = graph_.nodes[*at];
    const bool makes = std::any_of(node.outputs.begin(), node.outputs.end(),
                                   [&](const std::string& name) { return needed.count(name) > 0; });
    if (*at >= end_ || !makes) continue;
    nodes.push_back(*at);
    for (const std::string& name : node.reads())
      if (std::find(given.begin(), given.end(), name) == given.end()) needed.insert(name);
  }
  return {nodes.rbegin(), nodes.rend()};
}

std::vector<at::Tensor> PrefixCut::run_segment(const Segment& segment, const std::vector<std::string>& given,
                                               const std::vector<at::Tensor>& values,
                                               const std::vector<at::Tensor>& fields,
                                               const std::vector<at::Tensor>& weights,
                                               const std::vector<at::Tensor>& buffers) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> inputs;
  for (const std::string& name : segment.inputs()) {
    const auto found = std::find(given.begin(), given.end(), name);
    inputs.push_back(found != given.end() ? values.at(static_cast<size_t>(found - given.begin()))
                                          : fields.at(place_of(fields_, name)));
  }
  return segment.forward(std::move(inputs), picked(segment.parameters(), parameters_, weights),
                         picked(segment.buffers(), buffers_, buffers), {});
}

std::vector<at::Tensor> PrefixCut::run(const std::vector<at::Tensor>& fields,
                                       const std::vector<at::Tensor>& weights,
                                       const std::vector<at::Tensor>& buffers) const {
  return run_segment(*prefix_, {}, {}, fields, weights, buffers);
}

std::vector<at::Tensor> PrefixCut::run_from(const PrefixCut& shallower, const std::vector<at::Tensor>& values,
                                            const std::vector<at::Tensor>& fields,
                                            const std::vector<at::Tensor>& weights,
                                            const std::vector<at::Tensor>& buffers) const {
  const auto& given = shallower.values();
  auto step = steps_.find(given);
  if (step == steps_.end())
    step = steps_.emplace(given, Segment(graph_, makers(given), values_, device_, end_)).first;
  return run_segment(step->second, given, values, fields, weights, buffers);
}

std::string PrefixCut::digest(const std::vector<at::Tensor>& weights,
                              const std::vector<at::Tensor>& buffers) const {
  Graph nodes;
  nodes.outputs = values_;
  for (const size_t i : makers({})) nodes.nodes.push_back(graph_.nodes[i]);
  const std::string text = nodes.to_json().dump();
  Digest digest;
  digest.add(text.data(), text.size());
  for (const auto& tensors :
       {picked(prefix_->parameters(), parameters_, weights), picked(prefix_->buffers(), buffers_, buffers)}) {
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor bytes = tensor.detach().cpu().contiguous();
      digest.add(bytes.const_data_ptr(), bytes.nbytes());
    }
  }
  return digest.text();
}

std::vector<at::Tensor> PrefixCut::other_fields(const std::vector<at::Tensor>& fields,
                                                const std::vector<std::string>& wanted) const {
  return picked(wanted, fields_, fields);
}

std::shared_ptr<const WeightVersion> PrefixCut::version_behind(const WeightVersion& whole) const {
  auto version = std::make_shared<WeightVersion>();
  version->number = whole.number;
  version->weights = picked(behind_->parameters(), parameters_, whole.weights);
  if (!whole.copies.empty()) version->copies = picked(behind_->parameters(), parameters_, whole.copies);
  return version;
}

std::vector<at::Tensor> PrefixCut::buffers_behind(const std::vector<at::Tensor>& whole) const {
  return picked(behind_->buffers(), buffers_, whole);
}

}  // namespace pipewright
