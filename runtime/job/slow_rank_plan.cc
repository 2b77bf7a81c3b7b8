#include "runtime/job/slow_rank_plan.h"

#include <cstdio>

#include "graph/document.h"
#include "graph/limits.h"

namespace pipewright {

std::optional<PlanDecision> SlowRankPlan::decide(const RunNow& now) {
  if (!slow_) slow_ = document_digest(now.plan) == document_digest(plan_);
  size_t slowest = 0;
  double slowdown = 0;
  for (size_t rank = 0; rank < now.speeds.size(); ++rank) {
    if (rank_ && static_cast<int64_t>(rank) != *rank_) continue;
    if (now.speeds[rank].slowdown <= slowdown) continue;
    slowest = rank;
    slowdown = now.speeds[rank].slowdown;
  }
  const bool slow = slowdown >= factor_;
  if (slow == *slow_) return std::nullopt;
  slow_ = slow;
  if (!slow) return PlanDecision{"the first plan", now.first_plan, "slow: no rank is any more"};
  char reason[96];
  std::snprintf(reason, sizeof reason, "slow: rank %zu computes %.2g times as long as when quiet", slowest,
                slowdown);
  return PlanDecision{file_, plan_, reason};
}

std::unique_ptr<AdaptPolicy> slow_rank_plan(SpecOptions& options) {
  const std::string file = options.string("plan", "");
  const double factor = options.number("factor", 1.5, LevelMonitor::kQuiet, 1000);
  std::optional<int64_t> rank;
  if (options.has("rank")) rank = options.integer("rank", 0, 0, kMostCount);
  options.finish();
  if (file.empty()) options.fail("plan", "missing", "give --adapt slow:plan=PLAN.json");
  return std::make_unique<SlowRankPlan>(file, read_document<Plan>(file), rank, factor);
}

}  // namespace pipewright
