#include "models/run/allowed_operators.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <set>

namespace pipewright {
namespace {

constexpr const char* kNotDense = "its tensors are sparse, nested, quantized or of a library's own layout";
constexpr const char* kMemory = "it changes which memory a tensor has";
constexpr const char* kTrusting = "it does not check what it is given and may reach memory of others";

struct Refusal {
  const char* name;  ///< behind "aten::"; ends with '*': all that begin so
  const char* why;
};

constexpr Refusal kRefusals[] = {
    {"from_file", "it reads and writes files"},
    {"set", kMemory},
    {"set_", kMemory},
    {"resize*", kMemory},
    {"as_strided_", kMemory},
    {"slice_inverse", kMemory},
    {"requires_grad_", "it changes what is trained"},
    {"sparse_*", kNotDense},
    {"to_sparse*", kNotDense},
    {"copy_sparse*", kNotDense},
    {"to_mkldnn*", kNotDense},
    {"mkldnn_*", kNotDense},
    {"quantize*", kNotDense},
    {"empty_quantized", kNotDense},
    {"dequantize", kNotDense},
    {"int_repr", kNotDense},
    {"q_*", kNotDense},
    {"choose_qparams*", kNotDense},
    {"fbgemm_*", kNotDense},
    {"nested_*", kNotDense},
    {"smm", kNotDense},
    {"sspaddmm", kNotDense},
    {"hspmm", kNotDense},
    {"cudnn_*", kTrusting},
    {"miopen_*", kTrusting},
    {"batch_norm_*", kTrusting},        // on their own: sizes of statistics
    {"native_batch_norm*", kTrusting},  // sizes of weights; batch_norm compares them
    {"native_norm", kTrusting},
    {"slow_*", kTrusting},  // lengths of strides
    {"thnn_*", kTrusting},
    {"segment_reduce", kTrusting},    // offsets, and lengths if told to
    {"lu_unpack", kTrusting},         // pivots
    {"linalg_ldl_solve", kTrusting},  // pivots
    {"lstm.data", kTrusting},         // sizes of batches
    {"gru.data", kTrusting},
    {"rnn_tanh.data", kTrusting},
    {"rnn_relu.data", kTrusting},
    {"range", "it divides by zero for some steps; arange does not"},
};

/// PyTorch's own that programs call, by a function of Python or by the rewriting of one.
const std::set<std::string>& known_private() {
  static const std::set<std::string> names = {"_adaptive_avg_pool2d",
                                              "_adaptive_avg_pool3d",
                                              "_add_relu",
                                              "_aminmax",
                                              "_cast_Byte",
                                              "_cast_Char",
                                              "_cast_Double",
                                              "_cast_Float",
                                              "_cast_Half",
                                              "_cast_Int",
                                              "_cast_Long",
                                              "_cast_Short",
                                              "_cdist_forward",
                                              "_conj",
                                              "_conj_physical",
                                              "_convolution",
                                              "_dim_arange",
                                              "_euclidean_dist",
                                              "_fused_rms_norm",
                                              "_grouped_mm",
                                              "_int_mm",
                                              "_is_all_true",
                                              "_is_any_true",
                                              "_linalg_det",
                                              "_linalg_eigh",
                                              "_linalg_slogdet",
                                              "_linalg_solve_ex",
                                              "_linalg_svd",
                                              "_log_softmax",
                                              "_logcumsumexp",
                                              "_neg_view",
                                              "_pad_circular",
                                              "_pad_enum",
                                              "_prelu_kernel",
                                              "_reshape_copy",
                                              "_safe_softmax",
                                              "_shape_as_tensor",
                                              "_softmax",
                                              "_standard_gamma",
                                              "_to_copy",
                                              "_trilinear",
                                              "_unique2",
                                              "_upsample_bicubic2d_aa",
                                              "_upsample_bilinear2d_aa",
                                              "_upsample_nearest_exact1d",
                                              "_upsample_nearest_exact2d",
                                              "_upsample_nearest_exact3d",
                                              "_weight_norm"};
  return names;
}

/// Arguments whose text is one of a few words, or an equation, and nothing else.
bool is_choice(const std::string& argument) {
  static const std::set<std::string> names = {
      "UPLO", "approximate", "driver",  "equation",     "indexing", "interpolation", "mode", "norm", "ord",
      "p",    "pad_mode",    "padding", "padding_side", "reduce",   "rounding_mode", "side"};
  return names.count(argument) != 0;
}

/// Is the type made of tensors and numbers? A dtype, layout, memory format and device are numbers here.
bool is_plain(const c10::Type& type, const std::string& argument) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      return is_plain(*type.castRaw<c10::OptionalType>()->getElementType(), argument);
    case c10::TypeKind::ListType:
      return is_plain(*type.castRaw<c10::ListType>()->getElementType(), argument);
    case c10::TypeKind::TensorType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
    case c10::TypeKind::DeviceObjType:
    case c10::TypeKind::GeneratorType:  // optional, and no program can give one
      return true;
    case c10::TypeKind::StringType:
      return is_choice(argument);
    default:
      return false;
  }
}

bool is_named(const std::string& name, const std::string& overload, const std::string& pattern) {
  if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
  return pattern == name || pattern == name + "." + overload;
}

}  // namespace

std::string why_not_allowed(const c10::FunctionSchema& schema) {
  const std::string space = "aten::";
  if (!schema.name().starts_with(space)) return "only those of aten:: may";
  const std::string name = schema.name().substr(space.size());
  for (const Refusal& refusal : kRefusals) {
    if (is_named(name, schema.overload_name(), refusal.name)) return refusal.why;
  }
  if (name.find("unsafe") != std::string::npos) return kTrusting;
  if (name.find("_backward") != std::string::npos)
    return "it is a backward, which trusts what its forward has kept";
  // "__and__" and the like are Python's operators.
  if (name.starts_with('_') && !name.starts_with("__") && known_private().count(name) == 0)
    return "PyTorch keeps it to itself, and it may trust what it is given";
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (!is_plain(*argument.type(), argument.name()))
      return "its argument '" + argument.name() + "' (" + argument.type()->str() +
             ") is no tensor, number or choice";
    const bool statistic = argument.name() == "running_mean" || argument.name() == "running_var";
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (written && !statistic && (i != 0 || argument.name() != "self"))
      return "it writes into its argument '" + argument.name() + "'";
  }
  return "";
}

}  // namespace pipewright
