#include "models/zoo/builder.h"

#include <algorithm>
#include <cmath>

#include "graph/error.h"

namespace pipewright {
namespace {

std::string text(const std::vector<int64_t>& shape) {
  std::string out = "(";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + ")";
}

std::vector<int64_t> list(Sides sides) { return {sides.height, sides.width}; }

/// Bound of torch.nn's default for convolution and linear: kaiming_uniform_ with a = sqrt(5) is U(-b, b) with
/// b = sqrt(6 / ((1 + 5) fan_in)), which the bias uses too.
Initialiser default_start(int64_t fan_in) {
  return Initialiser::uniform(1 / std::sqrt(static_cast<double>(fan_in)));
}

}  // namespace

Initialiser kaiming_normal_fan_out(int64_t channels, Sides kernel) {
  return Initialiser::normal(0, std::sqrt(2.0 / static_cast<double>(channels * kernel.area())));
}

ModelBuilder::LayerScope::LayerScope(std::string& path, const std::string& name)
    : path_(path), outer_length_(path.size()) {
  if (!path_.empty()) path_ += '.';
  path_ += name;
}

ModelBuilder::TogetherScope::~TogetherScope() {
  std::vector<std::string> names;
  for (size_t i = first_; i < graph_.nodes.size(); ++i) names.push_back(graph_.nodes[i].name);
  if (names.size() > 1) graph_.together.push_back(std::move(names));
}

ModelBuilder::EverywhereScope::~EverywhereScope() {
  for (size_t i = first_; i < graph_.nodes.size(); ++i) graph_.everywhere.push_back(graph_.nodes[i].name);
}

ModelBuilder::ModelBuilder(std::string name, int64_t batch_size) : batch_size_(batch_size) {
  model_.graph.name = std::move(name);
  if (batch_size < 1) fail("batch size: got " + std::to_string(batch_size) + ", expected at least 1");
}

void ModelBuilder::fail(const std::string& message) const {
  throw InputError(model_.graph.name + ": " + (path_.empty() ? "" : path_ + ": ") + message);
}

std::string ModelBuilder::in_layer(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

const TensorType& ModelBuilder::type(const std::string& name) const {
  const auto found = types_.find(name);
  PW_CHECK(found != types_.end(), model_.graph.name << " reads '" << name << "', which nothing has made");
  return found->second;
}

void ModelBuilder::require_rank(const std::string& op, const std::string& x, size_t rank,
                                const char* meaning) const {
  if (shape(x).size() != rank)
    fail(op + ": got " + x + " of shape " + text(shape(x)) + ", expected " + meaning);
}

void ModelBuilder::require_floating(const std::string& op, const std::string& x) const {
  if (!dtype_is_floating(type(x).dtype)) {
    fail(op + ": got " + x + " of type " + type(x).dtype + ", expected a floating type");
  }
}

void ModelBuilder::require_positive(const std::string& op, const char* what, int64_t value) const {
  if (value < 1) fail(op + ": " + what + ": got " + std::to_string(value) + ", expected at least 1");
}

std::vector<int64_t> ModelBuilder::windows(const std::string& op, const std::string& x, Sides kernel,
                                           int64_t stride, Sides padding, bool ceil_mode) const {
  require_rank(op, x, 4, "(batch, channels, height, width)");
  require_floating(op, x);
  require_positive(op, "stride", stride);
  const auto positions = [&](int64_t in, int64_t window, int64_t pad) {
    require_positive(op, "kernel", window);
    if (pad < 0) fail(op + ": padding: got " + std::to_string(pad) + ", expected at least 0");
    const int64_t room = in + 2 * pad - window;
    if (room < 0) {
      fail(op + ": a window of " + std::to_string(window) + " with padding " + std::to_string(pad) +
           " does not fit an input of shape " + text(shape(x)));
    }
    int64_t count = room / stride + 1;
    // A window that hangs over the far edge counts if it begins inside the input or the near padding.
    if (ceil_mode && room % stride != 0 && count * stride < in + pad) ++count;
    return count;
  };
  return {positions(shape(x)[2], kernel.height, padding.height),
          positions(shape(x)[3], kernel.width, padding.width)};
}

std::string ModelBuilder::input(const std::string& name, const std::string& dtype,
                                const std::vector<int64_t>& sample_shape) {
  TensorType type{dtype, {batch_size_}};
  type.shape.insert(type.shape.end(), sample_shape.begin(), sample_shape.end());
  PW_CHECK(types_.emplace(name, type).second, model_.graph.name << " defines '" << name << "' twice");
  model_.graph.inputs.push_back(name);
  model_.graph.values.emplace(name, type);
  return name;
}

std::string ModelBuilder::tensor(const std::string& name, const std::vector<int64_t>& shape) {
  const std::string full = in_layer(name);
  PW_CHECK(types_.emplace(full, TensorType{"float32", shape}).second,
           model_.graph.name << " defines '" << full << "' twice");
  return full;
}

std::string ModelBuilder::parameter(const std::string& name, const std::vector<int64_t>& shape,
                                    Initialiser start) {
  const std::string full = tensor(name, shape);
  model_.graph.parameters.push_back({full, type(full), true});
  model_.parameter_initialisers.push_back(start);
  return full;
}

std::string ModelBuilder::buffer(const std::string& name, const std::vector<int64_t>& shape,
                                 Initialiser start) {
  const std::string full = tensor(name, shape);
  model_.graph.buffers.push_back({full, type(full)});
  model_.buffer_initialisers.push_back(start);
  return full;
}

std::string ModelBuilder::unused(const std::string& name) {
  // A node's value carries the node's name, so the name has to be free in both name spaces.
  const auto taken = [&](const std::string& candidate) {
    return node_names_.count(candidate) || types_.count(candidate);
  };
  std::string candidate = name;
  for (int64_t i = 2; taken(candidate); ++i) candidate = name + "_" + std::to_string(i);
  return candidate;
}

std::vector<std::string> ModelBuilder::call(const std::string& op, const std::string& overload,
                                            std::vector<std::pair<std::string, Argument>> arguments,
                                            const std::vector<TensorType>& outputs) {
  Node node;
  node.name = unused(in_layer(op));
  node_names_.insert(node.name);
  node.op = "aten::" + op;
  node.overload = overload;
  node.arguments = std::move(arguments);
  node.layer = path_;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string name = outputs.size() == 1 ? node.name : node.name + "." + std::to_string(i);
    PW_CHECK(types_.emplace(name, outputs[i]).second, model_.graph.name << " defines '" << name << "' twice");
    model_.graph.values.emplace(name, outputs[i]);
    node.outputs.push_back(name);
  }
  model_.graph.nodes.push_back(node);
  return node.outputs;
}

std::string ModelBuilder::call_one(const std::string& op, const std::string& overload,
                                   std::vector<std::pair<std::string, Argument>> arguments,
                                   std::vector<int64_t> shape, const std::string& dtype) {
  return call(op, overload, std::move(arguments), {TensorType{dtype, std::move(shape)}}).front();
}

std::string ModelBuilder::conv2d(const std::string& x, const Conv2dOptions& options) {
  const auto sides = windows("conv2d", x, options.kernel, options.stride, options.padding);
  require_positive("conv2d", "channels", options.channels);
  require_positive("conv2d", "groups", options.groups);
  const std::vector<int64_t> in = shape(x);
  if (in[1] % options.groups != 0 || options.channels % options.groups != 0) {
    fail("conv2d: groups: " + std::to_string(options.groups) + " does not divide the " +
         std::to_string(in[1]) + " channels of the input and the " + std::to_string(options.channels) +
         " of the output");
  }
  const int64_t group_channels = in[1] / options.groups;
  const Initialiser start = default_start(group_channels * options.kernel.area());
  const std::string weight =
      parameter("weight", {options.channels, group_channels, options.kernel.height, options.kernel.width},
                options.weight_start.value_or(start));
  std::vector<std::pair<std::string, Argument>> arguments = {{"input", named(x)}, {"weight", named(weight)}};
  if (options.bias) {
    arguments.emplace_back("bias",
                           named(parameter("bias", {options.channels}, options.bias_start.value_or(start))));
  }
  arguments.emplace_back("stride", list(options.stride));
  arguments.emplace_back("padding", list(options.padding));
  if (options.groups != 1) arguments.emplace_back("groups", options.groups);
  return call_one("conv2d", "", std::move(arguments), {in[0], options.channels, sides[0], sides[1]},
                  type(x).dtype);
}

std::string ModelBuilder::linear(const std::string& x, const LinearOptions& options) {
  std::vector<int64_t> out = shape(x);
  if (out.size() < 2)
    fail("linear: got " + x + " of shape " + text(out) + ", expected (batch, ..., features)");
  require_floating("linear", x);
  require_positive("linear", "features", options.features);
  const int64_t features = out.back();
  out.back() = options.features;
  const Initialiser start = default_start(features);
  const std::string weight =
      parameter("weight", {options.features, features}, options.weight_start.value_or(start));
  std::vector<std::pair<std::string, Argument>> arguments = {{"input", named(x)}, {"weight", named(weight)}};
  if (options.bias) {
    arguments.emplace_back("bias",
                           named(parameter("bias", {options.features}, options.bias_start.value_or(start))));
  }
  return call_one("linear", "", std::move(arguments), out, type(x).dtype);
}

std::string ModelBuilder::batch_norm(const std::string& x, double epsilon) {
  if (shape(x).size() < 2)
    fail("batch_norm: got shape " + text(shape(x)) + ", expected (batch, channels, ...)");
  require_floating("batch_norm", x);
  const int64_t channels = shape(x)[1];
  const std::string weight = parameter("weight", {channels}, Initialiser::constant(1));
  const std::string bias = parameter("bias", {channels}, Initialiser::constant(0));
  const std::string mean = buffer("running_mean", {channels}, Initialiser::constant(0));
  const std::string variance = buffer("running_var", {channels}, Initialiser::constant(1));
  return call_one("batch_norm", "",
                  {{"input", named(x)},
                   {"weight", named(weight)},
                   {"bias", named(bias)},
                   {"running_mean", named(mean)},
                   {"running_var", named(variance)},
                   {"training", true},
                   {"momentum", 0.1},
                   {"eps", epsilon},
                   {"cudnn_enabled", true}},
                  shape(x), type(x).dtype);
}

std::string ModelBuilder::layer_norm(const std::string& x, double epsilon) {
  require_floating("layer_norm", x);
  const int64_t features = shape(x).back();
  const std::string weight = parameter("weight", {features}, Initialiser::constant(1));
  const std::string bias = parameter("bias", {features}, Initialiser::constant(0));
  return call_one("layer_norm", "",
                  {{"input", named(x)},
                   {"normalized_shape", std::vector<int64_t>{features}},
                   {"weight", named(weight)},
                   {"bias", named(bias)},
                   {"eps", epsilon}},
                  shape(x), type(x).dtype);
}

std::string ModelBuilder::embedding(const std::string& x, const EmbeddingOptions& options) {
  if (type(x).dtype != "int64")
    fail("embedding: got " + x + " of type " + type(x).dtype + ", expected int64");
  require_positive("embedding", "rows", options.rows);
  require_positive("embedding", "features", options.features);
  const std::string weight = parameter("weight", {options.rows, options.features},
                                       options.weight_start.value_or(Initialiser::normal(0, 1)));
  std::vector<int64_t> out = shape(x);
  out.push_back(options.features);
  return call_one("embedding", "", {{"weight", named(weight)}, {"indices", named(x)}}, out, "float32");
}

std::string ModelBuilder::relu(const std::string& x) {
  return call_one("relu", "", {{"self", named(x)}}, shape(x), type(x).dtype);
}

std::string ModelBuilder::hardtanh(const std::string& x, double lowest, double highest) {
  return call_one("hardtanh", "", {{"self", named(x)}, {"min_val", lowest}, {"max_val", highest}}, shape(x),
                  type(x).dtype);
}

std::string ModelBuilder::gelu(const std::string& x) {
  return call_one("gelu", "", {{"self", named(x)}}, shape(x), type(x).dtype);
}

std::string ModelBuilder::dropout(const std::string& x, double probability) {
  require_floating("dropout", x);
  if (!(probability >= 0 && probability <= 1)) {
    fail("dropout: probability: got " + std::to_string(probability) + ", expected 0..1");
  }
  return call_one("dropout", "", {{"input", named(x)}, {"p", probability}, {"train", true}}, shape(x),
                  type(x).dtype);
}

std::string ModelBuilder::max_pool2d(const std::string& x, const MaxPool2dOptions& options) {
  const auto sides =
      windows("max_pool2d", x, options.kernel, options.stride, options.padding, options.ceil_mode);
  if (options.padding > options.kernel / 2) {
    fail("max_pool2d: padding: got " + std::to_string(options.padding) +
         ", expected at most half the window of " + std::to_string(options.kernel));
  }
  std::vector<std::pair<std::string, Argument>> arguments = {{"self", named(x)},
                                                             {"kernel_size", list(options.kernel)},
                                                             {"stride", list(options.stride)},
                                                             {"padding", list(options.padding)}};
  if (options.ceil_mode) arguments.emplace_back("ceil_mode", true);
  return call_one("max_pool2d", "", std::move(arguments), {shape(x)[0], shape(x)[1], sides[0], sides[1]},
                  type(x).dtype);
}

std::string ModelBuilder::avg_pool2d(const std::string& x, int64_t kernel, int64_t stride, int64_t padding) {
  const auto sides = windows("avg_pool2d", x, kernel, stride, padding);
  std::vector<std::pair<std::string, Argument>> arguments = {
      {"self", named(x)}, {"kernel_size", list(kernel)}, {"stride", list(stride)}};
  if (padding != 0) arguments.emplace_back("padding", list(padding));
  return call_one("avg_pool2d", "", std::move(arguments), {shape(x)[0], shape(x)[1], sides[0], sides[1]},
                  type(x).dtype);
}

std::string ModelBuilder::adaptive_avg_pool2d(const std::string& x, int64_t size) {
  require_rank("adaptive_avg_pool2d", x, 4, "(batch, channels, height, width)");
  require_floating("adaptive_avg_pool2d", x);
  require_positive("adaptive_avg_pool2d", "size", size);
  return call_one("adaptive_avg_pool2d", "", {{"self", named(x)}, {"output_size", list(size)}},
                  {shape(x)[0], shape(x)[1], size, size}, type(x).dtype);
}

std::string ModelBuilder::add(const std::string& x, const std::string& y) {
  std::vector<int64_t> a = shape(x);
  std::vector<int64_t> b = shape(y);
  const size_t rank = std::max(a.size(), b.size());
  a.insert(a.begin(), rank - a.size(), 1);
  b.insert(b.begin(), rank - b.size(), 1);
  std::vector<int64_t> out(rank);
  for (size_t i = 0; i < rank; ++i) {
    if (a[i] != b[i] && a[i] != 1 && b[i] != 1) {
      fail("add: shapes " + text(shape(x)) + " and " + text(shape(y)) + " do not fit together");
    }
    out[i] = a[i] == 1 ? b[i] : a[i];
  }
  return call_one("add", "Tensor", {{"self", named(x)}, {"other", named(y)}}, out, type(x).dtype);
}

std::string ModelBuilder::concatenate(const std::vector<std::string>& values, int64_t dim) {
  if (values.empty()) fail("cat: no values, expected at least one");
  std::vector<int64_t> out = shape(values[0]);
  if (dim < 0 || dim >= static_cast<int64_t>(out.size())) {
    fail("cat: dimension " + std::to_string(dim) + " is not one of shape " + text(out));
  }
  for (size_t i = 1; i < values.size(); ++i) {
    std::vector<int64_t> rest = shape(values[i]);
    const int64_t size = rest.size() == out.size() ? rest[dim] : 0;
    std::vector<int64_t> first = shape(values[0]);
    if (rest.size() == first.size()) rest[dim] = first[dim];
    if (rest != first) {
      fail("cat: shapes " + text(shape(values[0])) + " and " + text(shape(values[i])) +
           " do not fit together along dimension " + std::to_string(dim));
    }
    out[dim] += size;
  }
  return call_one("cat", "", {{"tensors", TensorsArgument{values}}, {"dim", dim}}, out,
                  type(values[0]).dtype);
}

std::string ModelBuilder::flatten(const std::string& x, int64_t start_dim) {
  const std::vector<int64_t> in = shape(x);
  if (start_dim < 0 || start_dim >= static_cast<int64_t>(in.size())) {
    fail("flatten: start_dim " + std::to_string(start_dim) + " is not a dimension of shape " + text(in));
  }
  std::vector<int64_t> out(in.begin(), in.begin() + start_dim + 1);
  for (size_t i = static_cast<size_t>(start_dim) + 1; i < in.size(); ++i) out.back() *= in[i];
  return call_one("flatten", "using_ints", {{"self", named(x)}, {"start_dim", start_dim}}, out,
                  type(x).dtype);
}

std::string ModelBuilder::reshape(const std::string& x, const std::vector<int64_t>& wanted) {
  std::vector<int64_t> out = wanted;
  int64_t known = 1;
  int64_t* open = nullptr;
  for (int64_t& size : out) {
    if (size == -1 && !open) {
      open = &size;
    } else {
      known *= size;
    }
  }
  const int64_t elements = type(x).elements();
  if (open && known > 0) *open = elements / known;
  if (TensorType{type(x).dtype, out}.elements() != elements) {
    fail("reshape: shape " + text(shape(x)) + " cannot become " + text(wanted));
  }
  return call_one("reshape", "", {{"self", named(x)}, {"shape", wanted}}, out, type(x).dtype);
}

std::string ModelBuilder::transpose(const std::string& x, int64_t dim0, int64_t dim1) {
  std::vector<int64_t> out = shape(x);
  const int64_t rank = static_cast<int64_t>(out.size());
  if (std::min(dim0, dim1) < 0 || std::max(dim0, dim1) >= rank) {
    fail("transpose: dimensions " + std::to_string(dim0) + " and " + std::to_string(dim1) +
         " are not both in shape " + text(out));
  }
  std::swap(out[static_cast<size_t>(dim0)], out[static_cast<size_t>(dim1)]);
  return call_one("transpose", "int", {{"self", named(x)}, {"dim0", dim0}, {"dim1", dim1}}, out,
                  type(x).dtype);
}

std::vector<std::string> ModelBuilder::split(const std::string& x, int64_t size, int64_t dim) {
  const std::vector<int64_t> in = shape(x);
  if (dim < 0 || dim >= static_cast<int64_t>(in.size()) || size < 1) {
    fail("split: parts of " + std::to_string(size) + " along dimension " + std::to_string(dim) +
         " do not fit shape " + text(in));
  }
  std::vector<TensorType> parts;
  for (int64_t rest = in [static_cast<size_t>(dim)]; rest > 0; rest -= size) {
    parts.push_back({type(x).dtype, in});
    parts.back().shape[static_cast<size_t>(dim)] = std::min(rest, size);
  }
  return call("split", "Tensor", {{"self", named(x)}, {"split_size", size}, {"dim", dim}}, parts);
}

std::string ModelBuilder::scaled_dot_product_attention(const std::string& query, const std::string& key,
                                                       const std::string& value, bool is_causal,
                                                       double dropout_p, const std::string& mask) {
  for (const std::string& x : {query, key, value}) {
    require_rank("scaled_dot_product_attention", x, 4, "(batch, heads, tokens, features)");
  }
  const std::vector<int64_t> q = shape(query), k = shape(key), v = shape(value);
  if (q[0] != k[0] || q[1] != k[1] || q[3] != k[3] || k[0] != v[0] || k[1] != v[1] || k[2] != v[2]) {
    fail("scaled_dot_product_attention: query " + text(q) + ", key " + text(k) + " and value " + text(v) +
         " do not fit together");
  }
  std::vector<int64_t> out = q;
  out[3] = shape(value)[3];
  std::vector<std::pair<std::string, Argument>> arguments = {
      {"query", named(query)}, {"key", named(key)}, {"value", named(value)}};
  if (!mask.empty()) arguments.emplace_back("attn_mask", named(mask));
  arguments.emplace_back("dropout_p", dropout_p);
  arguments.emplace_back("is_causal", is_causal);
  return call_one("scaled_dot_product_attention", "", std::move(arguments), out, type(query).dtype);
}

std::string ModelBuilder::cross_entropy_loss(const std::string& scores, const std::string& labels,
                                             double label_smoothing) {
  require_rank("cross_entropy_loss", scores, 2, "scores of shape (N, classes)");
  require_floating("cross_entropy_loss", scores);
  if (type(labels) != TensorType{"int64", {shape(scores)[0]}}) {
    fail("cross_entropy_loss: got labels " + type(labels).dtype + " " + text(shape(labels)) +
         ", expected int64 (" + std::to_string(shape(scores)[0]) + ")");
  }
  // The reduction, mean (1), and the label that asks nothing, -100, are the schema's defaults.
  std::vector<std::pair<std::string, Argument>> arguments = {{"self", named(scores)},
                                                             {"target", named(labels)}};
  if (label_smoothing != 0) arguments.emplace_back("label_smoothing", label_smoothing);
  return call_one("cross_entropy_loss", "", std::move(arguments), {}, type(scores).dtype);
}

Model ModelBuilder::finish(const std::string& loss, const std::string& scores) {
  if (!shape(loss).empty()) fail("the loss is of shape " + text(shape(loss)) + ", expected a scalar");
  model_.graph.outputs = {loss, scores};
  model_.graph.validate(model_.graph.name);
  return std::exchange(model_, {});
}

std::string ModelBuilder::classification_loss(const std::string& scores, double label_smoothing) {
  const std::vector<int64_t> in = shape(scores);
  if (in.size() < 2) fail("the scores are of shape " + text(in) + ", expected (batch, ..., classes)");
  std::string labels = input("labels", "int64", {in.begin() + 1, in.end() - 1});
  auto layer = this->layer("loss");
  std::string rows = scores;
  if (in.size() > 2) {
    rows = reshape(scores, {-1, in.back()});
    labels = reshape(labels, {-1});
  }
  return cross_entropy_loss(rows, labels, label_smoothing);
}

Model ModelBuilder::finish_classification(const std::string& scores, double label_smoothing) {
  return finish(classification_loss(scores, label_smoothing), scores);
}

}  // namespace pipewright
