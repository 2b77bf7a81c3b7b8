#include "models/run/batch_rules.h"

#include <algorithm>
#include <map>
#include <set>

#include "models/run/batch_rule_kinds.h"

namespace pipewright {
namespace {

using Rule = std::function<BatchRelations(const BatchCall&)>;

Rule each(Linearity linearity) {
  return [linearity](const BatchCall& call) { return element_by_element(call, linearity); };
}
Rule over(Reduction reduction) {
  return [reduction](const BatchCall& call) { return reduces(call, reduction); };
}
Rule along_argument(const char* argument, std::vector<int64_t> otherwise) {
  return [=](const BatchCall& call) { return runs_along(call, argument, otherwise); };
}
Rule last(int64_t dimensions) {
  return [dimensions](const BatchCall& call) { return works_on_last(call, dimensions); };
}
Rule product(const char* a, const char* b) {
  return [=](const BatchCall& call) { return adds_product(call, a, b); };
}
Rule takes(bool drops) {
  return [drops](const BatchCall& call) { return takes_places(call, drops); };
}
// Over as many last dimensions as the list has elements.
Rule last_of(const char* list, int64_t divisor = 1) {
  return [=](const BatchCall& call) {
    const auto given = call.integers(list);
    if (!given) return mixes(std::string("has no ") + list);
    return works_on_last(call, static_cast<int64_t>(given->size()) / divisor);
  };
}

struct Row {
  Rule rule;
  std::vector<const char*> operators;  ///< behind "aten::"; with an overload it is for that one only
  bool takes_places = false;  ///< of samples (BatchRelation::kPlaces): what moves them, or looks up by them
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {each(Linearity::kNone), {"abs",
                                "acos",
                                "acosh",
                                "addcdiv",
                                "addcmul",
                                "asin",
                                "asinh",
                                "atan",
                                "atan2",
                                "atanh",
                                "bitwise_and",
                                "bitwise_not",
                                "bitwise_or",
                                "bitwise_xor",
                                "__and__",
                                "__or__",
                                "__xor__",
                                "ceil",
                                "celu",
                                "clamp",
                                "clamp_max",
                                "clamp_min",
                                "clip",
                                "cos",
                                "cosh",
                                "digamma",
                                "elu",
                                "eq",
                                "erf",
                                "erfc",
                                "exp",
                                "exp2",
                                "expm1",
                                "floor",
                                "floor_divide",
                                "fmod",
                                "frac",
                                "ge",
                                "gelu",
                                "gt",
                                "hardshrink",
                                "hardsigmoid",
                                "hardswish",
                                "hardtanh",
                                "hypot",
                                "isfinite",
                                "isinf",
                                "isnan",
                                "le",
                                "leaky_relu",
                                "lerp",
                                "lgamma",
                                "log",
                                "log10",
                                "log1p",
                                "log2",
                                "logaddexp",
                                "logical_and",
                                "logical_not",
                                "logical_or",
                                "logical_xor",
                                "logit",
                                "lt",
                                "masked_fill",
                                "max.other",
                                "maximum",
                                "min.other",
                                "minimum",
                                "mish",
                                "nan_to_num",
                                "ne",
                                "polar",
                                "pow",
                                "reciprocal",
                                "relu",
                                "relu6",
                                "remainder",
                                "round",
                                "rsqrt",
                                "selu",
                                "sgn",
                                "sigmoid",
                                "sign",
                                "silu",
                                "sin",
                                "sinc",
                                "sinh",
                                "softplus",
                                "softshrink",
                                "special_erf",
                                "special_log_ndtr",
                                "sqrt",
                                "square",
                                "tan",
                                "tanh",
                                "threshold",
                                "trunc",
                                "where",
                                "xlogy"}},
      {each(Linearity::kSelf),
       {"neg", "positive", "to", "_to_copy", "type_as", "clone", "contiguous", "alias", "detach",
        "lift_fresh_copy", "conj", "real", "imag"},
       true},
      {each(Linearity::kAdds), {"add", "sub", "rsub"}},
      {each(Linearity::kMultiplies), {"mul", "multiply"}},
      {each(Linearity::kDivides), {"div", "divide", "true_divide"}},
      // Random for every element: a part draws numbers of its own for its samples.
      {draws,
       {"rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli", "normal_",
        "uniform_", "exponential_", "bernoulli_", "random_"}},
      {each(Linearity::kNone), {"dropout", "native_dropout", "alpha_dropout", "rrelu"}},
      {works_on_samples, {"feature_dropout", "feature_alpha_dropout"}},
      {makes_of_shape,
       {"zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros",
        "new_ones", "new_full", "new_empty", "zero_", "scalar_tensor"}},
      {counts_up, {"arange"}},
      {looks_up_in_tables, {"bucketize", "isin", "prelu"}},

