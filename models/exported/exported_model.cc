#include "models/exported/exported_model.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "graph/error.h"
#include "graph/nearest.h"
#include "models/definition/gradient_flow.h"
#include "models/definition/scoring.h"
#include "models/exported/call_check.h"
#include "models/exported/declared_memory.h"
#include "models/exported/pt2_archive.h"
#include "models/exported/pt2_program.h"
#include "models/exported/storage_groups.h"
#include "models/run/passes.h"

namespace pipewright {
namespace {

void rename_tensor(Graph& graph, const std::string& from, const std::string& to) {
  for (Node& node : graph.nodes) {
    for (auto& [key, argument] : node.arguments) {
      if (auto* one = std::get_if<TensorArgument>(&argument); one != nullptr && one->name == from)
        one->name = to;
      if (auto* many = std::get_if<TensorsArgument>(&argument))
        std::replace(many->names.begin(), many->names.end(), from, to);
    }
  }
  std::replace(graph.inputs.begin(), graph.inputs.end(), from, to);
  std::replace(graph.outputs.begin(), graph.outputs.end(), from, to);
  if (const auto value = graph.values.find(from); value != graph.values.end()) {
    graph.values.emplace(to, value->second);
    graph.values.erase(from);
  }
}

bool is_tensor_of(const Graph& graph, const std::string& name) {
  const auto named = [&](const auto& one) { return one.name == name; };
  return graph.values.count(name) != 0 ||
         std::any_of(graph.parameters.begin(), graph.parameters.end(), named) ||
         std::any_of(graph.buffers.begin(), graph.buffers.end(), named);
}

// The name of input i while it has none. No name of a program has a space.
std::string unbound(size_t i) { return "input " + std::to_string(i); }

// Options INPUT=FIELD; `inputs` are the program's, and FIELDs may be their names too.
void bind_inputs(Graph& graph, const std::vector<std::string>& inputs, SpecOptions& options) {
  std::vector<std::string> fields(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string position = std::to_string(i);
    const bool by_name = options.has(inputs[i]), by_position = options.has(position);
    if (by_name && by_position)
      options.fail(position, "is the input '" + inputs[i] + "', which has a field already");
    fields[i] = options.string(by_position ? position : inputs[i], inputs[i]);
    if (!by_name && !by_position) continue;
    // Before any of the others is bound, so that two may change places.
    if (is_tensor_of(graph, inputs[i])) rename_tensor(graph, inputs[i], unbound(i));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_tensor_of(graph, unbound(i))) continue;
    if (is_tensor_of(graph, fields[i])) {
      options.fail(options.has(inputs[i]) ? inputs[i] : std::to_string(i),
                   "'" + fields[i] + "' is the name of another tensor of the program already");
    }
    rename_tensor(graph, unbound(i), fields[i]);
  }
}

// PyTorch's backward() takes (1) for a scalar, too.
bool is_loss(const TensorType& type) { return type.elements() == 1 && dtype_is_floating(type.dtype); }

/// Adds nodes of layer "loss" behind a program that has none.
class LossBuilder {
 public:
  LossBuilder(Graph& graph, SpecOptions& options) : graph_(graph), options_(options) {}

  void cross_entropy(std::string scores, const std::string& field) {
    std::vector<int64_t> shape = graph_.values.at(scores).shape;
    const bool fits =
        dtype_is_floating(graph_.values.at(scores).dtype) && (shape.size() == 2 || shape.size() == 3);
    if (!fits) {
      options_.fail("loss",
                    "cross_entropy wants scores (samples, classes) or (samples, tokens, classes), output '" +
                        scores + "' is " + graph_.values.at(scores).text(),
                    "Choose another with output=N, or export a model that computes its loss.");
    }
    const int64_t classes = shape.back();
    shape.pop_back();
    std::string labels = add_input(field, {"int64", shape});
    if (shape.size() == 2) {
      scores =
          add("reshape", {{"self", TensorArgument{scores}}, {"shape", std::vector<int64_t>{-1, classes}}},
              {graph_.values.at(scores).dtype, {shape[0] * shape[1], classes}});
      labels = add("reshape", {{"self", TensorArgument{labels}}, {"shape", std::vector<int64_t>{-1}}},
                   {"int64", {shape[0] * shape[1]}});
    }
    finish(add("cross_entropy_loss", {{"self", TensorArgument{scores}}, {"target", TensorArgument{labels}}},
               {graph_.values.at(scores).dtype, {}}));
  }

  /// The program's own.
  void scalar(std::string loss) {
    const TensorType type = graph_.values.at(loss);
    if (!type.shape.empty())
      loss = add("reshape", {{"self", TensorArgument{loss}}, {"shape", std::vector<int64_t>{}}},
                 {type.dtype, {}});
    finish(loss);
  }

  void mean_square(const std::string& prediction, const std::string& field) {
    const TensorType type = graph_.values.at(prediction);
    if (!dtype_is_floating(type.dtype) || type.shape.empty()) {
      options_.fail("loss", "mse wants an output of floating-point numbers, one or more a sample; '" +
                                prediction + "' is " + type.text());
    }
    finish(add("mse_loss",
               {{"self", TensorArgument{prediction}}, {"target", TensorArgument{add_input(field, type)}}},
               {type.dtype, {}}));
  }

