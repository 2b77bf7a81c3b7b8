// What a plan takes when the lists of its ranks are played one action after the other: an oracle that shares
// with prices the schedules and the formulas of docs/cost-model.md, but neither their code nor their engines.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "graph/error.h"
#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/cost/device_classes.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"

namespace pipewright::testing {

/// One level of links of their own, profiles without further effects, no tied parameters.
class PlayedPlan {
 public:
  PlayedPlan(const Plan& plan, const Profile& profile, const Topology& topology,
             const ClassProfiles& classes = {})
      : plan_(plan), shape_(shape_of(plan)), placements_(placements(shape_)) {
    std::map<std::string, int> number;
    for (size_t v = 0; v < profile.nodes.size(); ++v) number[profile.nodes[v].name] = static_cast<int>(v);
    std::map<std::string, int> stage_of;
    double all_trainable = 0;
    for (const ProfiledNode& node : profile.nodes)
      all_trainable += static_cast<double>(node.trainable_parameter_bytes);
    for (size_t s = 0; s < plan.stages.size(); ++s)
      for (const std::string& name : plan.stages[s].nodes) stage_of[name] = static_cast<int>(s);
    const double bandwidth = topology.levels[0].bandwidth_bytes_per_second;
    const double latency = topology.levels[0].latency_seconds;
    send_.resize(plan.stages.size(), 0);
    reduce_.resize(plan.stages.size(), 0);
    for (size_t s = 0; s + 1 < plan.stages.size(); ++s) {
      double bytes = 0;
      for (const ProfiledNode& node : profile.nodes)
        for (const auto& value : node.outputs) {
          if (stage_of[node.name] > static_cast<int>(s)) continue;
          bool crosses = false;
          for (const ProfiledNode& reader : profile.nodes)
            crosses = crosses || (stage_of[reader.name] > static_cast<int>(s) &&
                                  std::count(reader.inputs.begin(), reader.inputs.end(), value.name) > 0);
          if (crosses) bytes += static_cast<double>(value.bytes);
        }
      send_[s] = latency + bytes / bandwidth;
    }
    ranks_.resize(placements_.size());
    for (size_t r = 0; r < placements_.size(); ++r) {
      const auto s = static_cast<size_t>(placements_[r].stage);
      const Stage& stage = plan.stages[s];
      const TopologyDevice device =
          topology.devices.empty()
              ? TopologyDevice{}
              : topology
                    .devices[static_cast<size_t>(stage.ranks[static_cast<size_t>(placements_[r].replica)])];
      Rank& rank = ranks_[r];
      double trainable = 0;
      const Profile& measured = device.device_class.empty() ? profile : classes.at(device.device_class);
      for (const std::string& name : stage.nodes) {
        const auto v = static_cast<size_t>(number.at(name));
        rank.forward += measured.nodes[v].forward_seconds / device.relative_speed;
        rank.backward += measured.nodes[v].backward_seconds() / device.relative_speed;
        rank.weights += measured.nodes[v].backward_weight_seconds / device.relative_speed;
        trainable += static_cast<double>(profile.nodes[v].trainable_parameter_bytes);
      }
      if (stage.recompute) rank.again = rank.forward;
      if (all_trainable > 0)
        rank.step =
            profile.whole.step_seconds * trainable / all_trainable / std::min(1.0, device.relative_speed);
      const auto m = static_cast<double>(stage.ranks.size());
      if (stage.ranks.size() > 1 && trainable > 0)
        reduce_[s] = 2 * latency + 2 * (m - 1) / m * trainable / bandwidth;
    }
  }

  /// Of so many minibatches, from an empty pipeline to an empty one; `completed`: when each left the first
  /// stage.
  double seconds(int64_t minibatches, std::vector<double>* completed = nullptr) {
    const auto lists = schedule_of_all(plan_.schedule, shape_, {0, minibatches});
    std::vector<double> done(static_cast<size_t>(minibatches), 0);
    std::vector<size_t> at(lists.size(), 0);
    std::map<std::tuple<int64_t, bool, int64_t>, double> arrived;  // stage it leaves, gradient, minibatch
    std::vector<double> now(lists.size(), 0);
    std::vector<std::array<double, 2>> link(lists.size(), {0, 0});
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < lists.size(); ++r) {
        for (; at[r] < lists[r].size(); ++at[r], moved = true) {
          const Action& action = lists[r][at[r]];
          const int64_t s = placements_[r].stage;
          const Rank& rank = ranks_[r];
          if (action.kind == ActionKind::kReduce) {
            if (!all_at(lists, at, r, action)) break;
            double last = 0;
            const auto [begin, end] = replicas_of(r);
            for (size_t q = begin; q < end; ++q) last = std::max(last, now[q]);
            for (size_t q = begin; q < end; ++q) {
              now[q] = last + reduce_[static_cast<size_t>(s)];
              if (q != r) ++at[q];
            }
            continue;
          }
          const bool gradient =
              action.kind == ActionKind::kReceiveGradient || action.kind == ActionKind::kSendGradient;
          if (is_of_message(action.kind)) {
            const bool sends =
                action.kind == ActionKind::kSendActivation || action.kind == ActionKind::kSendGradient;
            if (sends) {
              double& free = link[r][gradient ? 1 : 0];
              free = std::max(free, now[r]) + send_[static_cast<size_t>(gradient ? s - 1 : s)];
              arrived[{s, gradient, action.index}] = free;
              continue;
            }
            const auto message = arrived.find({gradient ? s + 1 : s - 1, gradient, action.index});
            if (message == arrived.end()) break;
            now[r] = std::max(now[r], message->second);
            continue;
          }
          if (action.kind == ActionKind::kForward) now[r] += rank.forward;
          if (action.kind == ActionKind::kBackward) now[r] += rank.again + rank.backward;
          if (action.kind == ActionKind::kBackwardInput) now[r] += rank.again + rank.backward - rank.weights;
          if (action.kind == ActionKind::kBackwardWeight) now[r] += rank.weights;
          if (action.kind == ActionKind::kUpdate) now[r] += rank.step;
          const bool last_part =
              action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
          if (last_part && s == 0) done[static_cast<size_t>(action.index)] = now[r];
        }
      }
    }
    for (size_t r = 0; r < lists.size(); ++r) PW_CHECK_EQ(at[r], lists[r].size());
    if (completed != nullptr) *completed = done;
    return *std::max_element(now.begin(), now.end());
  }

 private:
  struct Rank {
    double forward = 0, backward = 0, weights = 0, again = 0, step = 0;
  };

  std::pair<size_t, size_t> replicas_of(size_t rank) const {
    size_t begin = rank, end = rank + 1;
    while (begin > 0 && placements_[begin - 1].stage == placements_[rank].stage) --begin;
    while (end < placements_.size() && placements_[end].stage == placements_[rank].stage) ++end;
    return {begin, end};
  }
  bool all_at(const std::vector<std::vector<Action>>& lists, const std::vector<size_t>& at, size_t rank,
              const Action& action) const {
    const auto [begin, end] = replicas_of(rank);
    for (size_t q = begin; q < end; ++q)
      if (at[q] == lists[q].size() || !(lists[q][at[q]] == action)) return false;
    return true;
  }

  const Plan plan_;
  const PipelineShape shape_;
  const std::vector<Placement> placements_;
  std::vector<double> send_, reduce_;  // by cut, by stage
  std::vector<Rank> ranks_;
};

}  // namespace pipewright::testing
