#include "models/run/segment_steps.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "graph/error.h"
#include "models/run/device_passes.h"
#include "models/run/operators.h"
#include "models/run/passes.h"
#include "models/run/random_key.h"

namespace pipewright {
namespace {

using Slots = std::unordered_map<std::string, uint32_t>;

/// The file's nodes say "cpu", or nothing where a tensor is made of no other.
void set_device(const c10::FunctionSchema& schema, at::Device device, std::vector<c10::IValue>& stack) {
  if (device.is_cpu()) return;
  const auto& arguments = schema.arguments();
  const bool made_of_tensors =
      std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
        return argument.type()->str().find("Tensor") != std::string::npos;  // and "Tensor?", "Tensor[]"
      });
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "device" && (stack[i].isDevice() || (stack[i].isNone() && !made_of_tensors)))
      stack[i] = device;
  }
}

SegmentStep step_of(const Node& node, OperatorsByPasses& passes) {
  const c10::OperatorHandle op = find_operator(node);
  SegmentStep step{.op = passes.operator_for(node).value_or(op)};
  step.guard = guard_of(step.op.schema());
  step.label = label_of(node);
  step.name_hash = name_hash(node.name);
  step.random = draws_numbers(node, step.op);
  step.gradient = node.gradient;
  step.without_autocast = node.autocast == "off";
  if (!node.autocast.empty() && !step.without_autocast)
    step.autocast = node.autocast == "float16" ? at::kHalf : at::kBFloat16;
  return step;
}

/// Notes what the step writes, and which of its results are that again.
void find_writes(const Node& node, SegmentStep& step) {
  const c10::FunctionSchema& schema = step.op.schema();
  const auto same = [](const c10::AliasInfo* a, const c10::AliasInfo* b) {
    return a != nullptr && b != nullptr && a->beforeSets() == b->beforeSets();
  };
  size_t found = 0;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (!writes_argument(node, argument)) continue;
    SegmentStep::Write write{i, {}};
    for (size_t result = 0; result < schema.returns().size(); ++result)
      if (same(argument.alias_info(), schema.returns()[result].alias_info())) write.results.push_back(result);
    found += write.results.size();
    step.writes.push_back(std::move(write));
  }
  step.makes_only_what_it_writes = found == schema.returns().size();
  step.changes_shapes = step.op.hasTag(at::Tag::inplace_view);
}

/// An operator makes tensors, or lists of them, as many as the node names.
void check_outputs(const SegmentStep& step, const Node& node) {
  const auto& returns = step.op.schema().returns();
  for (const auto& returned : returns)
    if (returned.type()->kind() != c10::TypeKind::TensorType &&
        !returned.type()->isSubtypeOf(*c10::ListType::ofTensors()))
      throw InputError(step.label + " makes a " + returned.type()->str() +
                       "; only tensors can be values of a graph");
  const bool lists = std::any_of(returns.begin(), returns.end(), [](const c10::Argument& returned) {
    return returned.type()->kind() == c10::TypeKind::ListType;
  });
  if (!lists && returns.size() != node.outputs.size())
    throw InputError(step.label + " names " + std::to_string(node.outputs.size()) +
                     " outputs; the operator makes " + std::to_string(returns.size()));
}

/// All names of a graph, and their order in it: of values that in which they come to be.
struct GraphOrder {
  explicit GraphOrder(const Graph& graph) {
    for (const auto& name : graph.inputs) values.emplace(name, values.size());
    for (const auto& node : graph.nodes)
      for (const auto& name : node.outputs) values.emplace(name, values.size());
    for (size_t i = 0; i < graph.parameters.size(); ++i) parameters.emplace(graph.parameters[i].name, i);
    for (size_t i = 0; i < graph.buffers.size(); ++i) buffers.emplace(graph.buffers[i].name, i);
  }
  std::unordered_map<std::string, size_t> values, parameters, buffers;
};

