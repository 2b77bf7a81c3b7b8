#include "models/exported/pt2_program.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "graph/error.h"
#include "graph/limits.h"
#include "models/exported/out_forms.h"
#include "models/exported/pt2_arguments.h"
#include "models/exported/pt2_types.h"

namespace pipewright {
namespace {

constexpr int64_t kSchemaMajor = 8;
constexpr int64_t kLargestVersion = std::numeric_limits<int64_t>::max();

constexpr const char* kExportAgain =
    "Export again: torch.export.export(model.train(), inputs), without run_decompositions(), and "
    "torch.export.save; "
    "scripts/export_model.py does that.";

/// What decompositions make of operators that check what they are given: the same arguments, and the same
/// result where those are sound.
const std::map<std::string, std::string>& checked_twins() {
  static const std::map<std::string, std::string> names = {{"aten::_unsafe_view", "aten::view"},
                                                           {"aten::_unsafe_index", "aten::index"},
                                                           {"aten::_unsafe_index_put", "aten::index_put"}};
  return names;
}

/// One graph's own names, and how its nodes run: a sub-graph has a name space of its own.
struct Scope {
  std::unordered_map<std::string, std::string> tensors;  ///< name there -> name in the graph
  std::unordered_map<std::string, JsonReader> types;     ///< tensor_values
  std::unordered_map<std::string, JsonReader> integers;  ///< sym_int_values
  bool gradient = true;
  std::string autocast;  ///< as Node::autocast
};

/// Of a node: the path of the innermost module that it is in.
std::string layer_of(JsonReader metadata) {
  if (!metadata.has("nn_module_stack")) return "";
  // "KEY,PATH,TYPE;KEY,PATH,TYPE", the innermost last.
  const std::string stack = metadata.string("nn_module_stack");
  const std::string last = stack.substr(stack.rfind(';') + 1);
  const size_t begin = last.find(',');
  if (begin == std::string::npos) return "";
  const std::string path = last.substr(begin + 1, last.find(',', begin + 1) - begin - 1);
  return path.substr(0, path.find('@'));  // a module's second call is "relu@1"
}

class ProgramReader {
 public:
  ProgramReader(const Json& json, const std::string& where, int64_t batch_size, bool in_range)
      : root_(json, where), batch_size_(batch_size), in_range_(in_range) {}

  Pt2Program read() {
    check_version();
    JsonReader module = root_.object("graph_module");
    JsonReader graph = module.object("graph");
    JsonReader signature = module.object("signature");
    Scope scope = scope_of(graph);
    read_inputs(signature, scope);
    program_.fixed_batch = symbols_.empty();
    check_ranges();
    declare_inputs(scope);
    read_nodes(graph, scope, "");
    read_outputs(signature, scope);
    keep_what_is_read();
    return std::move(program_);
  }

 private:
  /// The node that is being read, for messages.
  struct Place {
    std::string name, target, layer;
  };

  [[noreturn]] void fail(const Place& place, const std::string& message,
                         const std::string& remedy = "") const {
    throw InputError(root_.where() + ": node " + in_quotes(place.name) + " (" +
                         (place.layer.empty() ? "" : place.layer + ", ") + place.target + "): " + message,
                     remedy);
  }

  void check_version() {
    JsonReader version = root_.object("schema_version");
    const int64_t major = version.integer("major", 0, kLargestVersion);
    if (major != kSchemaMajor) {
      version.fail(
          "major",
          "got schema version " + std::to_string(major) + ", expected " + std::to_string(kSchemaMajor),
          "This version of Pipewright reads what PyTorch 2.9 to 2.11 write.");
    }
    const std::vector<std::string> verifiers = root_.strings("verifiers");
    if (verifiers != std::vector<std::string>{"TRAINING"}) {
      root_.fail("verifiers",
                 "got " + (verifiers.empty() ? "none" : join(verifiers, ", ")) +
                     ", expected TRAINING: the program was made for inference (run_decompositions() keeps no "
                     "detach() and no torch.no_grad())",
                 kExportAgain);
    }
  }

