#include "runtime/train/data_fault.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "models/definition/scoring.h"

namespace pipewright {
namespace {

// The first row that holds a number that is not finite; -1: none does.
int64_t first_broken_row(const at::Tensor& field, std::string& number) {
  const at::Tensor rows = field.reshape({field.size(0), -1}).to(at::kDouble);
  const at::Tensor broken = rows.isfinite().logical_not();
  const at::Tensor any = broken.any(1);
  if (!any.any().item<bool>()) return -1;
  const int64_t row = any.to(at::kLong).argmax().item<int64_t>();
  const double value = rows[row].masked_select(broken[row])[0].item<double>();
  number = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  return row;
}

std::string fault_in(int64_t k, const LoadRequest& request, const Graph& graph, const Dataset& dataset) {
  const auto scoring = scoring_of(graph);
  for (size_t i = 0; i < dataset.fields().size(); ++i) {
    const DataField& field = dataset.fields()[i];
    const auto& inputs = graph.inputs;
    if (std::find(inputs.begin(), inputs.end(), field.name) == inputs.end()) continue;
    const at::Tensor values =
        Loader(dataset, {i}, std::vector<LoadRequest>{request}, {.count = 0}, /*ahead=*/0).next()[0];
    if (values.numel() == 0) continue;
    if (values.is_floating_point()) {
      std::string number;
      const int64_t row = first_broken_row(values, number);
      if (row < 0) continue;
      return "field '" + field.name + "' of sample " +
             std::to_string(request.indices[static_cast<size_t>(row)]) + " of the data, number " +
             std::to_string(row) + " of minibatch " + std::to_string(k) + ", holds " + number;
    }
    if (scoring && scoring->is_mean && field.name == scoring->labels &&
        values.eq(scoring->ignored).all().item<bool>()) {
      return "all " + field.name + " of minibatch " + std::to_string(k) + " are " +
             std::to_string(scoring->ignored) + ", which ask nothing: its loss is the mean of none";
    }
  }
  return "";
}

}  // namespace

std::string data_fault(const NotFiniteError& error, const Graph& graph, const Dataset& dataset,
                       const std::function<LoadRequest(int64_t k)>& request) {
  const at::NoGradGuard no_grad;
  try {
    for (int64_t k = error.first_minibatch(); k <= error.last_minibatch(); ++k) {
      if (auto fault = fault_in(k, request(k), graph, dataset); !fault.empty()) return fault;
    }
  } catch (const Error&) {
    // What cannot be read again cannot be blamed.
  }
  return "";
}

void throw_with_cause(const NotFiniteError& error, const std::string& data_fault) {
  if (data_fault.empty()) throw error;
  throw NotFiniteError(
      std::string(error.what()) + ": " + data_fault,
      "The data is the cause, not the learning rate: mend or leave out what is named, and make the "
      "data set again.",
      error.first_minibatch(), error.last_minibatch());
}

}  // namespace pipewright
