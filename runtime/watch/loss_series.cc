#include "runtime/watch/loss_series.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pipewright {

void LossSeries::add(int64_t minibatch, double loss) {
  if (first_ < 0 || minibatch < first_) {
    first_ = minibatch;
    each_ = 1;
    stretches_.clear();
  }
  auto at = static_cast<size_t>((minibatch - first_) / each_);
  while (at >= kMostStretches) {
    for (size_t i = 0; 2 * i < stretches_.size(); ++i) {
      Stretch both = stretches_[2 * i];
      if (2 * i + 1 < stretches_.size()) {
        both.sum += stretches_[2 * i + 1].sum;
        both.losses += stretches_[2 * i + 1].losses;
      }
      stretches_[i] = both;
    }
    stretches_.resize((stretches_.size() + 1) / 2);
    each_ *= 2;
    at /= 2;
  }
  stretches_.resize(at + 1);
  if (!std::isfinite(loss)) return;
  stretches_[at].sum += loss;
  ++stretches_[at].losses;
}

std::vector<double> LossSeries::points(size_t most) const {
  std::vector<double> points(std::min(most, stretches_.size()));
  for (size_t i = 0; i < points.size(); ++i) {
    Stretch all;
    for (size_t s = stretches_.size() * i / points.size(); s < stretches_.size() * (i + 1) / points.size();
         ++s) {
      all.sum += stretches_[s].sum;
      all.losses += stretches_[s].losses;
    }
    points[i] =
        all.losses > 0 ? all.sum / static_cast<double>(all.losses) : std::numeric_limits<double>::quiet_NaN();
  }
  return points;
}

}  // namespace pipewright
