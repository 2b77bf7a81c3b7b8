// Why a run took longer than its plan said: one line, from what the ranks counted.
#pragma once

#include <string>

#include "graph/plan.h"
#include "graph/summary.h"

namespace pipewright {

/// A run that takes more than this times as long as predicted is told why.
constexpr double kSlow = 1.2;

/// "15 times slower than predicted; likely: rank 3 got 0.12 of a core, 16 ranks share 2 cores"; "" for a run
/// that was not slow, whose plan predicts nothing, or of several plans (plan_verdicts.h). The cause is the
/// greatest part of what the busiest rank (it sets the pace) took beyond the plan: a core that others had,
/// samples that came late, more CPU time than the profile says, time between actions, waiting for replicas,
/// waiting for messages. Of waiting only so much counts as the plan has not, and as cannot be outside the
/// steady state, by which the run is slow. No cause is named that explains less than a fifth of it: then the
/// line says that none of them does. A GPU's rank is not asked for its CPU.
std::string slowness_text(const Summary& summary, const Plan& plan);

/// Of a slow run slowness_text(), of another prediction_text() (runtime/journal/predicted_times.h).
std::string how_true_text(const Summary& summary, const Plan& plan);

/// "16 ranks of 2 threads on 2 cores ..." where ranks on one host need more cores than it has; else "". Says
/// whether the plan knows.
std::string crowding_text(int64_t ranks, int64_t threads, int64_t cores, const Plan& plan);

}  // namespace pipewright
