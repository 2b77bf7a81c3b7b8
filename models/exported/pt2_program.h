// From an exported program's JSON (torch/_export/serde/schema.py, version 8.17) to a Graph.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

/// A parameter, buffer or constant of the program.
struct Pt2State {
  std::string name;  ///< its full name: "layer1.0.conv1.weight"
  TensorType type;
  bool parameter = false;
  bool trainable = false;
};

struct Pt2Program {
  /// Names of values are the program's; a layer is the path of the module, "" for what the outermost one does
  /// itself. `outputs` are all tensors that the program hands out. Parameters and buffers are those that a
  /// node reads. `together` is empty, `name` too.
  Graph graph;
  std::vector<Pt2State> state;  ///< all, read or not, in the program's order
  /// Inputs that are tensors, read or not, in the order of the module's arguments.
  std::vector<std::string> inputs;
  /// Of all that the module returns, in its order, tuples, lists and dicts flattened, the place in
  /// graph.outputs; none of what is no tensor that it computes (None, a number, a parameter).
  std::vector<std::optional<size_t>> returned;
  bool fixed_batch = false;   ///< as Model::fixed_batch
  int64_t least_samples = 1;  ///< as Model::least_samples: where torch.export writes 2, one runs as well
};

/// `program`: a text of models/NAME.json; `where` for messages. Sub-graphs that switch gradients or autocast
/// are part of the graph, checks that make no value are left out, and what writes its result into a tensor
/// (`out=`) is the plain operator and a copy. Sizes that the file leaves open are those of a batch of
/// `batch_size`. InputError that names the place, the node and the reason: another version or dialect of the
/// schema, a size or dtype that Pipewright has not, control flow, operators of Python, values that are no
/// tensors, inputs that do not have `batch_size` samples. `in_range`: it has to be one of the sizes that the
/// program was exported for.
Pt2Program read_pt2_program(const Json& program, const std::string& where, int64_t batch_size,
                            bool in_range = true);

}  // namespace pipewright
