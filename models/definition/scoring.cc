#include "models/definition/scoring.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "models/definition/literal.h"

namespace pipewright {
namespace {

bool is_one_of(const std::string& op, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const char* name) { return op == std::string("aten::") + name; });
}

/// Elements behind dimension d.
int64_t inner_of(const std::vector<int64_t>& shape, int64_t d) {
  int64_t inner = 1;
  for (size_t i = static_cast<size_t>(d) + 1; i < shape.size(); ++i) inner *= shape[i];
  return inner;
}

/// The same dimension in another shape of the same elements in the same order, if it is one there.
std::optional<int64_t> in_other_shape(const std::vector<int64_t>& from, int64_t d,
                                      const std::vector<int64_t>& to) {
  for (size_t i = 0; i < to.size(); ++i)
    if (to[i] == from[static_cast<size_t>(d)] && inner_of(to, static_cast<int64_t>(i)) == inner_of(from, d))
      return static_cast<int64_t>(i);
  return std::nullopt;
}

int64_t from_front(int64_t dimension, size_t rank) {
  return dimension < 0 ? dimension + static_cast<int64_t>(rank) : dimension;
}

/// Values and their makers.
class Flow {
 public:
  explicit Flow(const Graph& graph) : graph_(graph) {
    for (const Node& node : graph.nodes)
      for (const std::string& output : node.outputs) maker_[output] = &node;
  }

  const Node* maker(const std::string& value) const {
    const auto found = maker_.find(value);
    return found == maker_.end() ? nullptr : found->second;
  }
  const std::vector<int64_t>& shape(const std::string& value) const { return graph_.values.at(value).shape; }

  /// The value that `value` is made of, element by element and in the same order, or a part of it: by views,
  /// copies, other dtypes. `keeps_numbers` false: also by what leaves the order of a position's scores alone.
  /// "": none.
  std::string source(const std::string& value, bool keeps_numbers) const {
    const Node* node = maker(value);
    if (node == nullptr || node->outputs.size() != 1) return "";
    const bool same =
        is_one_of(node->op, {"view",    "reshape",    "_unsafe_view", "flatten",         "unflatten",
                             "squeeze", "unsqueeze",  "transpose",    "permute",         "t",
                             "slice",   "contiguous", "clone",        "alias",           "detach",
                             "to",      "_to_copy",   "type_as",      "lift_fresh_copy", "narrow"}) ||
        (keeps_numbers && is_one_of(node->op, {"constant_pad_nd", "pad"}));
    const bool ordered =
        !keeps_numbers &&
        (is_one_of(node->op, {"softmax", "log_softmax", "_softmax", "_log_softmax"}) || is_scaled(*node));
    const auto* self = literal<TensorArgument>(*node, "self");
    if (!(same || ordered) || self == nullptr || graph_.values.count(self->name) == 0) return "";
    return self->name;
  }

  /// Dimension d of a value's source, in the value; and the other way round. Nothing: it is none there.
  std::optional<int64_t> forward(const Node& node, int64_t d) const { return moved(node, d, true); }
  std::optional<int64_t> backward(const Node& node, int64_t d) const { return moved(node, d, false); }

  /// The value has all positions of its source, in the same order; dimension d of the source, its classes, is
  /// none of theirs (-1: it has no classes).
  bool keeps_positions(const Node& node, int64_t d) const {
    if (is_one_of(node.op, {"pad", "constant_pad_nd"})) return false;
    if (is_one_of(node.op, {"slice", "narrow"}))
      return shape(node.outputs[0]) == shape(literal<TensorArgument>(node, "self")->name);
    auto order = permutation(node);
    if (!order) return true;
    std::erase(*order, d);
    return std::is_sorted(order->begin(), order->end());
  }

 private:
  static bool is_scaled(const Node& node) {
    if (!is_one_of(node.op, {"mul", "div"})) return false;
    const auto* real = literal<double>(node, "other");
    const auto* whole = literal<int64_t>(node, "other");
    return (real != nullptr && *real > 0) || (whole != nullptr && *whole > 0);
  }

