#include "runtime/job/freeze_rules.h"

#include <algorithm>
#include <cmath>

namespace pipewright {
namespace {

constexpr double kUsualAlpha = 1.0 / 3;

double alpha_of(SpecOptions& options) { return options.number("alpha", kUsualAlpha, 0, 1); }

class ByAlpha : public FreezeRule {
 public:
  explicit ByAlpha(double alpha) : alpha_(alpha) {}
  int64_t frozen_after(const FreezeNow& now) const override {
    return std::max(now.frozen, layers_frozen_by_alpha(now.layers, alpha_, now.intervals));
  }

 private:
  const double alpha_;
};

// AutoFreeze (Liu et al. 2021): layers whose gradient changes little from interval to interval have settled.
// Of those that are trained, the ones in front of the first whose change lies above the percentile.
class ByGradientChange : public FreezeRule {
 public:
  explicit ByGradientChange(double percentile) : percentile_(percentile) {}
  bool reads_norms() const override { return true; }
  int64_t frozen_after(const FreezeNow& now) const override {
    if (now.norms_before.empty() || now.frozen == now.layers) return now.frozen;
    std::vector<double> changes;
    for (size_t l = static_cast<size_t>(now.frozen); l < now.norms.size(); ++l) {
      const double before = now.norms_before[l];
      changes.push_back(before > 0 ? std::abs(before - now.norms[l]) / before : 0);
    }
    std::vector<double> sorted = changes;
    std::sort(sorted.begin(), sorted.end());
    const auto rank = static_cast<size_t>(percentile_ / 100 * static_cast<double>(sorted.size() - 1));
    const double most = sorted[rank];
    int64_t frozen = now.frozen;
    for (const double change : changes) {
      if (change > most) break;
      ++frozen;
    }
    return frozen;
  }

 private:
  const double percentile_;
};

// PipeTransformer's rule as published: from the second interval on as many as by alpha, but none behind the
// layer whose gradient is the smallest.
class BoundedByGradient : public FreezeRule {
 public:
  explicit BoundedByGradient(double alpha) : alpha_(alpha) {}
  bool reads_norms() const override { return true; }
  int64_t frozen_after(const FreezeNow& now) const override {
    if (now.intervals < 2 || now.frozen == now.layers) return now.frozen;
    const auto left = static_cast<double>(now.layers - now.frozen);
    const int64_t most = now.frozen + static_cast<int64_t>(std::ceil(alpha_ * left - 1e-9));
    const auto smallest = std::min_element(now.norms.begin() + now.frozen, now.norms.end());
    return std::min(most, static_cast<int64_t>(smallest - now.norms.begin()) + 1);
  }

 private:
  const double alpha_;
};

class Never : public FreezeRule {
 public:
  int64_t frozen_after(const FreezeNow& now) const override { return now.frozen; }
};

}  // namespace

int64_t layers_frozen_by_alpha(int64_t layers, double alpha, int64_t intervals) {
  const double share = 1 - std::pow(1 - alpha, static_cast<double>(intervals));
  // What rounding adds to a whole number is no further layer.
  return std::min(layers, static_cast<int64_t>(std::ceil(static_cast<double>(layers) * share - 1e-9)));
}

const std::vector<FreezeRuleRow>& freeze_rules() {
  static const std::vector<FreezeRuleRow> rows = {
      {"alpha",
       [](SpecOptions& options) -> std::unique_ptr<FreezeRule> {
         return std::make_unique<ByAlpha>(alpha_of(options));
       },
       "a share alpha of the layers that are left"},
      {"gradient",
       [](SpecOptions& options) -> std::unique_ptr<FreezeRule> {
         return std::make_unique<ByGradientChange>(options.number("percentile", 50, 0, 100));
       },
       "layers whose gradient changes less than the percentile"},
      {"bounded",
       [](SpecOptions& options) -> std::unique_ptr<FreezeRule> {
         return std::make_unique<BoundedByGradient>(alpha_of(options));
       },
       "as alpha, but none behind the layer with the smallest gradient"},
      {"none", [](SpecOptions&) -> std::unique_ptr<FreezeRule> { return std::make_unique<Never>(); },
       "nothing"},
  };
  return rows;
}

}  // namespace pipewright
