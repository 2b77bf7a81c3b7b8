#include "runtime/generation/judged.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>

namespace pipewright {
namespace {

// Targets with fewer than `count` scores before theirs: larger ones, and equal ones of smaller classes. So
// the first is what argmax takes. A score that is no number is before nothing.
int64_t targets_among(int64_t count, const at::Tensor& rows, const at::Tensor& targets) {
  const at::Tensor classes = at::arange(rows.size(1), targets.options());
  const at::Tensor target = targets.unsqueeze(1);
  const at::Tensor own = rows.gather(1, target);
  const at::Tensor before = rows.gt(own).logical_or(rows.eq(own).logical_and(classes.lt(target))).sum(1);
  return before.lt(count).logical_and(own.eq(own).squeeze(1)).sum().item<int64_t>();
}

}  // namespace

void judge(const Scoring& scoring, const ScoredTargets& of, EvaluatedMinibatch& minibatch) {
  at::Tensor targets = of.targets.flatten().to(at::kLong);
  const at::Tensor asks = targets.ne(scoring.ignored);
  const int64_t count = asks.sum().item<int64_t>();
  const bool all = count == targets.numel();
  if (!all) targets = targets.masked_select(asks);
  at::Tensor rows = of.scores.dim() == 1 ? of.scores.unsqueeze(0) : of.scores.movedim(1, -1);
  rows = rows.reshape({-1, scoring.classes});
  if (!all) rows = rows.index({asks});
  minibatch.scored = count;
  minibatch.correct = rows.argmax(-1).eq(targets).sum().item<int64_t>();
  if (scoring.classes > 5) minibatch.among_five = targets_among(5, rows, targets);
  if (scoring.is_text) {
    minibatch.surprise =
        at::cross_entropy_loss(rows.to(at::kFloat), targets, {}, at::Reduction::Sum).item<double>();
  }
}

}  // namespace pipewright
