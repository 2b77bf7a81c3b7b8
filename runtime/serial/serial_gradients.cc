#include "runtime/serial/serial_gradients.h"

#include <algorithm>
#include <cmath>

#include "runtime/update/gradient_norm.h"

namespace pipewright {
namespace {

// A tied parameter counts once, at its first stage.
double square_sum_of(const SerialStage& stage, size_t s, const std::vector<TiedParameter>& tied_parameters) {
  Tensors counted;
  for (size_t i = 0; i < stage.trainable.size(); ++i) {
    const bool elsewhere =
        std::any_of(tied_parameters.begin(), tied_parameters.end(), [&](const TiedParameter& tied) {
          return tied.name == stage.trainable_name(i) && tied.stages.front() < static_cast<int64_t>(s);
        });
    if (!elsewhere) counted.push_back(stage.gradient[i]);
  }
  return square_sum(counted);
}

}  // namespace

void add_tied_gradients(std::vector<SerialStage>& stages, const std::vector<size_t>& ended,
                        const std::vector<TiedParameter>& tied_parameters) {
  for (const TiedParameter& tied : tied_parameters) {
    at::Tensor sum;
    for (const bool summing : {true, false}) {
      for (const size_t s : ended) {
        for (size_t i = 0; i < stages[s].trainable.size(); ++i) {
          if (stages[s].trainable_name(i) != tied.name) continue;
          at::Tensor& own = stages[s].gradient[i];
          if (summing) sum = sum.defined() ? sum + own : own;
          if (!summing) own = sum.clone();
        }
      }
    }
  }
}

std::optional<double> clip_gradients(std::vector<SerialStage>& stages, const std::vector<size_t>& ended,
                                     const Plan& plan, double largest_norm) {
  std::vector<double> sums;
  double of_model = 0;
  for (const size_t s : ended) {
    sums.push_back(square_sum_of(stages[s], s, plan.tied_parameters));
    of_model += sums.back();
  }
  std::optional<double> norm_of_last;
  const bool over_model = plan.weights == "flush" || !plan.tied_parameters.empty();
  for (size_t e = 0; e < ended.size(); ++e) {
    const double sum = over_model ? of_model : sums[e];
    if (ended[e] + 1 == stages.size()) norm_of_last = std::sqrt(sum);
    scale(stages[ended[e]].gradient, clipping_factor(sum, largest_norm));
  }
  return norm_of_last;
}

}  // namespace pipewright
