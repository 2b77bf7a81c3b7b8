// How slow ranks are by the forest, from what the hosts say of their cores: `decide=predict` of the policy
// `interference`.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "graph/profile.h"
#include "interference/predictor.h"
#include "runtime/job/adapt.h"

namespace pipewright {

/// Fed with each RunNow in turn. A rank's slowdown is what the forest makes of its last samples: it moves
/// when kAgree of them in a row say that it is kStep times another or more, to their median, so that a step
/// is one step. What lies outside the range of the training data says nothing: while most of a rank's last
/// samples do, or there are none, the slowdown that was measured counts for it, and standard error has why,
/// once for a rank. A rank whose stage has changed begins with new samples, as slow as it was.
class PredictedSpeeds {
 public:
  static constexpr size_t kAgree = 5;
  static constexpr double kStep = 1.25;

  /// `profile`: of the run's model: what the work of a stage is like. InputError: the forest reads features
  /// that no rank measures.
  PredictedSpeeds(Predictor predictor, const Profile& profile);

  /// By rank, 1: quiet.
  std::vector<double> slowdowns(const RunNow& now);

 private:
  struct Rank {
    std::vector<std::string> nodes;             // of its stages under the plan in force
    double bytes_per_second = 0;                // work_bytes_per_second() of them
    std::deque<std::optional<double>> samples;  // the last kAgree; nothing: outside the range
    double slowdown = 1;
    bool is_bound = true;  // to a core of its own, or to a GPU
    bool has_warned = false;
  };

  void take(size_t number, const CoreSample& sample);
  void warn(size_t number, const std::string& what);
  void follow_plan(const Plan& plan, size_t ranks);
  static void settle(Rank* rank);
  static bool knows(const Rank& rank);

  const Predictor predictor_;
  const Profile& profile_;
  std::vector<size_t> order_;  // of the forest's features: which of core_features()
  std::vector<Rank> ranks_;
};

}  // namespace pipewright
