#include "runtime/schedule/memory.h"

#include <algorithm>

#include "graph/error.h"
#include "runtime/schedule/versions.h"

namespace pipewright {
namespace {

struct Change {
  double seconds = 0;
  int64_t bytes = 0;
};

// The versions that a rank holds of one stage.
class StageVersions {
 public:
  StageVersions(const std::string& schedule, const PipelineShape& shape, Span span, int64_t stage,
                int64_t replica)
      : rule_(schedule, shape, stage, span),
        early_(!facts_of(shape.weights).reads_latest()),
        held_(shape.weights, StageTurns(shape, stage).rounds_of(span).count) {
    if (!early_) return;
    for (const int64_t k : StageTurns(shape, stage).minibatches_of(replica, span))
      held_.add_reader(rule_.of(k));
  }
  void forward(int64_t k) {
    if (!early_) held_.add_reader(rule_.of(k));
    if (rule_.predicted(k)) held_.predict();
    peak_ = std::max(peak_, held_.count());
  }
  void backward(int64_t k) { held_.remove_reader(rule_.of(k)); }
  void update() {
    held_.update();
    peak_ = std::max(peak_, held_.count());
  }
  int64_t count() const { return held_.count(); }
  int64_t peak() const { return peak_; }

 private:
  ReadVersions rule_;
  bool early_;  // versions are kept for minibatches yet to come
  HeldVersions held_;
  int64_t peak_ = 1;
};

class Ledger {
 public:
  Ledger(const std::string& schedule, const PipelineShape& shape, Span span,
         const std::vector<StageBytes>& bytes)
      : shape_(shape),
        span_(span),
        bytes_(bytes),
        placements_(placements(shape)),
        first_rank_(first_ranks(shape)),
        trains_(schedule_named(schedule).trains()),
        changes_(placements_.size()),
        fixed_(placements_.size(), 0) {
    PW_CHECK_EQ(bytes.size(), shape.replicas.size());
    for (int64_t stage = 0; stage < shape.stages(); ++stage) {
      turns_.emplace_back(shape, stage);
      for (int64_t replica = 0; replica < shape.replicas[stage]; ++replica)
        fixed_[first_rank_[stage] + replica] +=
            bytes[stage].fixed_bytes + (summed_by_replicas(stage) ? bytes[stage].weight_gradient_bytes : 0);
    }
    versions_.resize(placements_.size());
    has_gradients_.resize(placements_.size());
    for (size_t rank = 0; rank < placements_.size(); ++rank)
      has_gradients_[rank].resize(static_cast<size_t>(placements_[rank].stages));
    for (size_t rank = 0; rank < placements_.size(); ++rank)
      for (int64_t i = 0; i < placements_[rank].stages; ++i)
        versions_[rank].emplace_back(schedule, shape, span,
                                     placements_[rank].stage + i * placements_[rank].apart,
                                     placements_[rank].replica);
  }

  void book(const SimulatedAction& a) {
    const Placement& at = placements_[a.rank];
    const int64_t stage = a.action.stage_or(at.stage), k = a.action.index;
    const StageBytes& bytes = bytes_[stage];
    const int64_t place = at.stages == 1 ? 0 : (stage - at.stage) / at.apart;
    StageVersions& versions = versions_[a.rank][place];
    const auto has_gradients = has_gradients_[a.rank].begin() + place;
    const int64_t gradients = summed_by_replicas(stage) ? 0 : bytes.weight_gradient_bytes;
    const int64_t again = bytes.recompute ? bytes.saved_bytes - bytes.kept_bytes : 0;
    const int64_t held = versions.count();
    const bool keeps = trains_ && shape_.trains(stage);
    switch (a.action.kind) {
      case ActionKind::kForward:
        if (stage > 0) change(a.rank, a.begin_seconds, -came_in(stage));
        if (stage + 1 < shape_.stages()) change(a.rank, a.end_seconds, bytes.activation_bytes);
        change(a.rank, a.begin_seconds, bytes.saved_bytes);
        change(a.rank, a.end_seconds, keeps ? -again : -bytes.saved_bytes);
        if (!keeps) break;
        versions.forward(k);
        change(a.rank, a.begin_seconds, (versions.count() - held) * bytes.version_bytes);
        break;
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        if (!keeps) break;
        change(a.rank, a.begin_seconds, again);
        if (shape_.receives_gradient(stage)) change(a.rank, a.end_seconds, -came_back(stage));
        if (shape_.sends_gradient(stage)) change(a.rank, a.end_seconds, bytes.gradient_bytes);
        if (a.action.kind == ActionKind::kBackwardInput) break;
        [[fallthrough]];
      case ActionKind::kBackwardWeight:
        change(a.rank, a.end_seconds, -bytes.saved_bytes);
        if (!*has_gradients) change(a.rank, a.end_seconds, gradients);
        *has_gradients = true;
        versions.backward(k);
        change(a.rank, a.end_seconds, (versions.count() - held) * bytes.version_bytes);
        break;
      case ActionKind::kUpdate:
        if (!keeps) break;
        if (*has_gradients) change(a.rank, a.end_seconds, -gradients);
        *has_gradients = false;
        if (facts_of(shape_.weights).in_place) break;
        // Written where a version has died, or in place where nobody holds the latest one.
        versions.update();
        change(a.rank, a.begin_seconds, (versions.count() - held) * bytes.version_bytes);
        break;
      case ActionKind::kSendActivation:
        change(a.rank, a.end_seconds, -bytes.activation_bytes);
        if (!is_split(stage)) change(rank_of(stage + 1, k), a.begin_seconds, bytes.activation_bytes);
        break;
      case ActionKind::kSendGradient:
        change(a.rank, a.end_seconds, -bytes.gradient_bytes);
        if (!is_split(stage - 1)) change(rank_of(stage - 1, k), a.begin_seconds, bytes.gradient_bytes);
        break;
      case ActionKind::kReceiveActivation:
        if (is_split(stage - 1)) change(a.rank, a.begin_seconds, came_in(stage));
        break;
      case ActionKind::kReceiveGradient:
        if (is_split(stage)) change(a.rank, a.begin_seconds, came_back(stage));
        break;
      case ActionKind::kReduce:
      case ActionKind::kAverage:
        break;
    }
  }