/// The steps of one segment, made pass by pass over its nodes.
class Preparation {
 public:
  Preparation(const Graph& graph, const std::vector<size_t>& nodes, std::vector<std::string> outputs,
              at::Device device, size_t keeping_buffers)
      : graph_(graph), keeping_buffers_(keeping_buffers), order_(graph), passes_(graph) {
    made_.nodes = nodes;
    made_.outputs = std::move(outputs);
    made_.autocast = graph.autocast.has_value();
    made_.device = device;
  }

  SegmentSteps run() {
    for (size_t i = 0; i < made_.nodes.size(); ++i) add_step(i);
    hand_through();
    give_slots();
    const std::vector<bool> kept = keep_constants();
    for (size_t i = 0; i < made_.nodes.size(); ++i) find_sources(i);
    made_.copied.assign(copied_.begin(), copied_.end());
    find_last_readers(kept);
    return std::move(made_);
  }

 private:
  const Node& node(size_t i) const { return graph_.nodes[made_.nodes[i]]; }

  void add_step(size_t i) {
    PW_CHECK_LT(made_.nodes[i], graph_.nodes.size());
    if (i > 0) PW_CHECK_LT(made_.nodes[i - 1], made_.nodes[i]);
    SegmentStep step = step_of(node(i), passes_);
    if (made_.nodes[i] < keeping_buffers_) find_writes(node(i), step);
    if (step.random) made_.random.push_back(i);
    prepared_.push_back(prepare_arguments(node(i), step.op.schema(), step.label));
    set_device(step.op.schema(), made_.device, prepared_.back().stack);
    for (const auto& place : prepared_.back().places) {
      for (const auto& name : place.names) {
        if (name.empty() && place.kind == TensorPlace::Kind::kOptionalTensors) continue;
        note_read(step, name);
      }
    }
    check_outputs(step, node(i));
    inside_.insert(node(i).outputs.begin(), node(i).outputs.end());
    made_.steps.push_back(std::move(step));
  }

  /// What comes from outside is collected in graph order.
  void note_read(const SegmentStep& step, const std::string& name) {
    if (const auto p = order_.parameters.find(name); p != order_.parameters.end()) {
      parameters_.emplace(p->second, name);
    } else if (const auto b = order_.buffers.find(name); b != order_.buffers.end()) {
      buffers_.emplace(b->second, name);
    } else if (const auto v = order_.values.find(name); v == order_.values.end()) {
      throw InputError(step.label + " reads '" + name + "', which nothing in graph '" + graph_.name +
                       "' makes");
    } else if (!inside_.count(name)) {
      inputs_.emplace(v->second, name);
    }
  }

  /// Outputs that no node of the segment makes are inputs, too.
  void hand_through() {
    for (const auto& name : made_.outputs) {
      const auto v = order_.values.find(name);
      PW_CHECK(v != order_.values.end(),
               "output '" << name << "' is no value of graph '" << graph_.name << "'");
      if (!inside_.count(name)) inputs_.emplace(v->second, name);
    }
  }

  void give_slots() {
    const auto number = [](const std::map<size_t, std::string>& sorted, Slots& slots,
                           std::vector<std::string>& names) {
      for (const auto& [rank, name] : sorted) {
        slots.emplace(name, slots.size());
        names.push_back(name);
      }
    };
    number(inputs_, slots_, made_.inputs);
    number(parameters_, parameter_slots_, made_.parameters);
    number(buffers_, buffer_slots_, made_.buffers);
    std::unordered_set<std::string> read(made_.outputs.begin(), made_.outputs.end());
    for (const auto& arguments : prepared_)
      for (const auto& place : arguments.places) read.insert(place.names.begin(), place.names.end());
    for (size_t i = 0; i < made_.nodes.size(); ++i) {
      for (const auto& name : node(i).outputs) {
        uint32_t slot = kDropped;
        if (read.count(name)) slot = slots_.emplace(name, slots_.size()).first->second;
        made_.steps[i].results.push_back(slot);
      }
    }
    made_.value_count = slots_.size();
    for (const auto& name : made_.outputs) made_.output_slots.push_back(slots_.at(name));
  }