  static Scope scope_of(JsonReader& graph) {
    Scope scope;
    for (auto& [name, reader] : graph.entries("tensor_values")) scope.types.emplace(name, reader);
    for (auto& [name, reader] : graph.entries("sym_int_values")) scope.integers.emplace(name, reader);
    return scope;
  }

  // Names what comes from outside, and binds the symbols of the batch.
  void read_inputs(JsonReader& signature, Scope& scope) {
    for (JsonReader& spec : signature.objects("input_specs")) {
      if (spec.has("parameter")) {
        JsonReader parameter = spec.object("parameter");
        add_state(scope, parameter, parameter.string("parameter_name"), true);
      } else if (spec.has("buffer")) {
        JsonReader buffer = spec.object("buffer");
        add_state(scope, buffer, buffer.string("buffer_name"), false);
      } else if (spec.has("tensor_constant")) {
        JsonReader constant = spec.object("tensor_constant");
        add_state(scope, constant, constant.string("tensor_constant_name"), false);
      } else if (spec.has("user_input")) {
        add_user_input(scope, spec.object("user_input").object("arg"));
      } else if (!spec.has("constant_input")) {  // a constant is in the nodes that read it
        spec.fail(
            "", "expected a parameter, a buffer, a tensor or a constant: objects and tokens cannot be inputs",
            kExportAgain);
      }
    }
  }

  void add_state(Scope& scope, JsonReader& spec, const std::string& name, bool parameter) {
    if (name.empty() || !used_.insert(name).second)
      spec.fail("", "the name " + in_quotes(name) + " is there twice");
    const std::string local = spec.object("arg").string("name");
    if (!scope.tensors.emplace(local, name).second) spec.fail("arg", in_quotes(local) + " is there twice");
    const Pt2TensorMeta meta = type_of(scope, local, spec.where());
    program_.state.push_back({name, meta.type, parameter, parameter && meta.requires_grad});
    if (program_.state.back().trainable && !dtype_is_floating(meta.type.dtype)) {
      spec.fail("arg", in_quotes(name) + " is a parameter of " + meta.type.dtype + " that is trained",
                "Keep its real and imaginary parts as one real parameter, and write torch.view_as_complex in "
                "the forward.");
    }
  }

  void add_user_input(Scope& scope, JsonReader argument) {
    if (argument.has("as_none")) return;
    if (!argument.has("as_tensor"))
      argument.fail("", "inputs of the program have to be tensors; give numbers as constants", kExportAgain);
    const std::string local = argument.object("as_tensor").string("name");
    const auto type = scope.types.find(local);
    if (type == scope.types.end()) argument.fail("", in_quotes(local) + " is not in tensor_values");
    std::vector<JsonReader> sizes = type->second.objects("sizes");
    if (sizes.empty()) {
      throw InputError(
          root_.where() + ": input " + in_quotes(local) + " is a scalar; expected samples in dimension 0",
          "Make it a constant or a buffer of the model.");
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (!sizes[i].has("as_expr")) continue;
      const std::string expression = sizes[i].object("as_expr").string("expr_str");
      const auto symbol = Pt2Symbols::symbol(expression);
      if (i > 0 || !symbol) {
        throw InputError(root_.where() + ": input " + in_quotes(local) + ": dimension " + std::to_string(i) +
                             " is " + in_quotes(expression) +
                             "; only dimension 0, the batch, may be left open",
                         "Export again with all other sizes fixed.");
      }
      symbols_.bind(*symbol, batch_size_);
    }
    if (device_.empty()) device_ = type->second.object("device").string("type");
    inputs_.push_back(local);
  }