  /// By dimension of the result that of the source; nothing: the node permutes none.
  std::optional<std::vector<int64_t>> permutation(const Node& node) const {
    const size_t rank = shape(node.outputs[0]).size();
    std::vector<int64_t> order;
    for (size_t i = 0; i < rank; ++i) order.push_back(static_cast<int64_t>(i));
    if (is_one_of(node.op, {"transpose", "t"})) {
      if (rank < 2) return order;
      const auto* a = literal<int64_t>(node, "dim0");
      const auto* b = literal<int64_t>(node, "dim1");
      std::swap(order.at(static_cast<size_t>(from_front(a ? *a : 0, rank))),
                order.at(static_cast<size_t>(from_front(b ? *b : 1, rank))));
      return order;
    }
    const auto* dims = literal<std::vector<int64_t>>(node, "dims");
    if (node.op != "aten::permute" || dims == nullptr || dims->size() != rank) return std::nullopt;
    for (size_t i = 0; i < rank; ++i) order[i] = from_front((*dims)[i], rank);
    return order;
  }

  std::optional<int64_t> moved(const Node& node, int64_t d, bool forward) const {
    const auto& in = shape(literal<TensorArgument>(node, "self")->name);
    const auto& out = shape(node.outputs[0]);
    if (const auto order = permutation(node)) {
      if (!forward) return order->at(static_cast<size_t>(d));
      return std::find(order->begin(), order->end(), d) - order->begin();
    }
    if (is_one_of(node.op, {"slice", "narrow"})) {  // a part of the classes is none of their order
      const auto place = static_cast<size_t>(d);
      return place < in.size() && in[place] == out[place] ? std::optional(d) : std::nullopt;
    }
    return forward ? in_other_shape(in, d, out) : in_other_shape(out, d, in);
  }

  const Graph& graph_;
  std::map<std::string, const Node*> maker_;
};

/// A dimension that two values share.
struct SharedDimension {
  int64_t in_other;
  bool aligned;  ///< so they do the positions of the others
};

/// Where dimension d of `value` is in `other`, if both are made of one value.
std::optional<SharedDimension> shared_dimension(const Flow& flow, std::string value, int64_t d,
                                                const std::string& other) {
  std::map<std::string, SharedDimension> before = {{value, {d, true}}};
  for (;;) {
    const SharedDimension here = before.at(value);
    const std::string source = flow.source(value, /*keeps_numbers=*/false);
    if (source.empty()) break;
    const Node& node = *flow.maker(value);
    const auto there = flow.backward(node, here.in_other);
    if (!there) break;
    before[source] = {*there, here.aligned && flow.keeps_positions(node, *there)};
    value = source;
  }
  std::vector<std::string> path = {other};  // from what both are made of to `other`, the last first
  while (before.count(path.back()) == 0) {
    path.push_back(flow.source(path.back(), /*keeps_numbers=*/false));
    if (path.back().empty()) return std::nullopt;
  }
  SharedDimension found = before.at(path.back());
  for (size_t i = path.size() - 1; i-- > 0;) {
    const Node& node = *flow.maker(path[i]);
    const auto there = flow.forward(node, found.in_other);
    if (!there) return std::nullopt;
    found = {*there, found.aligned && flow.keeps_positions(node, found.in_other)};
  }
  return found;
}

bool is_whole_number(const std::string& dtype) { return dtype == "int64" || dtype == "int32"; }

/// Fields that the value depends on.
std::set<std::string> fields_of(const Graph& graph, const Flow& flow, const std::string& value) {
  std::set<std::string> seen;
  std::vector<std::string> to_visit = {value};
  while (!to_visit.empty()) {
    const std::string name = to_visit.back();
    to_visit.pop_back();
    if (!seen.insert(name).second) continue;
    if (const Node* node = flow.maker(name))
      for (const std::string& read : node->reads()) to_visit.push_back(read);
  }
  std::erase_if(seen, [&](const std::string& name) {
    return std::find(graph.inputs.begin(), graph.inputs.end(), name) == graph.inputs.end();
  });
  return seen;
}

