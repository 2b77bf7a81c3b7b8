// Makes a Model one ATen call after another and works out the type of every value on the way.
//
//   ModelBuilder model("tiny", batch_size);
//   auto x = model.input("images", "float32", {1, 28, 28});
//   x = model.flatten(x);
//   {
//     auto layer = model.layer("head");
//     x = model.linear(x, {.features = 10});          // node head.linear, parameters head.weight and
//     head.bias
//   }
//   return model.finish_classification(x);
//
// Operators are the functional ones, with argument names and defaults as LibTorch's schemas have them
// (native_functions.yaml of 2.11). No call bakes the batch size in: the graph runs a shorter last minibatch
// too.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/definition/model.h"

namespace pipewright {

/// An argument that is a value or a parameter.
inline TensorArgument named(const std::string& name) { return {name}; }

inline constexpr double kDefaultEpsilon = 1e-5;  ///< of torch.nn's norms

/// Height and width of a window or of its padding; one number is a square.
struct Sides {
  int64_t height;
  int64_t width;
  Sides(int64_t side) : Sides(side, side) {}  // NOLINT(google-explicit-constructor): `.kernel = 3` is meant
  Sides(int64_t height, int64_t width) : height(height), width(width) {}
  int64_t area() const { return height * width; }
};

/// torch.nn.init.kaiming_normal_(mode="fan_out", nonlinearity="relu") of a convolution; groups do not
/// matter, as torch counts them.
Initialiser kaiming_normal_fan_out(int64_t channels, Sides kernel);

/// A start that is not given is torch.nn.Conv2d's: uniform within 1 / sqrt(fan_in), weight
/// and bias.
struct Conv2dOptions {
  int64_t channels;  ///< of the output
  Sides kernel;
  int64_t stride = 1;
  Sides padding = 0;
  int64_t groups = 1;  ///< divides the channels of input and output
  bool bias = true;
  std::optional<Initialiser> weight_start = {};
  std::optional<Initialiser> bias_start = {};
};

/// A start that is not given is torch.nn.Linear's: uniform within 1 / sqrt(input features), weight and bias.
struct LinearOptions {
  int64_t features;  ///< of the output
  bool bias = true;
  std::optional<Initialiser> weight_start = {};
  std::optional<Initialiser> bias_start = {};
};

struct EmbeddingOptions {
  int64_t rows;                                  ///< size of the vocabulary
  int64_t features;                              ///< of the output
  std::optional<Initialiser> weight_start = {};  ///< not given: N(0, 1) as torch.nn.Embedding
};

struct MaxPool2dOptions {
  int64_t kernel;
  int64_t stride;
  int64_t padding = 0;
  bool ceil_mode = false;  ///< windows that hang over the far edge count
};

/// A value, parameter or buffer is handled by its name. Methods add one node each, unless they say otherwise,
/// and return the value it makes. Shapes that do not fit the operator are an InputError naming the model, the
/// layer and the shapes.
class ModelBuilder {
 public:
  /// `name` becomes graph.name: a model's SPEC. InputError if batch_size < 1.
  ModelBuilder(std::string name, int64_t batch_size);

  /// While it lives, nodes and parameters belong to this layer. Layers nest: "layer1.0", then "conv1" in it,
  /// is the path "layer1.0.conv1". Must die in reverse order of making and before the builder does.
  class [[nodiscard]] LayerScope {
   public:
    ~LayerScope() { path_.resize(outer_length_); }
    LayerScope(const LayerScope&) = delete;
    LayerScope& operator=(const LayerScope&) = delete;

   private:
    friend class ModelBuilder;
    LayerScope(std::string& path, const std::string& name);
    std::string& path_;
    size_t outer_length_;
  };
  LayerScope layer(const std::string& name) { return LayerScope(path_, name); }

  /// The nodes made while it lives belong to one stage (Graph::together). For values without the batch in
  /// dimension 0: only the others may cross a cut, where a short last minibatch changes the shape of what
  /// travels. Must die before the builder does; does not nest.
  class [[nodiscard]] TogetherScope {
   public:
    ~TogetherScope();
    TogetherScope(const TogetherScope&) = delete;
    TogetherScope& operator=(const TogetherScope&) = delete;

   private:
    friend class ModelBuilder;
    explicit TogetherScope(Graph& graph) : graph_(graph), first_(graph.nodes.size()) {}
    Graph& graph_;
    size_t first_;
  };
  TogetherScope together() { return TogetherScope(model_.graph); }

  /// Each stage that needs what the nodes made while it lives make, computes it itself (Graph::everywhere):
  /// masks, made from integer inputs. Must die before the builder does.
  class [[nodiscard]] EverywhereScope {
   public:
    ~EverywhereScope();
    EverywhereScope(const EverywhereScope&) = delete;
    EverywhereScope& operator=(const EverywhereScope&) = delete;

   private:
    friend class ModelBuilder;
    explicit EverywhereScope(Graph& graph) : graph_(graph), first_(graph.nodes.size()) {}
    Graph& graph_;
    size_t first_;
  };
  EverywhereScope everywhere() { return EverywhereScope(model_.graph); }

