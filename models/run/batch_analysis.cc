#include "models/run/batch_analysis.h"

#include <algorithm>
#include <unordered_map>

#include "graph/error.h"
#include "graph/graph_identity.h"
#include "models/run/batch_rules.h"
#include "models/run/operators.h"
#include "models/run/storages.h"

namespace pipewright {
namespace {

using Kind = BatchRelation::Kind;

// detach_() of a constant writes no number.
std::set<size_t> written_storages(const Graph& graph, const Storages& storages) {
  std::set<size_t> written;
  for (const auto& write : storages.writes())
    if (graph.nodes[write.node].op != "aten::detach_") written.insert(storages.class_of(write.tensor));
  return written;
}

// A norm in evaluation: its running statistics are written by others, if at all.
bool only_reads_statistics(const Node& node) {
  for (const auto& [name, value] : node.arguments)
    if (name == "training" || name == "use_input_stats") return value == Argument(false);
  return false;
}

class Walk {
 public:
  Walk(const Graph& whole, const Graph& part, const std::vector<size_t>& nodes, bool samples_meet)
      : whole_(whole),
        part_(part),
        nodes_(nodes),
        samples_meet_(samples_meet),
        samples_(samples_of(whole)),
        part_samples_(samples_of(part)),
        storages_(whole),
        of_fields_(values_of_fields(whole)) {
    for (const auto* graph : {&whole_, &part_}) {
      auto& shapes = graph == &whole_ ? whole_shapes_ : part_shapes_;
      for (const Parameter& each : graph->parameters) shapes[each.name] = each.type.shape;
      for (const Buffer& each : graph->buffers) shapes[each.name] = each.type.shape;
      for (const auto& [name, type] : graph->values) shapes[name] = type.shape;
    }
    for (const auto& write : storages_.writes()) writes_[write.node].push_back(write.tensor);
    for (const Buffer& buffer : whole_.buffers) buffers_.insert(buffer.name);
  }

  BatchAnalysis run() {
    for (const size_t i : nodes_) {
      const auto relations = relations_of_node(i);
      const Node& node = whole_.nodes[i];
      for (size_t o = 0; o < node.outputs.size(); ++o)
        found_.values[node.outputs[o]] = relations[std::min(o, relations.size() - 1)];
      if (const auto writes = writes_.find(i); writes != writes_.end())
        if (!only_reads_statistics(node))
          for (const std::string& tensor : writes->second) write(tensor, relations[0]);
    }
    return std::move(found_);
  }

 private:
  BatchRelation relation_of(const std::string& name) {
    if (const auto known = found_.values.find(name); known != found_.values.end()) return known->second;
    const auto by_shape =
        relation_of_shapes(whole_shapes_.at(name), part_shapes_.at(name), samples_, part_samples_);
    const BatchRelation relation =
        by_shape ? *by_shape
                 : BatchRelation::mixed("'" + name + "' has several dimensions that count samples");
    found_.values.emplace(name, relation);
    return relation;
  }

  BatchOperand operand_of(const std::string& name) {
    const auto type = whole_.values.find(name);
    return {name,
            relation_of(name),
            whole_shapes_.at(name),
            part_shapes_.at(name),
            of_fields_.count(name) > 0,
            type == whole_.values.end() || dtype_is_floating(type->second.dtype)};
  }

  std::vector<BatchRelation> relations_of_node(size_t i) {
    const Node& node = whole_.nodes[i];
    BatchCall call{node, part_.nodes[i], samples_, part_samples_, {}};
    std::set<std::string> outputs(node.outputs.begin(), node.outputs.end());
    call.operand_of = [&](const std::string& name) {
      // Rules ask an output for its shape.
      if (outputs.count(name) == 0) return operand_of(name);
      return BatchOperand{name, {}, whole_shapes_.at(name), part_shapes_.at(name)};
    };
    std::vector<BatchRelation> relations = by_operands(call);
    if (relations.empty()) relations = pipewright::relations_of(call);
    relations.resize(std::max<size_t>(node.outputs.size(), 1), relations.back());
    for (size_t o = 0; o < node.outputs.size(); ++o) settle(node, o, relations[o]);
    return relations;
  }

  // What is known from the fields may be whatever it is to the samples where it is divided by.
  bool is_denominator(const Node& node, const std::string& name) const {
    return node.op.starts_with("aten::div") && of_fields_.count(name) > 0 &&
           std::any_of(node.arguments.begin(), node.arguments.end(), [&](const auto& argument) {
             return argument.first == "other" && argument.second == Argument(TensorArgument{name});
           });
  }