  static constexpr int64_t kUsualLeast = 2;  // of a dimension that is open; PyTorch runs one sample, too
  void check_ranges() {
    const auto refuse = [&](const char* bound, int64_t samples, const char* words) {
      throw InputError(root_.where() + ": the program was exported for minibatches of at " + bound + " " +
                           std::to_string(samples) + (samples == 1 ? " sample" : " samples") + ", got " +
                           std::to_string(batch_size_),
                       "Give --batch-size " + std::to_string(samples) + " or " + words +
                           ", or export again with another range of the batch dimension.");
    };
    for (auto& [symbol, range] : root_.entries("range_constraints")) {
      const auto bound = [&](const char* key) -> std::optional<int64_t> {
        if (!range.has(key) || !range.raw(key).is_number_integer()) return std::nullopt;
        return range.raw(key).get<int64_t>();
      };
      const auto least = bound("min_val");
      if (least && *least > kUsualLeast) program_.least_samples = std::max(program_.least_samples, *least);
      if (in_range_ && least && batch_size_ < *least) refuse("least", *least, "more");
      if (const auto most = bound("max_val"); in_range_ && most && batch_size_ > *most)
        refuse("most", *most, "fewer");
    }
  }

  // After the symbols are bound.
  void declare_inputs(Scope& scope) {
    for (const std::string& local : inputs_) {
      const TensorType type = type_of(scope, local, root_.where()).type;
      if (type.shape[0] != batch_size_) {
        throw InputError(root_.where() + ": input " + in_quotes(local) + " was exported for minibatches of " +
                             std::to_string(type.shape[0]) + " samples, got " + std::to_string(batch_size_),
                         "Give --batch-size " + std::to_string(type.shape[0]) +
                             ", or export again with that many samples or an open batch dimension "
                             "(scripts/export_model.py --batch-size N, or --dynamic-batch).");
      }
      const std::string name = fresh(local);
      if (!scope.tensors.emplace(local, name).second)
        throw InputError(root_.where() + ": input " + in_quotes(local) + " is there twice");
      program_.inputs.push_back(name);
      program_.graph.inputs.push_back(name);
      program_.graph.values.emplace(name, type);
    }
  }

  /// A name that nothing has yet.
  std::string fresh(std::string name) {
    if (name.empty()) name = "_";
    while (!used_.insert(name).second) name += "_";
    return name;
  }

  Pt2TensorMeta type_of(const Scope& scope, const std::string& local, const std::string& where) const {
    const auto found = scope.types.find(local);
    if (found == scope.types.end())
      throw InputError(where + ": the tensor " + in_quotes(local) + " is not in tensor_values");
    return pt2_tensor_meta(found->second, symbols_);
  }

  void read_nodes(JsonReader& graph, Scope& scope, const std::string& prefix) {
    for (JsonReader& node : graph.objects("nodes")) {
      Place place;
      place.target = node.string("target");
      place.layer = layer_of(node.object("metadata"));
      std::vector<JsonReader> outputs = node.objects("outputs");
      place.name = prefix + (node.has("name") && node.raw("name").is_string() ? node.string("name") : "");
      if (place.target.starts_with("torch.ops.higher_order.")) {
        read_sub_graph(node, scope, place);
      } else if (!computes_sizes_only(outputs, place)) {
        read_call(node, outputs, scope, place, prefix);
      }
    }
  }

  // Sizes are known: nodes that compute with them, or check them, are left out.
  bool computes_sizes_only(std::vector<JsonReader>& outputs, const Place& place) const {
    if (outputs.empty()) {
      for (const char* check : {"torch.ops.aten._assert_", "torch.ops.aten.sym_constrain_range"}) {
        if (place.target.starts_with(check)) return true;
      }
      fail(place, "makes no value; only checks may do that");
    }
    return std::all_of(outputs.begin(), outputs.end(), [](JsonReader& output) {
      return output.has("as_sym_int") || output.has("as_sym_bool") || output.has("as_sym_float");
    });
  }

