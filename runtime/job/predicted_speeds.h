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
#include "optimizer/plan/slowdowns.h"
#include "runtime/job/adapt.h"

namespace pipewright {

/// Fed with each RunNow in turn. A rank's slowdown is what the forest makes of its last samples: it moves
/// when kAgree of them in a row say that it is kStep times another or more, to their median, so that a step
/// is one step. What lies outside the range of the training data says nothing: while most of a rank's last
/// samples do, or there are none, the slowdown that was measured counts for it, and standard error has why,
/// once for a rank. A rank whose stage has changed begins with new samples, as slow as it was.
///
/// The forest knows how slow other parts of the model would be on a core that is taken so: those of kParts
/// stretches, as the training data has them. Where they differ by kUneven or more, Slowdowns has the nodes.
class PredictedSpeeds {
 public:
  static constexpr size_t kAgree = 5;
  static constexpr double kStep = 1.25;
  static constexpr int64_t kParts = 4;
  static constexpr double kUneven = 1.1;

  /// `profile`: of the run's model: what the work of a stage is like. InputError: the forest reads features
  /// that no rank measures.
  PredictedSpeeds(Predictor predictor, const Profile& profile);

  Slowdowns slowdowns(const RunNow& now);

 private:
  struct Sample {
    std::vector<double> features;    // of the core
    std::optional<double> slowdown;  // of the rank's stages; nothing: outside the range
  };
  struct Rank {
    std::vector<std::string> nodes;  // of its stages under the plan in force
    double bytes_per_second = 0;     // work_bytes_per_second() of them
    std::deque<Sample> samples;      // the last kAgree
    double slowdown = 1;
    std::vector<double> by_node;  // of the profile; empty: about the same
    bool is_bound = true;         // to a core of its own, or to a GPU
    bool has_warned = false;
  };

  void take(size_t number, const CoreSample& sample);
  void warn(size_t number, const std::string& what);
  void follow_plan(const Plan& plan, size_t ranks);
  std::optional<double> predicted(const std::vector<double>& features, double bytes_per_second,
                                  std::string* outside) const;
  void settle(Rank* rank) const;
  std::vector<double> slowdowns_by_node(const Rank& rank) const;
  static bool knows(const Rank& rank);

  const Predictor predictor_;
  const Profile& profile_;
  std::vector<size_t> order_;                    // of the forest's features: which of core_features()
  std::vector<std::vector<std::string>> parts_;  // of the model: nodes
  std::vector<Rank> ranks_;
};

}  // namespace pipewright
