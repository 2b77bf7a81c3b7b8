// Every plan there is, one by one: the oracle of the search. Sums are made here, node by node; only the price
// of one stage comes from the cost model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/profile.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/search/search.h"

namespace pipewright::testing {

struct BruteProblem {
  std::string strategy;  ///< "best", "dp", "straight", "hybrid", "model-parallel"
  int64_t devices = 1;
  bool all_devices = false;
  int64_t memory_bytes = 0;  ///< 0 = no limit
  Recompute recompute = Recompute::kNever;
};

struct BruteSolution {
  double period_seconds = 0;
  int64_t devices = 0;
  int64_t stages = 0;
  /// Of the stages, slowest first, in whole parts of 2^30 of the period; empty with one minibatch in flight.
  std::vector<int64_t> levels;
  int64_t bytes = 0;  ///< over all cuts
};

std::vector<int64_t> levels_of(const std::vector<double>& stage_periods, double period);

class BruteForce {
 public:
  /// The profile has at most 16 nodes and must outlive this.
  BruteForce(const Profile& profile, const CostInputs& inputs);

  /// Best plan in the order that search.h promises; nothing if no plan satisfies the problem.
  std::optional<BruteSolution> best(const BruteProblem& problem);
  /// Memory of the fullest stage of the plan in which that is least, for any of the plans.
  std::optional<int64_t> least_memory(const BruteProblem& problem);

 private:
  struct Candidate {
    BruteSolution solution;
    std::vector<double> periods;
    int64_t memory_bytes = 0;
    int64_t most_replicas = 1;
  };
  using Mask = uint32_t;
  struct Piece {
    int64_t stage = 0;
    int64_t replicas = 0;
  };

  StageLoad load(Mask from, Mask to) const;
  int64_t crossing_bytes(Mask done) const;
  int64_t kept_bytes(size_t u) const;       ///< of what `u` saves, its value
  size_t freed_at(size_t u) const;          ///< the node with which these are free
  bool goes_on(size_t u, Mask done) const;  ///< whether what `u` makes is read behind the cut
  int64_t unsaved_bytes(size_t u, Mask done) const;
  std::vector<Candidate> candidates(const BruteProblem& problem);
  void extend(const BruteProblem& problem, const std::vector<Mask>& cuts, std::vector<Mask>* chain,
              std::vector<int64_t>* replicas, int64_t used, std::vector<Candidate>* found);
  void price(const BruteProblem& problem, const std::vector<Mask>& chain,
             const std::vector<int64_t>& replicas, std::vector<Candidate>* found);
  /// `recomputing`: bit s for stage s.
  void price(const BruteProblem& problem, const std::vector<Mask>& chain,
             const std::vector<int64_t>& replicas, uint32_t recomputing, std::vector<Candidate>* found);

  const Profile& profile_;
  CostInputs inputs_;
  Mask all_ = 0;
  std::vector<Mask> every_cut_;  ///< all down-sets
  /// Without those that only move a weightless node away from what it reads or is read by; [1]: under a
  /// limit.
  std::vector<Mask> sensible_cuts_[2];
  std::vector<std::vector<StageLoad>> loads_;  ///< by masks
  std::vector<std::vector<char>> known_;
};

}  // namespace pipewright::testing