  void read_call(JsonReader& node, std::vector<JsonReader>& outputs, Scope& scope, const Place& place,
                 const std::string& prefix) {
    const std::string scheme = "torch.ops.";
    const size_t space = place.target.find('.', scheme.size());
    const size_t overload = space == std::string::npos ? space : place.target.find('.', space + 1);
    if (!place.target.starts_with(scheme) || overload == std::string::npos)
      fail(place, "is a function of Python, not an operator of PyTorch",
           "Write it with PyTorch's operators and export again.");
    Node made;
    made.op = place.target.substr(scheme.size(), space - scheme.size()) +
              "::" + place.target.substr(space + 1, overload - space - 1);
    made.overload = place.target.substr(overload + 1);
    if (made.overload == "default") made.overload.clear();
    if (const auto checked = checked_twins().find(made.op); checked != checked_twins().end())
      made.op = checked->second;
    made.layer = place.layer;
    made.gradient = scope.gradient;
    made.autocast = scope.autocast;
    for (JsonReader& input : node.objects("inputs")) {
      const std::string name = input.string("name");
      made.arguments.emplace_back(name, argument(input, scope, place, name));
    }
    const auto add = [&](JsonReader reader) {
      const std::string local = reader.string("name");
      const TensorType type = type_of(scope, local, root_.where() + ": node " + in_quotes(place.name)).type;
      const std::string name = fresh(prefix + local);
      define(scope, local, name, place);
      program_.graph.values.emplace(name, type);
      made.outputs.push_back(name);
    };
    for (JsonReader& output : outputs) {
      if (output.has("as_tensor")) {
        add(output.object("as_tensor"));
      } else if (output.has("as_tensors")) {
        for (JsonReader& one : output.objects("as_tensors")) add(one);
      } else {
        fail(place,
             "makes something that is no tensor: a number that depends on the values of a tensor, or nothing",
             "Write the model without .item(), .tolist() and the like, and export again.");
      }
    }
    if (made.outputs.empty()) fail(place, "makes an empty list of tensors");
    made.name = made.outputs[0];
    add_node(std::move(made));
  }

  // What writes into tensors that it is given, as the plain operator and copies; where that is not the same,
  // it stays, and is refused as an operator that graphs may not call.
  void add_node(Node made) {
    std::optional<PlainForm> plain = plain_form(made);
    if (!plain || !has_one_type(made, plain->destinations)) {
      program_.graph.nodes.push_back(std::move(made));
      return;
    }
    std::vector<Node> copies;
    for (size_t i = 0; i < made.outputs.size(); ++i) {
      std::string& result = plain->call.outputs[i];
      result = fresh(made.outputs[i] + ".result");
      program_.graph.values.emplace(result, program_.graph.values.at(made.outputs[i]));
      Node copy = made;
      copy.name = made.outputs[i];
      copy.op = "aten::copy_";
      copy.overload.clear();
      copy.arguments = {{"self", TensorArgument{plain->destinations[i]}}, {"src", TensorArgument{result}}};
      copy.outputs = {made.outputs[i]};
      copies.push_back(std::move(copy));
    }
    plain->call.name = plain->call.outputs[0];
    program_.graph.nodes.push_back(std::move(plain->call));
    for (Node& copy : copies) program_.graph.nodes.push_back(std::move(copy));
  }

  // The results have the shapes of their destinations, and all tensors one dtype: nothing is resized or
  // converted.
  bool has_one_type(const Node& made, const std::vector<std::string>& destinations) const {
    const std::string& dtype = program_.graph.values.at(made.outputs[0]).dtype;
    for (size_t i = 0; i < destinations.size(); ++i) {
      const TensorType* type = known_type(destinations[i]);
      if (type == nullptr || *type != program_.graph.values.at(made.outputs[i])) return false;
    }
    const auto converts = [](const auto& one) { return std::holds_alternative<DtypeArgument>(one.second); };
    if (std::any_of(made.arguments.begin(), made.arguments.end(), converts)) return false;
    const auto read = made.reads();
    return std::all_of(read.begin(), read.end(), [&](const std::string& name) {
      const TensorType* type = known_type(name);
      return type != nullptr && type->dtype == dtype;
    });
  }