bool is_text(const Graph& graph, const Flow& flow, const std::string& targets) {
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(),
                   [](const Node& node) { return node.op == "aten::embedding"; }))
    return false;
  const auto fields = fields_of(graph, flow, targets);
  return std::any_of(fields.begin(), fields.end(), [&](const std::string& name) {
    const TensorType& type = graph.values.at(name);
    return is_whole_number(type.dtype) && type.shape.size() == 2 && type.shape[1] > 1;
  });
}

constexpr int64_t kMean = 1, kSum = 2;  // at::Reduction

/// Behind views and casts.
const Node* maker_of_loss(const Graph& graph, const Flow& flow) {
  std::string loss = graph.outputs.at(0);
  for (;;) {
    const std::string source = flow.source(loss, /*keeps_numbers=*/true);
    if (source.empty()) return flow.maker(loss);
    loss = source;
  }
}

std::optional<Scoring> of_node(const Graph& graph, const Flow& flow, const Node& node) {
  if (!is_one_of(node.op, {"cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "nll_loss_forward",
                           "nll_loss2d_forward"}))
    return std::nullopt;
  const auto* scores = literal<TensorArgument>(node, "self");
  const auto* targets = literal<TensorArgument>(node, "target");
  if (scores == nullptr || targets == nullptr || graph.values.count(scores->name) == 0 ||
      graph.values.count(targets->name) == 0 || !is_whole_number(graph.values.at(targets->name).dtype))
    return std::nullopt;
  const auto& shape = flow.shape(scores->name);
  if (shape.empty()) return std::nullopt;
  Scoring scoring;
  scoring.scores = scores->name;
  scoring.targets = targets->name;
  const int64_t dimension = shape.size() == 1 ? 0 : 1;
  scoring.classes = shape[static_cast<size_t>(dimension)];
  if (const auto* ignored = literal<int64_t>(node, "ignore_index")) scoring.ignored = *ignored;
  if (const auto* weights = literal<TensorArgument>(node, "weight")) scoring.class_weights = weights->name;
  if (const auto* smoothing = literal<double>(node, "label_smoothing")) scoring.smoothed = *smoothing > 0;
  if (const auto* reduction = literal<int64_t>(node, "reduction")) scoring.is_mean = *reduction == kMean;
  scoring.is_loss = maker_of_loss(graph, flow) == &node;
  if (graph.outputs.size() > 1 && scoring.classes > 1) {
    if (const auto shared = shared_dimension(flow, scores->name, dimension, graph.outputs[1])) {
      scoring.dimension = shared->in_other;
      scoring.aligned = shared->aligned;
    }
  }
  std::string labels = targets->name;
  while (const Node* maker = flow.maker(labels)) {
    labels = flow.source(labels, /*keeps_numbers=*/true);
    scoring.aligned = scoring.aligned && !labels.empty() && flow.keeps_positions(*maker, -1);
  }
  scoring.labels = labels;
  scoring.is_text = is_text(graph, flow, targets->name);
  return scoring;
}

}  // namespace

std::optional<Scoring> scoring_of(const Graph& graph) {
  if (graph.outputs.empty()) return std::nullopt;
  const Flow flow(graph);
  std::optional<Scoring> found;
  for (const Node& node : graph.nodes) {
    std::optional<Scoring> scoring = of_node(graph, flow, node);
    if (scoring && scoring->dimension) return scoring;
    if (scoring && scoring->is_loss) found = scoring;
  }
  return found;
}

bool loss_is_sum(const Graph& graph) {
  if (graph.outputs.empty()) return false;
  const Flow flow(graph);
  const Node* maker = maker_of_loss(graph, flow);
  if (maker == nullptr) return false;
  if (const auto* reduction = literal<int64_t>(*maker, "reduction")) return *reduction == kSum;
  return maker->op == "aten::sum" && maker->overload.empty();
}

}  // namespace pipewright
