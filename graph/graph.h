// The model as a functional graph of ATen calls. Holds no times and no stages.
//
// Parameters and buffers are named inputs of the graph, not members of anything: weight versions are then
// just another list of tensors handed to the same nodes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "graph/json.h"

namespace pipewright {

/// Names of dtypes as documents spell them: "float32", "float64", "bfloat16", "float16", "complex64",
/// "int64", "int32", "int16", "int8", "uint8", "bool". InputError (naming the nearest) for another name.
int64_t dtype_bytes(const std::string& dtype);
bool dtype_is_floating(const std::string& dtype);
bool dtype_has_gradients(const std::string& dtype);  ///< floating or complex

/// Type of a tensor: parameter, buffer, graph input or the output of a node. The batch is dimension 0 of
/// activations.
struct TensorType {
  std::string dtype = "float32";
  std::vector<int64_t> shape;
  int64_t elements() const;
  int64_t bytes() const { return elements() * dtype_bytes(dtype); }
  std::string text() const;  // float32 (64, 3, 224, 224)
  bool operator==(const TensorType&) const = default;
};

// One argument of a node. A tensor is named: a value of the graph, a parameter or a buffer (one name space).
struct NoneArgument {
  bool operator==(const NoneArgument&) const = default;
};
struct TensorArgument {
  std::string name;
  bool operator==(const TensorArgument&) const = default;
};
struct TensorsArgument {
  std::vector<std::string> names;
  bool operator==(const TensorsArgument&) const = default;
};
struct DtypeArgument {
  std::string dtype;
  bool operator==(const DtypeArgument&) const = default;
};
using Argument =
    std::variant<NoneArgument, TensorArgument, TensorsArgument, DtypeArgument, bool, int64_t, double,
                 std::string, std::vector<int64_t>, std::vector<double>, std::vector<bool>>;

/// One call. `arguments` are by the schema's names; what is left out takes the schema's default.
struct Node {
  std::string name;      ///< unique in the graph
  std::string op;        ///< "aten::conv2d"
  std::string overload;  ///< "" or "Tensor", "using_ints", ...
  std::vector<std::pair<std::string, Argument>> arguments;
  std::vector<std::string> outputs;  ///< names of the values it makes, in the operator's order
  std::string layer;                 ///< module path, for people: "features.3"
  bool gradient = true;              ///< false: runs without autograd, as under torch.no_grad()
  /// "": runs under the autocast of the whole graph, if that has one. "off": without. "bfloat16", "float16":
  /// under autocast to it, whatever the graph runs under.
  std::string autocast = {};

  /// Names of all tensors read (values, parameters, buffers), in argument order, each once.
  std::vector<std::string> reads() const;
};

struct Parameter {
  std::string name;
  TensorType type;
  bool trainable = true;
};

struct Buffer {
  std::string name;
  TensorType type;
};

struct Graph {
  static constexpr const char* kSchema = "pipewright.graph/1";

  std::string name;                  ///< the model's SPEC, "convnet:classes=10"
  std::vector<std::string> inputs;   ///< fields of a minibatch: "images", "labels", ...
  std::vector<std::string> outputs;  ///< [0] the scalar loss; [1], if there, the scores that metrics look at
  std::map<std::string, TensorType> values;  ///< graph inputs and all node outputs
  std::vector<Parameter> parameters;
  std::vector<Buffer> buffers;
  std::vector<Node> nodes;  ///< in an order in which they can run
  /// Names of nodes, in sets of two or more that one stage must hold: they share memory that one of them
  /// writes, which no message between stages would carry (models/exported/storage_groups.h). Disjoint.
  std::vector<std::vector<std::string>> together;
  /// Names of nodes that every stage which needs their values runs by itself, so that these never cross a
  /// cut: they depend on nothing but each other, inputs of the graph and buffers that no node writes
  /// (models/run/passes.h).
  std::vector<std::string> everywhere;

  /// No part of the document (models/run/autocast.h): operators run under bfloat16 autocast, and these values
  /// come out in another dtype than `values` says.
  std::optional<std::map<std::string, std::string>> autocast;
  /// No part of the document: operators that are run in another way on a GPU (models/run/device_passes.h).
  std::set<std::string> device_passes = {};
  /// No part of the document: nodes that depend on nothing run once and their values are kept
  /// (models/run/interpreter.h).
  bool fold_constants = true;
  /// Type of a value as it is computed: that of `values`, but for `autocast`.
  TensorType computed_type(const std::string& value) const;

  static Graph from_json(JsonReader& reader);
  Json to_json() const;
  /// Every name is defined before it is read and defined once; outputs exist. InputError names the node.
  void validate(const std::string& where) const;
};

}  // namespace pipewright