 private:
  std::string fresh(std::string name) const {
    while (is_tensor_of(graph_, name)) name += "_";
    return name;
  }

  std::string add_input(const std::string& field, const TensorType& type) {
    if (is_tensor_of(graph_, field))
      options_.fail("labels", "'" + field + "' is the name of another tensor of the program already");
    graph_.inputs.push_back(field);
    graph_.values.emplace(field, type);
    return field;
  }

  std::string add(const std::string& op, std::vector<std::pair<std::string, Argument>> arguments,
                  const TensorType& type) {
    Node node;
    node.name = fresh("loss." + op);
    node.op = "aten::" + op;
    node.arguments = std::move(arguments);
    node.outputs = {node.name};
    node.layer = "loss";
    graph_.values.emplace(node.name, type);
    graph_.nodes.push_back(node);
    return node.name;
  }

  void finish(const std::string& loss) { graph_.outputs.insert(graph_.outputs.begin(), loss); }

  Graph& graph_;
  SpecOptions& options_;
};

// "0 float32 (), 1 no tensor, 2 float32 (4, 10)"
std::string list_of(const Graph& graph, const std::vector<std::optional<size_t>>& returned) {
  std::vector<std::string> texts;
  for (const auto& place : returned) {
    texts.push_back(std::to_string(texts.size()) + " " +
                    (place ? graph.values.at(graph.outputs[*place]).text() : "no tensor"));
  }
  return join(texts, ", ");
}

// Which of what the program returns `output` means: counted as the module returns it; by default the first
// tensor.
std::pair<int64_t, std::string> chosen_output(const Graph& graph,
                                              const std::vector<std::optional<size_t>>& returned,
                                              SpecOptions& options) {
  const auto first =
      std::find_if(returned.begin(), returned.end(), [](const auto& one) { return one.has_value(); });
  if (first == returned.end()) options.fail("", "the program hands out no tensor that it computes");
  const int64_t chosen =
      options.integer("output", first - returned.begin(), 0, static_cast<int64_t>(returned.size()) - 1);
  const auto& place = returned[static_cast<size_t>(chosen)];
  if (!place) {
    options.fail("output", "output " + std::to_string(chosen) +
                               " is no tensor that the program computes; it returns " +
                               list_of(graph, returned));
  }
  return {chosen, graph.outputs[*place]};
}

// The output that a cross entropy of the loss scores; else the first that can be scores of "labels". "":
// none.
std::string scores_beside(Graph graph, const std::string& loss) {
  const std::vector<std::string> others = graph.outputs;
  for (const std::string& other : others) {
    graph.outputs = {loss, other};
    if (const auto scoring = scoring_of(graph); scoring && scoring->dimension) return other;
  }
  const auto labels = graph.values.find("labels");
  for (const std::string& other : others) {
    const TensorType& candidate = graph.values.at(other);
    if (labels == graph.values.end() || candidate.shape.size() < 2 || !dtype_is_floating(candidate.dtype))
      continue;
    if (candidate.shape.back() > 0 &&
        candidate.elements() / candidate.shape.back() == labels->second.elements())
      return other;
  }
  return "";
}

// Leaves outputs: the loss and, if there are any, scores that labels can be compared with.
void choose_outputs(Graph& graph, const std::vector<std::optional<size_t>>& returned, SpecOptions& options) {
  const std::string loss = options.choice("loss", "program", {"program", "cross_entropy", "mse"});
  const std::string field = options.string("labels", loss == "mse" ? "targets" : "labels");
  const auto [chosen, output] = chosen_output(graph, returned, options);
  options.finish();
  const TensorType& type = graph.values.at(output);
  if (loss != "program") {
    graph.outputs = {output};
    if (loss == "cross_entropy") {
      LossBuilder(graph, options).cross_entropy(output, field);
    } else {
      LossBuilder(graph, options).mean_square(output, field);
      graph.outputs.resize(1);
    }
    return;
  }
  if (!is_loss(type)) {
    const std::string spec = options.spec().name + ":loss=";
    options.fail("",
                 "output " + std::to_string(chosen) + ", '" + output + "', is " + type.text() +
                     "; expected the loss, a floating-point scalar" +
                     (returned.size() > 1 ? "; the program returns " + list_of(graph, returned) : ""),
                 "Give it a loss: --model " + spec + "cross_entropy or " + spec +
                     "mse; or export a model that computes its own.");
  }
  const std::string scores = scores_beside(graph, output);
  graph.outputs.clear();
  LossBuilder(graph, options).scalar(output);
  if (!scores.empty()) graph.outputs.push_back(scores);
}

// Tensor `from` is from now on `to`, which may be there already.
void become(Graph& graph, const std::string& from, const std::string& to) {
  const bool there = is_tensor_of(graph, to);
  rename_tensor(graph, from, to);
  const auto move = [&](auto& tensors) {
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [&](const auto& one) { return one.name == from; });
    if (found == tensors.end()) return;
    if (there) {
      tensors.erase(found);
    } else {
      found->name = to;
    }
  };
  move(graph.parameters);
  move(graph.buffers);
}

