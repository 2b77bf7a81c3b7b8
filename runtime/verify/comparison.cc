#include "runtime/verify/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "graph/error.h"

namespace pipewright {
namespace {

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

double square_norm(const at::Tensor& tensor) { return tensor.to(at::kDouble).square().sum().item<double>(); }

// Norms of what is compared, over one parameter or several.
struct Sums {
  double difference = 0;  // squares
  double movement = 0;
  int64_t elements = 0;

  double relative(double floor) const {
    const double by = std::max(std::sqrt(movement), floor * std::sqrt(static_cast<double>(elements)));
    if (difference == 0) return 0;
    const double ratio = std::sqrt(difference) / by;
    return std::isfinite(ratio) ? ratio : std::numeric_limits<double>::infinity();
  }
};

}  // namespace

ExactComparison compare_exactly(const TrainedModel& got, const TrainedModel& expected,
                                const std::vector<StageTensor>& places) {
  ExactComparison comparison;
  PW_CHECK_EQ(got.losses.size(), expected.losses.size());
  for (size_t k = 0; k < got.losses.size() && !comparison.first_loss; ++k) {
    if (!same(got.losses[k], expected.losses[k]))
      comparison.first_loss = {k, got.losses[k], expected.losses[k]};
  }
  for (const StageTensor& place : places) {
    const at::Tensor here = got.tensors.at(place.name).detach().contiguous();
    const at::Tensor there = expected.tensors.at(place.name).detach().contiguous();
    PW_CHECK(here.sizes() == there.sizes() && here.scalar_type() == there.scalar_type(), place.name);
    if (std::memcmp(here.data_ptr(), there.data_ptr(), here.nbytes()) == 0) continue;
    const at::Tensor a = here.flatten().to(at::kDouble);
    const at::Tensor b = there.flatten().to(at::kDouble);
    for (int64_t i = 0; i < a.numel(); ++i) {
      const double value = a.data_ptr<double>()[i];
      const double wanted = b.data_ptr<double>()[i];
      if (same(value, wanted)) continue;
      comparison.different.push_back(place);
      if (!comparison.first_element) {
        std::vector<int64_t> index(static_cast<size_t>(here.dim()));
        int64_t rest = i;
        for (size_t d = index.size(); d-- > 0; rest /= here.size(static_cast<int64_t>(d)))
          index[d] = rest % here.size(static_cast<int64_t>(d));
        comparison.first_element = {place, std::move(index), value, wanted};
      }
      break;
    }
  }
  return comparison;
}

const RelativeComparison::Parameter* RelativeComparison::largest() const {
  const auto place =
      std::max_element(parameters.begin(), parameters.end(),
                       [](const Parameter& a, const Parameter& b) { return a.difference < b.difference; });
  return place == parameters.end() ? nullptr : &*place;
}

RelativeComparison compare_relatively(const TrainedModel& got, const TrainedModel& expected,
                                      const std::map<std::string, at::Tensor>& start,
                                      const std::vector<StageTensor>& places) {
  RelativeComparison comparison;
  PW_CHECK_EQ(got.losses.size(), expected.losses.size());
  for (size_t k = 0; k < got.losses.size(); ++k) {
    if (same(got.losses[k], expected.losses[k])) continue;
    const double ratio = std::abs(got.losses[k] - expected.losses[k]) / std::abs(expected.losses[k]);
    comparison.loss =
        std::max(comparison.loss, std::isfinite(ratio) ? ratio : std::numeric_limits<double>::infinity());
  }
  std::vector<Sums> sums;
  Sums model;
  for (const StageTensor& place : places) {
    if (!place.trainable) continue;
    const at::Tensor wanted = expected.tensors.at(place.name).detach().to(at::kDouble);
    const Sums own{square_norm(got.tensors.at(place.name).detach().to(at::kDouble) - wanted),
                   square_norm(wanted - start.at(place.name).detach().to(at::kDouble)), wanted.numel()};
    model.difference += own.difference;
    model.movement += own.movement;
    model.elements += own.elements;
    sums.push_back(own);
    comparison.parameters.push_back({place, own.elements, 0});
  }
  if (model.elements == 0) return comparison;
  const double floor = 1e-3 * std::sqrt(model.movement / static_cast<double>(model.elements));
  for (size_t i = 0; i < sums.size(); ++i) comparison.parameters[i].difference = sums[i].relative(floor);
  comparison.model = model.relative(0);
  return comparison;
}

}  // namespace pipewright