  /// A field of a minibatch, of shape (batch, sample_shape...). Its name is not prefixed by the layer.
  std::string input(const std::string& name, const std::string& dtype,
                    const std::vector<int64_t>& sample_shape);
  /// A trainable float32 parameter "LAYER.NAME".
  std::string parameter(const std::string& name, const std::vector<int64_t>& shape, Initialiser start);
  /// A float32 buffer "LAYER.NAME".
  std::string buffer(const std::string& name, const std::vector<int64_t>& shape, Initialiser start);

  std::string conv2d(const std::string& x, const Conv2dOptions& options);  ///< parameters "weight", "bias"
  std::string linear(const std::string& x, const LinearOptions& options);  ///< parameters "weight", "bias"
  /// Over dimension 1; parameters "weight" = 1, "bias" = 0; buffers "running_mean" = 0, "running_var" = 1,
  /// which the node changes in place. momentum 0.1. InputError when a channel has one value only: it has no
  /// variance.
  std::string batch_norm(const std::string& x, double epsilon = kDefaultEpsilon);
  /// Over the last dimension; "weight", "bias".
  std::string layer_norm(const std::string& x, double epsilon = kDefaultEpsilon);
  std::string embedding(const std::string& x, const EmbeddingOptions& options);  ///< parameter "weight"
  std::string relu(const std::string& x);
  std::string hardtanh(const std::string& x, double lowest, double highest);  ///< ReLU6 is 0..6
  std::string gelu(const std::string& x);
  std::string dropout(const std::string& x, double probability);
  std::string max_pool2d(const std::string& x, const MaxPool2dOptions& options);
  std::string avg_pool2d(const std::string& x, int64_t kernel, int64_t stride, int64_t padding = 0);
  std::string adaptive_avg_pool2d(const std::string& x, int64_t size);  ///< to size x size
  std::string add(const std::string& x, const std::string& y);          ///< broadcasts
  std::string concatenate(const std::vector<std::string>& values, int64_t dim);
  std::string flatten(const std::string& x, int64_t start_dim = 1);  ///< all dimensions from start_dim on
  /// -1 for the one dimension that is to be worked out: use it for the batch.
  std::string reshape(const std::string& x, const std::vector<int64_t>& shape);
  std::string transpose(const std::string& x, int64_t dim0, int64_t dim1);
  /// Into parts of `size` along `dim`; the last may be smaller.
  std::vector<std::string> split(const std::string& x, int64_t size, int64_t dim);
  /// All three are (batch, heads, tokens, features). `mask`: bool, of a shape that broadcasts to (batch,
  /// heads, tokens of the query, tokens of the key); where it is false nothing is attended. "" = no mask.
  std::string scaled_dot_product_attention(const std::string& query, const std::string& key,
                                           const std::string& value, bool is_causal, double dropout_p = 0,
                                           const std::string& mask = "");
  /// Mean over all labels but those of -100, which ask nothing; scores (N, classes), labels int64 (N).
  std::string cross_entropy_loss(const std::string& scores, const std::string& labels,
                                 double label_smoothing = 0);

  /// Any other operator: `op` without "aten::". The caller vouches for the types of what it makes.
  std::vector<std::string> call(const std::string& op, const std::string& overload,
                                std::vector<std::pair<std::string, Argument>> arguments,
                                const std::vector<TensorType>& outputs);
  /// The same for an operator that makes one value.
  std::string call_one(const std::string& op, const std::string& overload,
                       std::vector<std::pair<std::string, Argument>> arguments, std::vector<int64_t> shape,
                       const std::string& dtype = "float32");
  const TensorType& type(const std::string& name) const;
  const std::vector<int64_t>& shape(const std::string& name) const { return type(name).shape; }
  int64_t batch_size() const { return batch_size_; }

  /// The model. Leaves the builder empty. The graph has been validated.
  Model finish(const std::string& loss, const std::string& scores);
  /// The input "labels" and, in layer "loss", the cross entropy of scores (batch, classes) or (batch, tokens,
  /// classes: one label for each token).
  std::string classification_loss(const std::string& scores, double label_smoothing = 0);
  /// finish() with the classification_loss().
  Model finish_classification(const std::string& scores, double label_smoothing = 0);

  /// InputError "NAME: LAYER: message", for models' own checks.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::string in_layer(const std::string& name) const;
  std::string unused(const std::string& name);
  std::string tensor(const std::string& name, const std::vector<int64_t>& shape);
  void require_rank(const std::string& op, const std::string& x, size_t rank, const char* meaning) const;
  void require_floating(const std::string& op, const std::string& x) const;
  void require_positive(const std::string& op, const char* what, int64_t value) const;
  /// Positions of a window in height and width.
  std::vector<int64_t> windows(const std::string& op, const std::string& x, Sides kernel, int64_t stride,
                               Sides padding, bool ceil_mode = false) const;

  Model model_;
  int64_t batch_size_;
  std::string path_;
  std::map<std::string, TensorType> types_;  // of values, parameters and buffers: one name space
  std::set<std::string> node_names_;
};

}  // namespace pipewright