using StorageKey = std::tuple<std::string, std::string, std::vector<int64_t>, std::vector<int64_t>, int64_t>;
StorageKey key_of(const StoredTensor& tensor) {
  return {tensor.record, tensor.type.dtype, tensor.type.shape, tensor.strides, tensor.storage_offset};
}

// Where each tensor that the graph reads is stored. Those that are the same memory become one, under the name
// that comes first in the program, as named_parameters() of PyTorch has it.
void find_weights(Model& model, const Pt2Program& program) {
  std::map<std::string, StoredTensor> stored = model.archive->weights();
  const std::map<std::string, StoredTensor> weights = stored;
  stored.merge(model.archive->constants());
  const std::string where = model.archive->path().string();
  std::map<StorageKey, std::string> first;
  std::map<std::string, std::string> held;       // by record: a tensor of it
  std::map<std::string, std::string> trainable;  // and a trainable one
  for (const Pt2State& state : program.state) {
    const auto found = stored.find(state.name);
    const bool read = is_tensor_of(model.graph, state.name);
    if (!read && (found == stored.end() || found->second.type != state.type)) continue;
    if (found == stored.end()) {
      throw InputError(
          where + ": the program reads " + in_quotes(state.name) + ", which the archive does not store",
          "The file is not whole. Export again.");
    }
    if (found->second.type != state.type) {
      throw InputError(where + ": " + in_quotes(state.name) + " is stored as " + found->second.type.text() +
                       ", the program says " + state.type.text());
    }
    const std::string name = first.emplace(key_of(found->second), state.name).first->second;
    if (!read) continue;
    if (name != state.name) become(model.graph, state.name, name);
    model.stored.emplace(name, found->second);
    const auto other = held.emplace(found->second.record, name).first;
    if (state.trainable) trainable.emplace(found->second.record, name);
    if (other->second != name && trainable.count(found->second.record) != 0) {
      throw InputError(
          where + ": " + in_quotes(other->second) + " and " + in_quotes(name) +
              " share a part of their memory",
          "Weights may be tied as a whole only: make one a copy, or compute the view in the model.");
    }
  }
  model.archive->require_all_used(weights);
}

// `outputs`: those of the same program's graph for a minibatch. This one is for another number of samples,
// which need not be one that the program was exported for; what looks like scores depends on it.
Model build(std::shared_ptr<const Pt2Archive> archive, SpecOptions& options, int64_t batch_size,
            const std::vector<std::string>* outputs = nullptr) {
  const bool in_range = outputs == nullptr;
  Pt2Program program = read_pt2_program(archive->program(), archive->program_where(), batch_size, in_range);
  const bool drop_dead = options.choice("dead_nodes", "drop", {"drop", "keep"}) == "drop";
  const bool fold = options.choice("constants", "fold", {"fold", "run"}) == "fold";
  const bool everywhere = options.choice("shared_values", "compute", {"compute", "send"}) == "compute";
  Model model;
  model.archive = std::move(archive);
  model.graph = std::move(program.graph);
  model.fixed_batch = program.fixed_batch;
  model.least_samples = program.least_samples;
  find_weights(model, program);
  bind_inputs(model.graph, program.inputs, options);
  choose_outputs(model.graph, program.returned, options);
  if (outputs != nullptr) model.graph.outputs = *outputs;
  if (drop_dead) model.graph = without_dead_nodes(std::move(model.graph));
  std::erase_if(model.stored, [&](const auto& entry) { return !is_tensor_of(model.graph, entry.first); });
  model.graph = with_reached_parameters(with_storage_groups(std::move(model.graph)));
  if (everywhere) model.graph = with_nodes_everywhere(std::move(model.graph));
  model.graph.fold_constants = fold;
  model.graph.name = options.spec().name;
  model.parameter_initialisers.resize(model.graph.parameters.size());
  model.buffer_initialisers.resize(model.graph.buffers.size());
  model.graph.validate(model.archive->path().string());
  check_calls(model.graph);
  if (in_range) check_declared_memory(model.graph);
  return model;
}

}  // namespace

Model build_exported_model(SpecOptions& options, int64_t batch_size) {
  Model model = build(std::make_shared<Pt2Archive>(options.spec().name), options, batch_size);
  model.graph_for = [archive = model.archive, spec = options.spec().text(),
                     outputs = model.graph.outputs](int64_t samples) {
    SpecOptions same(parse_spec(spec, "model"));
    return build(archive, same, samples, &outputs).graph;
  };
  return model;
}

std::map<std::string, std::string> state_dict_of(const Model& model) {
  if (model.archive == nullptr) return {};
  std::map<StorageKey, std::string> read;
  for (const auto& [name, tensor] : model.stored) read.emplace(key_of(tensor), name);
  std::map<std::string, std::string> names;
  for (const auto& [name, tensor] : model.archive->weights()) {
    const auto same = read.find(key_of(tensor));
    names.emplace(name, same == read.end() ? "" : same->second);
  }
  return names;
}

}  // namespace pipewright