      {over(Reduction::kSum), {"sum"}},
      {over(Reduction::kMean), {"mean"}},
      {over(Reduction::kOther), {"all",          "amax",     "amin",        "any",
                                 "argmax",       "argmin",   "linalg_norm", "linalg_vector_norm",
                                 "logsumexp",    "max",      "median",      "min",
                                 "norm",         "prod",     "std",         "std_mean",
                                 "var",          "var_mean", "nansum",      "nanmean",
                                 "count_nonzero"}},
      {along_argument("dim", {}),
       {"softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax", "cumsum", "cumprod", "cummax",
        "cummin", "logcumsumexp"}},
      {along_argument("dim", {-1}), {"argsort", "sort", "topk", "glu", "diff"}},
      {along_argument("dims", {}), {"flip", "roll"}},
      {along_argument("dimension", {}), {"unfold"}},

      {last_of("normalized_shape"), {"layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"}},
      {last_of("pad", 2), {"pad", "constant_pad_nd"}},
      {last(1),
       {"avg_pool1d", "adaptive_avg_pool1d", "adaptive_max_pool1d", "max_pool1d", "upsample_linear1d",
        "upsample_nearest1d", "view_as_complex"}},
      {last(2),
       {"avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d", "max_pool2d",
        "max_pool2d_with_indices", "reflection_pad2d", "replication_pad2d", "tril", "triu",
        "upsample_bicubic2d", "upsample_bilinear2d", "upsample_nearest2d", "_upsample_bicubic2d_aa",
        "_upsample_bilinear2d_aa", "_upsample_nearest_exact2d", "linalg_inv", "linalg_det",
        "linalg_cholesky"}},
      {last(3),
       {"adaptive_avg_pool3d", "_adaptive_avg_pool3d", "adaptive_max_pool3d", "avg_pool3d", "channel_shuffle",
        "max_pool3d", "pixel_shuffle", "pixel_unshuffle", "upsample_nearest3d", "upsample_trilinear3d"}},
      {works_on_samples,
       {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
        "convolution", "_convolution", "group_norm", "native_group_norm", "im2col", "col2im", "grid_sampler",
        "affine_grid_generator"}},
      {normalises_batch, {"batch_norm", "native_batch_norm", "_native_batch_norm_legit"}},
      {normalises_instances, {"instance_norm"}},
      {recurs, {"lstm", "gru", "rnn_tanh", "rnn_relu"}},

      {product("self", "other"), {"matmul"}},
      {product("self", "mat2"), {"mm", "bmm"}},
      {product("input", "weight"), {"linear"}},
      {product("mat1", "mat2"), {"addmm"}},
      {product("batch1", "batch2"), {"baddbmm"}},
      {product("self", "vec"), {"mv"}},
      {sums_by_equation, {"einsum"}},
      {attends, {"scaled_dot_product_attention"}},