  const TensorType* known_type(const std::string& name) const {
    if (const auto value = program_.graph.values.find(name); value != program_.graph.values.end())
      return &value->second;
    for (const Pt2State& state : program_.state)
      if (state.name == name) return &state.type;
    return nullptr;
  }

  Argument argument(JsonReader& input, const Scope& scope, const Place& place, const std::string& name) {
    return pt2_argument(input, name,
                        {[&](const std::string& local) { return resolve(scope, local, place); },
                         [&](const std::string& local) {
                           const auto found = scope.integers.find(local);
                           if (found == scope.integers.end())
                             fail(place, "reads the size " + in_quotes(local) + ", which nothing makes");
                           return symbols_.evaluate(found->second);
                         },
                         [&](const std::string& message) { fail(place, message); },
                         root_.where() + ": node " + in_quotes(place.name)});
  }

  void define(Scope& scope, const std::string& local, const std::string& name, const Place& place) const {
    if (!scope.tensors.emplace(local, name).second)
      fail(place, "makes " + in_quotes(local) + ", which is there already",
           "The file is damaged. Export again.");
  }

  std::string resolve(const Scope& scope, const std::string& local, const Place& place) const {
    const auto found = scope.tensors.find(local);
    if (found == scope.tensors.end())
      fail(place, "reads " + in_quotes(local) + ", which nothing before it makes");
    return found->second;
  }

  /// As Node::autocast: what a region of torch.autocast(device, dtype, enabled) says.
  std::string autocast_of(std::vector<JsonReader>& inputs, const Place& place) const {
    if (!inputs[2].object("arg").boolean("as_bool")) return "off";
    const std::string dtype = pt2_dtype(inputs[1].object("arg").integer("as_scalar_type", 0, 1000),
                                        root_.where() + ": node " + in_quotes(place.name));
    if (dtype != "bfloat16" && dtype != "float16")
      fail(place, "autocast to " + dtype + "; expected bfloat16 or float16");
    return dtype;
  }

  // Nodes that run without gradients, or with another autocast, take the place of the call.
  void read_sub_graph(JsonReader& node, Scope& outer, const Place& place) {
    const std::string kind = place.target.substr(place.target.rfind('.') + 1);
    const bool gradient = kind == "wrap_with_set_grad_enabled";
    if (!gradient && kind != "wrap_with_autocast") {
      const bool control = kind == "cond" || kind == "while_loop" || kind == "scan" || kind == "map";
      fail(place,
           control ? "control flow that depends on values of tensors is not supported"
                   : "this operator of Python is not supported",
           "Export a model whose operators are the same for every input.");
    }
    std::vector<JsonReader> inputs = node.objects("inputs");
    const size_t graph_position = gradient ? 1 : 4;
    if (inputs.size() <= graph_position) fail(place, "has too few arguments");
    JsonReader graph = inputs[graph_position].object("arg").object("as_graph").object("graph");
    Scope scope = scope_of(graph);
    scope.integers.insert(outer.integers.begin(), outer.integers.end());
    scope.gradient = outer.gradient;
    scope.autocast = outer.autocast;
    if (gradient) {
      scope.gradient = inputs[0].object("arg").boolean("as_bool");
    } else if (inputs[0].object("arg").string("as_string") == device_) {  // of another device: says nothing
      scope.autocast = autocast_of(inputs, place);
    }

    std::vector<JsonReader> formal = graph.objects("inputs");
    if (formal.size() != inputs.size() - graph_position - 1)
      fail(place, "gives " + std::to_string(inputs.size() - graph_position - 1) +
                      " inputs to a sub-graph of " + std::to_string(formal.size()));
    for (size_t i = 0; i < formal.size(); ++i) {
      JsonReader given = inputs[graph_position + 1 + i].object("arg");
      if (!formal[i].has("as_tensor")) continue;  // a size: known
      if (!given.has("as_tensor")) fail(place, "gives its sub-graph something that is no tensor");
      define(scope, formal[i].object("as_tensor").string("name"),
             resolve(outer, given.object("as_tensor").string("name"), place), place);
    }
    read_nodes(graph, scope, place.name.empty() ? "sub." : place.name + ".");

    std::vector<std::string> results;
    for (JsonReader& output : graph.objects("outputs")) {
      if (!output.has("as_tensor")) fail(place, "its sub-graph makes something that is no tensor");
      results.push_back(resolve(scope, output.object("as_tensor").string("name"), place));
    }
    std::vector<std::string> locals;
    for (JsonReader& output : node.objects("outputs")) {
      if (output.has("as_tensor")) {
        locals.push_back(output.object("as_tensor").string("name"));
      } else if (output.has("as_tensors")) {
        for (JsonReader& one : output.objects("as_tensors")) locals.push_back(one.string("name"));
      } else {
        fail(place, "makes something that is no tensor");
      }
    }
    if (locals.size() != results.size())
      fail(place, "names " + std::to_string(locals.size()) + " outputs; its sub-graph makes " +
                      std::to_string(results.size()));
    for (size_t i = 0; i < locals.size(); ++i) define(outer, locals[i], results[i], place);
  }

