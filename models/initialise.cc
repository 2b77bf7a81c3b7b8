#include "models/initialise.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/nearest.h"
#include "models/exported/pt2_archive.h"
#include "models/run/random_key.h"
#include "models/run/scalar_types.h"

namespace pipewright {
namespace {

/// Quantile of the normal distribution, 0 < p < 1: algorithm AS 241 (Wichura 1988), PPND7, relative error
/// about 1e-7. Its middle part is plain arithmetic, so that ranks on different machines agree on a model's
/// first weights.
double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179) /
           (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0);
  }
  double r = std::sqrt(-std::log(q < 0 ? p : 1.0 - p));
  double value;
  if (r <= 5.0) {
    r -= 1.6;
    value = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
            ((0.12021132975 * r + 0.73700164250) * r + 1.0);
  } else {
    r -= 5.0;
    value = (((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150) /
            ((0.012258202635 * r + 0.24197894225) * r + 1.0);
  }
  return q < 0 ? -value : value;
}

/// Element i is a function of (key, i) alone: any thread may make any part.
template <typename Element>
void fill(Element* out, int64_t count, uint64_t key, const Initialiser& initialiser) {
  constexpr int64_t kBlock = 4;  // numbers per step of the generator's counter
  at::parallel_for(0, (count + kBlock - 1) / kBlock, 1 << 14, [&](int64_t begin, int64_t end) {
    at::Philox4_32 generator(key, 0, static_cast<uint64_t>(begin));
    const bool normal = initialiser.kind == Initialiser::Kind::kNormal;
    for (int64_t i = begin * kBlock; i < std::min(end * kBlock, count); ++i) {
      const double unit = (generator() + 0.5) * 0x1p-32;  // in (0, 1), never 0 or 1
      out[i] = static_cast<Element>(normal ? initialiser.a + initialiser.b * normal_quantile(unit)
                                           : initialiser.a + (initialiser.b - initialiser.a) * unit);
    }
  });
}

at::Tensor initial(const std::string& name, const TensorType& type, const Initialiser& initialiser,
                   uint64_t seed) {
  const at::ScalarType dtype = scalar_type_of(type.dtype);
  if (initialiser.kind == Initialiser::Kind::kConstant)
    return at::full(type.shape, initialiser.a, at::TensorOptions().dtype(dtype));
  const uint64_t key = stream_key(seed, 0, name_hash(name));
  if (dtype == at::kDouble) {
    at::Tensor tensor = at::empty(type.shape, at::kDouble);
    fill(tensor.mutable_data_ptr<double>(), tensor.numel(), key, initialiser);
    return tensor;
  }
  at::Tensor tensor = at::empty(type.shape, at::kFloat);
  fill(tensor.mutable_data_ptr<float>(), tensor.numel(), key, initialiser);
  return tensor.to(dtype);
}

template <typename Item>
size_t position_of(const std::vector<Item>& items, const std::string& name, const char* what,
                   const Graph& graph) {
  std::vector<std::string> names;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].name == name) return i;
    names.push_back(items[i].name);
  }
  throw InputError("model '" + graph.name + "' has no " + what + " '" + name + "'" + suggestion(name, names));
}

}  // namespace

void demand_numbers(const at::Tensor& tensor, const std::string& where, const std::string& name,
                    bool infinities) {
  if (!at::isFloatingType(tensor.scalar_type()) || c10::isFloat8Type(tensor.scalar_type())) return;
  int64_t count = 0, first = -1;
  double value = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, tensor.scalar_type(), "demand_numbers", [&] {
    const auto* values = tensor.const_data_ptr<scalar_t>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const auto x = static_cast<double>(values[i]);
      if (std::isfinite(x) || (std::isinf(x) && !infinities)) continue;
      if (count++ == 0) first = i, value = x;
    }
  });
  if (count == 0) return;
  std::vector<std::string> index;
  for (int64_t i = tensor.dim(); i-- > 0; first /= tensor.size(i))
    index.insert(index.begin(), std::to_string(first % tensor.size(i)));
  throw InputError(
      where + ": tensor " + in_quotes(name) + " is " +
          (std::isnan(value) ? "nan"
           : value > 0       ? "inf"
                             : "-inf") +
          " at [" + join(index, ", ") + "]" +
          (count > 1 ? ", and so are " + std::to_string(count - 1) + " other elements" : ""),
      "The training that wrote it had diverged, or the file is damaged: take weights from before.");
}

at::Tensor initial_parameter(const Model& model, const std::string& name, uint64_t seed) {
  PW_CHECK_EQ(model.parameter_initialisers.size(), model.graph.parameters.size());
  const size_t i = position_of(model.graph.parameters, name, "parameter", model.graph);
  const Parameter& parameter = model.graph.parameters[i];
  const auto stored = model.stored.find(name);
  if (stored == model.stored.end())
    return initial(name, parameter.type, model.parameter_initialisers[i], seed);
  const at::Tensor value = model.archive->read(stored->second);
  demand_numbers(value, model.archive->path().string(), name, parameter.trainable);
  return value;
}

at::Tensor initial_buffer(const Model& model, const std::string& name) {
  PW_CHECK_EQ(model.buffer_initialisers.size(), model.graph.buffers.size());
  const size_t i = position_of(model.graph.buffers, name, "buffer", model.graph);
  const auto stored = model.stored.find(name);
  if (stored == model.stored.end())
    return initial(name, model.graph.buffers[i].type, model.buffer_initialisers[i], 0);
  const at::Tensor value = model.archive->read(stored->second);
  // Of the others some are constants of the program.
  if (stored->second.record.starts_with(kSavedRecords))
    demand_numbers(value, model.archive->path().string(), name, false);
  return value;
}

}  // namespace pipewright