      {loss_of_elements,
       {"binary_cross_entropy", "binary_cross_entropy_with_logits", "hinge_embedding_loss", "huber_loss",
        "kl_div", "l1_loss", "mse_loss", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss"}},
      {loss_of_rows,
       {"cosine_embedding_loss", "margin_ranking_loss", "multi_margin_loss", "multilabel_margin_loss",
        "triplet_margin_loss"}},
      {loss_of_classes, {"cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d"}},

      {keeps_order,
       {"_unsafe_view", "atleast_1d", "flatten", "ravel", "reshape", "reshape_as", "squeeze", "unflatten",
        "unsqueeze", "view", "view_as", "_reshape_copy"},
       true},
      {permutes,
       {"permute", "transpose", "t", "numpy_T", "swapaxes", "swapdims", "movedim", "moveaxis"},
       true},
      {expands, {"expand", "expand_as", "broadcast_to", "copy_", "fill_"}, true},
      {broadcasts, {"broadcast_tensors"}},
      {repeats, {"repeat", "tile"}},
      {repeats_elements, {"repeat_interleave"}},
      {takes(true), {"select", "unbind"}},
      {takes(false), {"split", "split_with_sizes", "chunk", "tensor_split"}},
      {slices, {"slice", "narrow"}, true},
      {joins, {"cat", "concat"}},
      {stacks, {"stack"}},

      {embeds, {"embedding"}},
      {adds_dimension, {"one_hot", "view_as_real"}},
      {selects_indices, {"index_select"}},
      {indexes, {"index"}, true},
      {puts_indices, {"index_put"}, true},
      {gathers, {"gather", "take_along_dim", "scatter", "scatter_add", "scatter_reduce"}},
      {writes_slices, {"select_scatter", "slice_scatter", "index_add", "index_copy", "index_fill"}},
  };
  return table;
}

const Row* row_of(const Node& node) {
  static const std::map<std::string, const Row*> known = [] {
    std::map<std::string, const Row*> known_rows;
    for (const Row& row : rows())
      for (const char* name : row.operators) known_rows.emplace(name, &row);
    return known_rows;
  }();
  constexpr size_t kNamespace = 6;  // "aten::"
  if (!node.op.starts_with("aten::")) return nullptr;
  const std::string name = node.op.substr(kNamespace);
  std::vector<std::string> names = {name + "." + node.overload, name};
  // What is written in place is what the plain operator makes.
  if (name.ends_with("_")) {
    const std::string plain = name.substr(0, name.size() - 1);
    names.push_back(plain + "." + node.overload);
    names.push_back(plain);
  }
  for (const std::string& each : names)
    if (const auto found = known.find(each); found != known.end()) return found->second;
  return nullptr;
}

}  // namespace

const Argument* BatchCall::argument(const std::string& name) const {
  for (const auto& [key, value] : whole.arguments)
    if (key == name && !std::holds_alternative<NoneArgument>(value)) return &value;
  return nullptr;
}

std::optional<BatchOperand> BatchCall::operand(const std::string& name) const {
  const Argument* given = argument(name);
  const auto* tensor = given == nullptr ? nullptr : std::get_if<TensorArgument>(given);
  if (tensor == nullptr) return {};
  return operand_of(tensor->name);
}

std::vector<BatchOperand> BatchCall::operands(const std::string& name) const {
  const Argument* given = argument(name);
  const auto* tensors = given == nullptr ? nullptr : std::get_if<TensorsArgument>(given);
  std::vector<BatchOperand> found;
  if (tensors == nullptr) return found;
  for (const std::string& each : tensors->names)
    if (!each.empty()) found.push_back(operand_of(each));
  return found;
}

std::vector<BatchOperand> BatchCall::operands() const {
  std::vector<BatchOperand> found;
  for (const auto& [key, value] : whole.arguments) {
    if (const auto* one = std::get_if<TensorArgument>(&value)) found.push_back(operand_of(one->name));
    if (const auto* many = std::get_if<TensorsArgument>(&value))
      for (const std::string& each : many->names)
        if (!each.empty()) found.push_back(operand_of(each));
  }
  return found;
}

std::optional<int64_t> BatchCall::integer(const std::string& name) const {
  const Argument* given = argument(name);
  const auto* literal = given == nullptr ? nullptr : std::get_if<int64_t>(given);
  if (literal == nullptr) return {};
  return *literal;
}

std::optional<std::vector<int64_t>> BatchCall::integers(const std::string& name) const {
  if (const auto one = integer(name)) return std::vector<int64_t>{*one};
  const Argument* given = argument(name);
  const auto* literal = given == nullptr ? nullptr : std::get_if<std::vector<int64_t>>(given);
  if (literal == nullptr) return {};
  return *literal;
}

bool BatchCall::flag(const std::string& name, bool otherwise) const {
  const Argument* given = argument(name);
  const auto* literal = given == nullptr ? nullptr : std::get_if<bool>(given);
  return literal == nullptr ? otherwise : *literal;
}

std::string BatchCall::differing_literal() const {
  for (size_t i = 0; i < whole.arguments.size(); ++i) {
    if (i < part.arguments.size() && whole.arguments[i] == part.arguments[i]) continue;
    return whole.arguments[i].first;
  }
  return {};
}

std::optional<BatchRelation> relation_of_shapes(const std::vector<int64_t>& whole,
                                                const std::vector<int64_t>& part, int64_t samples,
                                                int64_t part_samples) {
  if (whole.size() != part.size()) return {};
  std::optional<BatchRelation> found = BatchRelation::whole();
  for (size_t d = 0; d < whole.size(); ++d) {
    if (whole[d] == part[d]) continue;
    if (found->has_rows() || whole[d] % samples != 0 || part[d] != whole[d] / samples * part_samples)
      return {};
    // Which of the places are a sample's is not to be seen when there are several; a rule knows.
    found = BatchRelation::rows(static_cast<int64_t>(d), 1, whole[d] / samples);
  }
  return found;
}

bool reads_shapes_only(const Node& node) {
  static const std::set<std::string> names = {
      "aten::zeros_like", "aten::ones_like",    "aten::empty_like", "aten::new_zeros", "aten::new_ones",
      "aten::new_empty",  "aten::zero_",        "aten::full_like",  "aten::new_full",  "aten::rand_like",
      "aten::randn_like", "aten::randint_like", "aten::normal_",    "aten::uniform_",  "aten::exponential_"};
  return names.count(node.op) > 0;
}

std::vector<BatchRelation> relations_of(const BatchCall& call) {
  const Row* const row = row_of(call.whole);
  if (row == nullptr) return mixes("is not known to keep samples apart");
  if (!row->takes_places)
    for (const BatchOperand& each : call.operands())
      if (each.relation.is(BatchRelation::Kind::kPlaces))
        return mixes("computes with the places of samples in a minibatch");
  return row->rule(call);
}

}  // namespace pipewright
