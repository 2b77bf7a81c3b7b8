// Passes over a graph that make it faster on a GPU: operators are run in another way, with the same numbers
// up to the rounding of the precision. Which ones is decided once, with the precision.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "models/run/storages.h"

namespace pipewright {

/// "channels-last": conv2d gets its input and weight with the channels innermost, as tensor cores want them,
/// and gives its output so; what comes behind it (norms, activations, pools) keeps to that.
/// "aligned-products": a linear whose weight has many rows, and their number no multiple of 8 (a vocabulary),
/// is computed with rows of zeros behind them: products read 16 bytes at once. Its output is the first
/// columns of a wider matrix, and so may its gradient be. A view that joins the rows of that would not be
/// one: where the graph has such a view the linear is left as it is.
/// "contiguous-operands": a linear gets an input whose rows do not lie one behind the other (a transposed
/// one) in one copy, made with its cast, and is one product; of two tensors of one shape the contiguous one
/// is added first, as a sum lies in memory as its first operand does.
/// "fused-cross-entropy": a cross entropy reads scores where they lie, bfloat16 ones too, and makes no copy
/// of them (models/run/cross_entropy.h).
/// "two-stage-layer-norm": a layer norm adds the gradients of its weight and bias over chunks of rows side by
/// side, and then over the chunks (models/run/layer_norm.h).
/// "weights-cast-once": where autocast would cast a weight to bfloat16 at every read, a copy of it is read
/// that was made once for that version of the weights (Segment::copied()), with the same bits.
const std::vector<std::string>& known_device_passes();

/// `graph` with Graph::device_passes. `asked`: "none"; names, with commas; or "auto": on a GPU those that pay
/// with the precision (all where products read 16 bits, channels-last for tf32 too), else none.
/// "channels-last" and "contiguous-operands" lay numbers in another order, so that a view may become a copy:
/// a graph that says itself how they lie (aten::as_strided), or writes a view's memory later on, has neither
/// with "auto". InputError for a name that is not known, or one of these two for such a graph.
Graph with_device_passes(Graph graph, const std::string& asked, const std::string& precision,
                         at::Device device);

/// Whether "weights-cast-once" has something to do: the graph runs under autocast.
bool casts_weights_once(const Graph& graph);
/// Is what the node's operator reads of float32 weights their copy then? Where autocast casts all that it
/// reads.
bool reads_copies(const Graph& graph, const Node& node, at::Device device);

/// What nodes run instead of their operators by the passes of a graph, which is borrowed and must not change:
/// operators with the same arguments, by name.
class OperatorsByPasses {
 public:
  explicit OperatorsByPasses(const Graph& graph) : graph_(graph) {}

  std::optional<c10::OperatorHandle> operator_for(const Node& node);

 private:
  const Storages& storages();
  bool keeps_rows(const std::string& value, int64_t columns);

  const Graph& graph_;
  std::optional<Storages> storages_;  // once they are asked for
};

}  // namespace pipewright
