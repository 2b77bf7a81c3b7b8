// How many of a model's layers are frozen, from the front: the rules of --adapt freeze. No tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/spec.h"

namespace pipewright {

/// What a rule sees where it is asked: at the end of each epoch, or of every so many minibatches.
struct FreezeNow {
  int64_t intervals = 0;  ///< that are trained: 1 the first time
  int64_t layers = 0;     ///< of the model (graph/model_layers.h)
  int64_t frozen = 0;
  /// By layer: the norms of its gradient (before clipping), summed over the updates of the interval. 0 of
  /// what is frozen.
  std::vector<double> norms;
  std::vector<double> norms_before;  ///< of the interval before; empty: not known
};

class FreezeRule {
 public:
  virtual ~FreezeRule() = default;
  virtual bool reads_norms() const { return false; }
  /// Layers that are frozen from now on: at least now.frozen, at most now.layers.
  virtual int64_t frozen_after(const FreezeNow& now) const = 0;
};

/// The schedule of PipeTransformer (He et al. 2021) as its code has it: ceil(L (1 - (1 - alpha)^T)) layers
/// after T intervals, so that each freezes a share alpha of those that are left.
int64_t layers_frozen_by_alpha(int64_t layers, double alpha, int64_t intervals);

struct FreezeRuleRow {
  const char* name;
  std::unique_ptr<FreezeRule> (*make)(SpecOptions& options);
  const char* summary;
};
/// "alpha", "gradient", "bounded", "none". `manual` is no rule: its layers are known beforehand.
const std::vector<FreezeRuleRow>& freeze_rules();

}  // namespace pipewright
