#include "optimizer/baselines/dynpipe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/error.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/dataflow.h"
#include "optimizer/cost/formulas.h"

namespace pipewright {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();
constexpr double kMostSteps = 3e10;  // about a minute

/// Prices of a problem; layers are counted from 0, [from, to).
class Prices {
 public:
  explicit Prices(const DynPipeProblem& problem) : problem_(problem) {
    seconds_.push_back(0);
    bytes_.push_back(0);
    for (const DynPipeLayer& layer : problem.layers) {
      seconds_.push_back(seconds_.back() + layer.seconds);
      bytes_.push_back(bytes_.back() + layer.parameter_bytes);
    }
  }

  double stage(int64_t from, int64_t to, int64_t replicas) const {
    const double seconds = seconds_[at(to)] - seconds_[at(from)];
    const double bytes = bytes_[at(to)] - bytes_[at(from)];
    // A ring passes on as much as a direct exchange does.
    return seconds / static_cast<double>(replicas) +
           all_reduce_link_seconds(bytes, crossing_part(1, replicas), problem_.bandwidth_bytes_per_second);
  }
  double transfer(int64_t cut, int64_t left, int64_t right) const {
    return link_seconds(problem_.layers[at(cut) - 1].activation_bytes,
                        problem_.bandwidth_bytes_per_second * static_cast<double>(left * right));
  }
  /// `last`: no stage comes behind.
  double join(double before, double stage, double transfer, bool last) const {
    const double slower = std::max(before, stage), faster = std::min(before, stage);
    const bool pipedream =
        problem_.rule == DynPipeRule::kPipeDream || (problem_.rule == DynPipeRule::kPipeDreamAsCoded && last);
    if (pipedream) return std::max(slower, 2 * transfer);
    return transfer < (slower - faster) / 2 ? slower : (slower + faster) / 2 + transfer;
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  const DynPipeProblem& problem_;
  std::vector<double> seconds_, bytes_;  // of the first k layers
};

/// Best pipelines of the first layers, one number of stages after the other.
class Search {
 public:
  explicit Search(const DynPipeProblem& problem)
      : problem_(problem),
        prices_(problem),
        layers_(static_cast<int64_t>(problem.layers.size())),
        devices_(problem.devices) {}

  std::vector<DynPipePlan> plans() {
    std::vector<DynPipePlan> plans;
    for (int64_t stages = 1; stages <= std::min({problem_.most_stages, layers_, devices_}); ++stages) {
      tables_.emplace_back(static_cast<size_t>((layers_ + 1) * (devices_ + 1) * (devices_ + 1)));
      stages == 1 ? fill_first() : fill(stages);
      plans.push_back(best(stages));
    }
    return plans;
  }

 private:
  struct Best {
    double seconds = kImpossible;   // of a pipeline that goes on
    int32_t cut = 0, replicas = 0;  // what is before its last stage: layers, replicas of its last stage
  };

  /// Of the first `layers` on `devices`, of which the last stage has `replicas`.
  Best& at(int64_t stages, int64_t layers, int64_t devices, int64_t replicas) {
    const int64_t index = (layers * (devices_ + 1) + devices) * (devices_ + 1) + replicas;
    return tables_[static_cast<size_t>(stages - 1)][static_cast<size_t>(index)];
  }

  void fill_first() {
    for (int64_t l = 1; l <= layers_; ++l)
      for (int64_t n = 1; n <= devices_; ++n) at(1, l, n, n).seconds = prices_.stage(0, l, n);
  }

  void fill(int64_t stages) {
    for (int64_t l = stages; l <= layers_; ++l)
      for (int64_t n = stages; n <= devices_; ++n)
        for (int64_t r = 1; r <= n - stages + 1; ++r) at(stages, l, n, r) = found(stages, l, n, r, false);
  }