  void read_outputs(JsonReader& signature, const Scope& scope) {
    for (JsonReader& spec : signature.objects("output_specs")) {
      if (!spec.has("user_output") && !spec.has("loss_output")) {
        spec.fail("", "the program hands out what it changes: it was made for inference", kExportAgain);
      }
      std::string local;
      if (spec.has("loss_output")) {
        local = spec.object("loss_output").object("arg").string("name");
      } else {
        JsonReader argument = spec.object("user_output").object("arg");
        if (!argument.has("as_tensor")) {  // a number, None
          program_.returned.emplace_back();
          continue;
        }
        local = argument.object("as_tensor").string("name");
      }
      const auto found = scope.tensors.find(local);
      if (found == scope.tensors.end()) spec.fail("", "nothing makes the output " + in_quotes(local));
      const bool computed = program_.graph.values.count(found->second) != 0;
      program_.returned.emplace_back();
      if (!computed) continue;
      program_.returned.back() = program_.graph.outputs.size();
      program_.graph.outputs.push_back(found->second);
    }
  }

  void keep_what_is_read() {
    Graph& graph = program_.graph;
    std::unordered_set<std::string> read(graph.outputs.begin(), graph.outputs.end());
    for (const Node& node : graph.nodes) {
      for (const std::string& name : node.reads()) read.insert(name);
    }
    for (const Pt2State& state : program_.state) {
      if (read.count(state.name) == 0) continue;
      if (state.parameter) {
        graph.parameters.push_back({state.name, state.type, state.trainable});
      } else {
        graph.buffers.push_back({state.name, state.type});
      }
    }
    std::erase_if(graph.inputs, [&](const std::string& name) {
      if (read.count(name) != 0) return false;
      graph.values.erase(name);
      return true;
    });
  }

  JsonReader root_;
  int64_t batch_size_;
  bool in_range_;
  Pt2Symbols symbols_;
  std::vector<std::string> inputs_;       // the program's names of its tensor inputs
  std::unordered_set<std::string> used_;  // names in the graph
  std::string device_;                    // that the program was exported on: the first input's
  Pt2Program program_;
};

}  // namespace

Pt2Program read_pt2_program(const Json& program, const std::string& where, int64_t batch_size,
                            bool in_range) {
  return ProgramReader(program, where, batch_size, in_range).read();
}

}  // namespace pipewright