  RankMemory balance(int64_t rank) {
    RankMemory memory;
    for (const StageVersions& versions : versions_[rank]) memory.peak_versions.push_back(versions.peak());
    std::sort(changes_[rank].begin(), changes_[rank].end(),
              [](const Change& a, const Change& b) { return a.seconds < b.seconds; });
    int64_t bytes = fixed_[rank];
    memory.points.push_back({0, bytes});
    for (size_t i = 0; i < changes_[rank].size(); ++i) {
      const Change& change = changes_[rank][i];
      bytes += change.bytes;
      // What is given up makes room for what begins at the same time.
      if (i + 1 < changes_[rank].size() && changes_[rank][i + 1].seconds == change.seconds) continue;
      if (memory.points.back().seconds == change.seconds)
        memory.points.back().bytes = bytes;
      else if (memory.points.back().bytes != bytes)
        memory.points.push_back({change.seconds, bytes});
    }
    for (const MemoryPoint& point : memory.points) {
      if (point.bytes <= memory.peak_bytes) continue;
      memory.peak_bytes = point.bytes;
      memory.peak_seconds = point.seconds;
    }
    return memory;
  }

 private:
  void change(int64_t rank, double seconds, int64_t bytes) {
    if (bytes != 0) changes_[rank].push_back({seconds, bytes});
  }
  bool summed_by_replicas(int64_t stage) const { return shape_.replicas[static_cast<size_t>(stage)] > 1; }
  /// Whether messages behind the stage come in parts: then all of one is there from when it is asked for.
  bool is_split(int64_t stage) const { return shape_.splits(stage) || shape_.splits(stage + 1); }
  /// A part of a message is as large as the receiver's part of the minibatch, whoever it comes from.
  int64_t came_in(int64_t stage) const {
    return is_split(stage - 1) ? bytes_[stage].gradient_bytes : bytes_[stage - 1].activation_bytes;
  }
  int64_t came_back(int64_t stage) const {
    return is_split(stage) ? bytes_[stage].activation_bytes : bytes_[stage + 1].gradient_bytes;
  }
  int64_t rank_of(int64_t stage, int64_t k) const { return first_rank_[stage] + turns_[stage].replica_of(k); }

  const PipelineShape& shape_;
  Span span_;
  const std::vector<StageBytes>& bytes_;
  std::vector<Placement> placements_;
  std::vector<int64_t> first_rank_;
  bool trains_;
  std::vector<StageTurns> turns_;
  std::vector<std::vector<StageVersions>> versions_;  // by rank, by its stages
  std::vector<std::vector<bool>> has_gradients_;      // likewise, of weights
  std::vector<std::vector<Change>> changes_;          // by rank
  std::vector<int64_t> fixed_;
};

}  // namespace

std::vector<RankMemory> memory_over_time(const Simulation& simulation, const std::string& schedule,
                                         const PipelineShape& shape, Span span,
                                         const std::vector<StageBytes>& bytes) {
  Ledger ledger(schedule, shape, span, bytes);
  // A rank computes one thing after the other, so the order of their begins is the order of its actions.
  for (const SimulatedAction& action : simulation.actions) ledger.book(action);
  std::vector<RankMemory> all;
  for (size_t rank = 0; rank < simulation.ranks.size(); ++rank)
    all.push_back(ledger.balance(static_cast<int64_t>(rank)));
  return all;
}

}  // namespace pipewright