  Best found(int64_t stages, int64_t l, int64_t n, int64_t r, bool last) {
    Best best;
    for (int64_t cut = stages - 1; cut < l; ++cut) {
      const double stage = prices_.stage(cut, l, r);
      for (int64_t left = 1; left <= n - r; ++left) {
        const double before = at(stages - 1, cut, n - r, left).seconds;
        if (std::max(stage, before) >= best.seconds) continue;
        const double seconds = prices_.join(before, stage, prices_.transfer(cut, left, r), last);
        if (seconds < best.seconds) best = {seconds, static_cast<int32_t>(cut), static_cast<int32_t>(left)};
      }
    }
    return best;
  }

  DynPipePlan best(int64_t stages) {
    Best chosen;
    int64_t replicas = 0;
    for (int64_t r = 1; r <= devices_ - stages + 1; ++r) {
      const Best with = stages == 1 ? at(1, layers_, devices_, r) : found(stages, layers_, devices_, r, true);
      if (with.seconds < chosen.seconds) chosen = with, replicas = r;
    }
    PW_CHECK(replicas > 0, "no pipeline of " << stages << " stages");
    DynPipePlan plan{{}, chosen.seconds};
    for (int64_t l = layers_, n = devices_; stages > 0; --stages) {
      plan.stages.insert(plan.stages.begin(), {l - chosen.cut, replicas});
      n -= replicas;
      l = chosen.cut;
      replicas = chosen.replicas;
      if (stages > 1) chosen = at(stages - 1, l, n, replicas);
    }
    return plan;
  }

  const DynPipeProblem& problem_;
  const Prices prices_;
  const int64_t layers_, devices_;
  std::vector<std::vector<Best>> tables_;  // by stages - 1
};

}  // namespace

std::vector<DynPipePlan> search_dynpipe(const DynPipeProblem& problem) {
  PW_CHECK(!problem.layers.empty() && problem.devices > 0 && problem.most_stages > 0, "nothing to plan");
  const auto layers = static_cast<double>(problem.layers.size());
  const auto devices = static_cast<double>(problem.devices);
  const double stages = std::min({static_cast<double>(problem.most_stages), layers, devices});
  if (stages * layers * layers / 2 * devices * devices * devices / 6 > kMostSteps) {
    throw InputError("--objective dynpipe: " + std::to_string(problem.layers.size()) + " layers on " +
                         std::to_string(problem.devices) + " devices in up to " +
                         std::to_string(static_cast<int64_t>(stages)) + " stages would take hours",
                     "Give --max-stages, or fewer --gpus.");
  }
  return Search(problem).plans();
}

double dynpipe_seconds(const DynPipeProblem& problem, const std::vector<DynPipeStage>& stages) {
  const Prices prices(problem);
  double seconds = 0;
  int64_t from = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const double stage = prices.stage(from, from + stages[s].layers, stages[s].replicas);
    seconds = s == 0 ? stage
                     : prices.join(seconds, stage,
                                   prices.transfer(from, stages[s - 1].replicas, stages[s].replicas),
                                   s + 1 == stages.size());
    from += stages[s].layers;
  }
  PW_CHECK_EQ(from, static_cast<int64_t>(problem.layers.size()));
  return seconds;
}

double staleness_factor(int64_t stages, double weight) {
  return 1 + weight * (std::pow(static_cast<double>(stages), 3) - 1);
}

const DynPipePlan& least_stale(const std::vector<DynPipePlan>& plans, double staleness_weight) {
  PW_CHECK(!plans.empty(), "no plan");
  const auto time = [&](const DynPipePlan& plan) {
    return plan.seconds * staleness_factor(static_cast<int64_t>(plan.stages.size()), staleness_weight);
  };
  return *std::min_element(plans.begin(), plans.end(),
                           [&](const auto& a, const auto& b) { return time(a) < time(b); });
}

DynPipeProblem dynpipe_problem(const Profile& profile) {
  const Dataflow flow(profile);
  DynPipeProblem problem;
  NodeSet done(flow.size());
  for (int v = 0; v < flow.size(); ++v) {
    const ProfiledNode& node = profile.nodes[static_cast<size_t>(v)];
    done.set(static_cast<size_t>(v));
    problem.layers.push_back({node.name, node.compute_seconds(), static_cast<double>(live_bytes(flow, done)),
                              static_cast<double>(node.parameter_bytes)});
  }
  return problem;
}

}  // namespace pipewright