  /// Constants that are kept are those that another step reads or that are handed out. Returns by slot
  /// whether it is one of them.
  std::vector<bool> keep_constants() {
    std::vector<bool> kept(made_.value_count, false);
    if (!graph_.fold_constants) return kept;
    const std::vector<bool> constant = constant_nodes(graph_, made_.nodes);
    std::unordered_set<std::string> wanted(made_.outputs.begin(), made_.outputs.end());
    for (size_t i = 0; i < made_.nodes.size(); ++i) {
      made_.steps[i].constant = constant[i];
      if (constant[i]) continue;
      for (const auto& place : prepared_[i].places) wanted.insert(place.names.begin(), place.names.end());
    }
    for (size_t i = 0; i < made_.nodes.size(); ++i) {
      if (!constant[i]) continue;
      for (const auto& name : node(i).outputs) {
        if (wanted.count(name) == 0) continue;
        kept[slots_.at(name)] = true;
        made_.constant_slots.push_back(slots_.at(name));
      }
    }
    return kept;
  }

  void find_sources(size_t i) {
    SegmentStep& step = made_.steps[i];
    const bool copies = reads_copies(graph_, node(i), made_.device);
    step.stack = std::move(prepared_[i].stack);
    made_.deepest_stack = std::max(made_.deepest_stack, step.stack.size());
    for (const auto& place : prepared_[i].places) {
      StackFill fill{place.kind, place.position, {}};
      for (const auto& name : place.names) fill.sources.push_back(source_of(name, copies));
      step.fills.push_back(std::move(fill));
    }
  }

  StepInput source_of(const std::string& name, bool copies) {
    if (const auto p = parameter_slots_.find(name); p != parameter_slots_.end()) {
      copies = copies && graph_.parameters[order_.parameters.at(name)].type.dtype == "float32";
      if (copies) copied_.insert(p->second);
      return {copies ? StepInput::Kind::kCopied : StepInput::Kind::kParameter, false, p->second};
    }
    if (const auto b = buffer_slots_.find(name); b != buffer_slots_.end())
      return {StepInput::Kind::kBuffer, false, b->second};
    if (const auto v = slots_.find(name); v != slots_.end())
      return {StepInput::Kind::kValue, false, v->second};
    return {};
  }

  /// From the end to the start, so that the first reader met is the last one to run. Nobody is the last
  /// reader of what is kept or handed out.
  void find_last_readers(std::vector<bool> needed) {
    for (const uint32_t slot : made_.output_slots) needed[slot] = true;
    for (auto step = made_.steps.rbegin(); step != made_.steps.rend(); ++step) {
      for (auto fill = step->fills.rbegin(); fill != step->fills.rend(); ++fill) {
        for (auto source = fill->sources.rbegin(); source != fill->sources.rend(); ++source) {
          if (source->kind != StepInput::Kind::kValue || needed[source->index]) continue;
          source->last = true;
          needed[source->index] = true;
        }
      }
    }
  }

  const Graph& graph_;
  const size_t keeping_buffers_;
  const GraphOrder order_;
  OperatorsByPasses passes_;
  SegmentSteps made_;
  std::vector<PreparedArguments> prepared_;                      // by node
  std::unordered_set<std::string> inside_;                       // values that the segment's nodes make
  std::map<size_t, std::string> inputs_, parameters_, buffers_;  // from outside, by their place in the graph
  Slots slots_, parameter_slots_, buffer_slots_;
  std::set<uint32_t> copied_;  // slots of parameters
};

}  // namespace

SegmentSteps prepare_steps(const Graph& graph, const std::vector<size_t>& nodes,
                           std::vector<std::string> outputs, at::Device device, size_t keeping_buffers) {
  return Preparation(graph, nodes, std::move(outputs), device, keeping_buffers).run();
}

}  // namespace pipewright