  // Where the operator does not matter.
  std::vector<BatchRelation> by_operands(const BatchCall& call) {
    if (reads_shapes_only(call.whole)) return {};
    bool whole = true;
    for (const std::string& name : call.whole.reads()) {
      const BatchRelation relation = relation_of(name);
      if (relation.is(Kind::kMixed) && !is_denominator(call.whole, name)) return {relation};
      whole = whole && relation.is(Kind::kWhole);
    }
    const bool same_shapes =
        std::all_of(call.whole.outputs.begin(), call.whole.outputs.end(),
                    [&](const auto& name) { return whole_shapes_.at(name) == part_shapes_.at(name); });
    if (!whole || !same_shapes || call.whole.arguments != call.part.arguments) return {};
    // Each part draws numbers of its own.
    if (draws_numbers(call.whole, find_operator(call.whole)))
      return {BatchRelation::mixed("draws numbers for all samples, other ones in each part")};
    return {BatchRelation::whole()};
  }

  // What a rule says has to fit the shapes; a reason begins with the node that it is of.
  void settle(const Node& node, size_t output, BatchRelation& relation) const {
    const std::string& name = node.outputs[output];
    const auto& whole = whole_shapes_.at(name);
    const auto& part = part_shapes_.at(name);
    const auto shapes = relation_of_shapes(whole, part, samples_, part_samples_);
    if (relation.has_rows()) {
      const bool fits = shapes && shapes->has_rows() && shapes->dimension == relation.dimension &&
                        relation.outer * relation.inner == shapes->inner;
      if (!fits) relation = BatchRelation::mixed("makes a result that does not count samples as it should");
    } else if (!relation.is(Kind::kMixed) && whole != part) {
      relation = BatchRelation::mixed("makes a result of another size for other numbers of samples");
    }
    if (!relation.is(Kind::kMixed)) return;
    if (samples_meet_ && shapes && shapes->has_rows()) {
      relation = *shapes;
    } else if (!relation.why.starts_with("node '") && !relation.why.starts_with("'")) {
      relation.why = label_of(node) + " " + relation.why;
    }
  }

  // The memory of `tensor` is now what `made` says. Other names of it keep what they are where samples have
  // places of their own before and after.
  void write(const std::string& tensor, const BatchRelation& made) {
    const size_t storage = storages_.class_of(tensor);
    for (auto& [name, relation] : found_.values) {
      if (storages_.class_of(name) != storage) continue;
      const bool apart = made.is(Kind::kRows) || made.is(Kind::kWhole);
      if (name == tensor) {
        relation = made;
      } else if (!(apart && (relation.is(Kind::kRows) || relation == made))) {
        relation = BatchRelation::mixed(made.is(Kind::kMixed)
                                            ? made.why
                                            : "'" + name + "' is written in place, through '" + tensor + "'");
      }
    }
    if (made.is(Kind::kWhole)) return;
    for (const std::string& buffer : buffers_)
      if (storages_.class_of(buffer) == storage)
        found_.buffers.emplace(buffer, made.is(Kind::kMixed) ? made.why : "'" + tensor + "' is written");
  }

  const Graph& whole_;
  const Graph& part_;
  const std::vector<size_t>& nodes_;
  const bool samples_meet_;
  const int64_t samples_, part_samples_;
  const Storages storages_;
  const std::set<std::string> of_fields_;
  std::unordered_map<std::string, std::vector<int64_t>> whole_shapes_, part_shapes_;
  std::unordered_map<size_t, std::vector<std::string>> writes_;  // by node
  std::set<std::string> buffers_;
  BatchAnalysis found_;
};

}  // namespace

std::set<std::string> values_of_fields(const Graph& graph) {
  const Storages storages(graph);
  const std::set<size_t> written = written_storages(graph, storages);
  std::set<std::string> known(graph.inputs.begin(), graph.inputs.end());
  for (const Parameter& parameter : graph.parameters)
    if (!parameter.trainable) known.insert(parameter.name);
  for (const Buffer& buffer : graph.buffers) known.insert(buffer.name);
  std::erase_if(known, [&](const auto& name) { return written.count(storages.class_of(name)) > 0; });
  for (const Node& node : graph.nodes) {
    const auto read = node.reads();
    const bool of_known =
        std::all_of(read.begin(), read.end(), [&](const auto& name) { return known.count(name) > 0; });
    if (!of_known || draws_numbers(node, find_operator(node))) continue;
    for (const std::string& name : node.outputs)
      if (written.count(storages.class_of(name)) == 0) known.insert(name);
  }
  return known;
}

std::vector<size_t> makers_of(const Graph& graph, const std::vector<std::string>& wanted) {
  std::set<std::string> needed(wanted.begin(), wanted.end());
  std::vector<size_t> makers;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    if (std::none_of(node.outputs.begin(), node.outputs.end(),
                     [&](const auto& name) { return needed.count(name) > 0; }))
      continue;
    makers.push_back(i);
    for (const std::string& name : node.reads()) needed.insert(name);
  }
  std::reverse(makers.begin(), makers.end());
  return makers;
}

BatchAnalysis analyse_batch(const Graph& whole, const Graph& part, const std::vector<size_t>& nodes,
                            bool samples_meet) {
  PW_CHECK_EQ(whole.nodes.size(), part.nodes.size());
  return Walk(whole, part, nodes, samples_meet).run();
}

}  // namespace pipewright
