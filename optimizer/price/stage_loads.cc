// The loads of a plan's stages, summed over their nodes, and what must hold of its nodes.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/error.h"
#include "graph/recomputed_part.h"
#include "graph/sample_ranges.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/tied.h"
#include "optimizer/price/plan_cost.h"

namespace pipewright {
namespace {

std::vector<int> stage_of_nodes(const Plan& plan, const Dataflow& flow) {
  std::map<std::string, int> number;
  for (int v = 0; v < flow.size(); ++v) number[flow.profile.nodes[v].name] = v;
  std::vector<int> stage_of(flow.size(), -1);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    int last = -1;
    for (const std::string& name : plan.stages[s].nodes) {
      const auto found = number.find(name);
      if (found == number.end()) {
        throw PlanError("plan: stage " + std::to_string(s) + " holds node '" + name +
                            "', which profile of '" + flow.profile.model + "' does not have",
                        "The plan was made for another model or another version of it: plan again.");
      }
      int& stage = stage_of[found->second];
      if (stage >= 0) {
        throw PlanError("plan: node '" + name + "' is in stages " + std::to_string(stage) + " and " +
                            std::to_string(s) + "; each node belongs in one",
                        "Remove it from one of them.");
      }
      stage = static_cast<int>(s);
      if (found->second < last) {
        throw PlanError("plan: stage " + std::to_string(s) + " has node '" + name + "' after '" +
                            flow.profile.nodes[last].name + "', against the order of the profile",
                        "List the nodes of a stage in the profile's order.");
      }
      last = found->second;
    }
  }
  for (int v = 0; v < flow.size(); ++v) {
    if (stage_of[v] >= 0) continue;
    throw PlanError("plan: no stage holds node '" + flow.profile.nodes[v].name + "' of the profile of '" +
                        flow.profile.model + "'",
                    "The plan was made for another model or another version of it: plan again.");
  }
  return stage_of;
}

/// By parameter: the stages that read it, each with its first node that does.
using Readers = std::map<std::string, std::map<int64_t, std::string>>;

/// What several stages read is named as tied, with just these stages.
void check_tied(const Plan& plan, const Readers& readers) {
  std::map<std::string, std::set<int64_t>> said;
  for (const TiedParameter& tied : plan.tied_parameters)
    said[tied.name] = std::set<int64_t>(tied.stages.begin(), tied.stages.end());
  for (const auto& [name, by_stage] : readers) {
    if (by_stage.size() < 2) continue;
    std::set<int64_t> stages;
    for (const auto& [stage, node] : by_stage) stages.insert(stage);
    if (said[name] == stages) continue;
    throw PlanError("plan: parameter '" + name + "', read by nodes '" + by_stage.begin()->second + "' and '" +
                        by_stage.rbegin()->second + "', is in stages " +
                        std::to_string(by_stage.begin()->first) + " and " +
                        std::to_string(by_stage.rbegin()->first) + ", and `tied_parameters` does not say so",
                    "Put all nodes that read it into one stage, or, with weights 'flush' or '2bw', name it "
                    "there with its stages.");
  }
}

void check_together(const Dataflow& flow, const std::vector<int>& stage_of) {
  std::map<std::string, int> stages;
  for (int v = 0; v < flow.size(); ++v) stages.emplace(flow.profile.nodes[v].name, stage_of[v]);
  for (const auto& set : flow.profile.together) {
    for (const std::string& name : set) {
      if (stages.at(name) == stages.at(set[0])) continue;
      throw PlanError(
          "plan: nodes '" + set[0] + "' of stage " + std::to_string(stages.at(set[0])) + " and '" + name +
              "' of stage " + std::to_string(stages.at(name)) +
              " share memory that is written in place: a cut between them would change the result",
          "Put all nodes of this set of the profile's `together` into one stage: " + join(set, ", ") + ".");
    }
  }
}

// What a device that is told its kernels one by one takes: launching them takes as long for a part of a
// minibatch.
void launch_nodes(const Dataflow& flow, const std::vector<int>& stage_of, std::vector<StageLoad>* loads) {
  std::vector<PassSeconds> launch(loads->size()), gaps(loads->size());
  for (int v = 0; v < flow.size(); ++v) {
    launch[stage_of[v]] += flow.profile.nodes[v].launch_pass();
    gaps[stage_of[v]] += flow.profile.nodes[v].gap_pass();
  }
  for (size_t s = 0; s < loads->size(); ++s)
    set_launched(launch[s], gaps[s], flow.class_factors, &(*loads)[s]);
}

// What the nodes of each stage take and hold; notes who reads each parameter.
void add_nodes(const Dataflow& flow, const std::vector<int>& stage_of, std::vector<StageLoad>* loads,
               Readers* readers) {
  for (int v = 0; v < flow.size(); ++v) {
    const ProfiledNode& node = flow.profile.nodes[v];
    StageLoad& load = (*loads)[stage_of[v]];
    load.forward_seconds += node.forward_seconds;
    load.backward_seconds += node.backward_seconds();
    load.backward_weight_seconds += node.backward_weight_seconds;
    load.least_seconds += flow.least_seconds[v];
    load.classes.resize(flow.class_seconds.size());
    for (size_t c = 0; c < load.classes.size(); ++c) {
      load.classes[c].forward_seconds += flow.class_seconds[c][v].forward_seconds;
      load.classes[c].backward_seconds += flow.class_seconds[c][v].backward_seconds;
    }
    load.buffer_bytes += node.buffer_bytes;
    load.saved_bytes += node.saved_bytes;
    load.waiting_gradient_bytes += flow.bytes.waiting_gradients[v];
    for (const std::string& parameter : node.parameters)
      (*readers)[parameter].emplace(stage_of[v], node.name);
    load.parameter_bytes += flow.own_parameter_bytes[v];
    load.trainable_bytes += flow.own_trainable_bytes[v];
  }
}

// A tied parameter counts once in each stage that has it.
void add_ties(const Plan& plan, const Dataflow& flow, const std::vector<int>& stage_of,
              std::vector<StageLoad>* loads) {
  const int stages = static_cast<int>(plan.stages.size());
  std::vector<NodeSet> nodes(plan.stages.size(), NodeSet(static_cast<size_t>(flow.size())));
  for (int v = 0; v < flow.size(); ++v) nodes[static_cast<size_t>(stage_of[v])].set(v);
  for (const TiedGroup& tie : flow.ties) {
    for (int s = 0; s < stages; ++s) {
      const bool reads =
          std::any_of(tie.readers.begin(), tie.readers.end(), [&](int v) { return stage_of[v] == s; });
      if (!reads) continue;
      (*loads)[s].parameter_bytes += tie.parameter_bytes;
      (*loads)[s].trainable_bytes += tie.trainable_bytes;
    }
  }
  set_tied(split_groups(flow.ties, nodes), plan.stages, loads);
}

// A value crosses every boundary from its maker's stage to that of its last reader.
void add_crossing_values(const Dataflow& flow, const std::vector<int>& stage_of,
                         std::vector<StageLoad>* loads) {
  for (const DataflowValue& value : flow.values) {
    const int from = stage_of[value.producer];
    int to = from;
    for (const int reader : value.readers) {
      if (stage_of[reader] < from) {
        throw PlanError("plan: node '" + flow.profile.nodes[reader].name + "' of stage " +
                            std::to_string(stage_of[reader]) + " reads what node '" +
                            flow.profile.nodes[value.producer].name + "' of the later stage " +
                            std::to_string(from) + " makes; values flow forward only",
                        "Move one of the two nodes, so that values flow to later stages only.");
      }
      to = std::max(to, stage_of[reader]);
    }
    for (int s = from; s < to; ++s) {
      (*loads)[s].out_bytes += value.bytes;
      (*loads)[s + 1].in_bytes += value.bytes;
    }
  }
}

void add_workspace(const Dataflow& flow, const std::vector<int>& stage_of, std::vector<StageLoad>* loads) {
  std::vector<int64_t> gradients(loads->size(), 0);
  for (int v = 0; v < flow.size(); ++v) gradients[stage_of[v]] += flow.bytes.gradients[v];
  std::vector<WorkspaceWalk> walks;
  NodeSet done(static_cast<size_t>(flow.size()));
  for (size_t s = 0; s < loads->size(); ++s) {
    for (int v = 0; v < flow.size(); ++v)
      if (stage_of[v] == static_cast<int>(s)) done.set(static_cast<size_t>(v));
    walks.emplace_back(gradients[s], sent_values(flow.values, done));
  }
  for (int v = flow.size(); v-- > 0;) walks[stage_of[v]].add(flow.bytes, v);
  for (size_t s = 0; s < loads->size(); ++s) (*loads)[s].workspace = walks[s].workspace();
}

// What is held at each cut.
void add_cuts(const Dataflow& flow, const std::vector<int>& stage_of, std::vector<StageLoad>* loads) {
  NodeSet done(flow.size());
  for (int s = 0; s + 1 < static_cast<int>(loads->size()); ++s) {
    for (int v = 0; v < flow.size(); ++v) {
      if (stage_of[v] == s) done.set(v);
    }
    (*loads)[s].held_bytes = unsaved_live_bytes(flow, done);
    for (const DataflowValue& value : flow.values) {
      const bool sent = stage_of[value.producer] == s && !value.readers.empty() &&
                        std::any_of(value.readers.begin(), value.readers.end(),
                                    [&](int reader) { return stage_of[reader] > s; });
      const int64_t unkept = sent ? unkept_bytes(value, done) : 0;
      (*loads)[s].saved_bytes -= unkept;
      (*loads)[s].held_bytes += unkept;
    }
  }
}

// Of stages that recompute their last part alone, what the first part takes and keeps.
void add_first_parts(const Plan& plan, const Dataflow& flow, std::vector<StageLoad>* loads) {
  std::unordered_map<std::string, int> number;
  for (int v = 0; v < flow.size(); ++v) number.emplace(flow.profile.nodes[v].name, v);
  for (size_t s = 0; s < loads->size(); ++s) {
    const Stage& stage = plan.stages[s];
    const size_t first = first_recomputed(stage, flow.profile.together);
    StageLoad& load = (*loads)[s];
    load.recompute = first < stage.nodes.size();
    if (!load.recompute || first == 0) continue;
    NodeSet once(flow.size()), again(flow.size());
    for (size_t i = 0; i < stage.nodes.size(); ++i) (i < first ? once : again).set(number.at(stage.nodes[i]));
    for (size_t v = once.find_first(); v != NodeSet::npos; v = once.find_next(v)) {
      load.once_forward_seconds += flow.profile.nodes[v].forward_seconds;
      load.once_saved_bytes += flow.profile.nodes[v].saved_bytes;
    }
    for (const DataflowValue& value : flow.values) {
      if (!once.test(value.producer)) continue;
      const bool read = std::any_of(value.readers.begin(), value.readers.end(),
                                    [&](int reader) { return again.test(reader); });
      if (!read) continue;
      load.once_held_bytes += value.bytes - value.saved_bytes;
    }
  }
}

// Of the replica with most of each minibatch.
void take_part(double part, StageLoad* load) {
  load->split = true;
  for (double* seconds : {&load->forward_seconds, &load->backward_seconds, &load->backward_weight_seconds,
                          &load->once_forward_seconds})
    *seconds *= part;
  for (PassSeconds& pass : load->classes) {
    pass.forward_seconds *= part;
    pass.backward_seconds *= part;
  }
  for (int64_t* bytes :
       {&load->saved_bytes, &load->waiting_gradient_bytes, &load->held_bytes, &load->workspace.alone_bytes,
        &load->in_bytes, &load->out_bytes, &load->once_saved_bytes, &load->once_held_bytes})
    *bytes = static_cast<int64_t>(std::ceil(static_cast<double>(*bytes) * part));
  load->workspace.with_gradients_bytes = load->workspace.alone_bytes;  // gradients are whole
}

}  // namespace

std::vector<StageLoad> loads_of_plan(const Plan& plan, const Dataflow& flow) {
  const std::vector<int> stage_of = stage_of_nodes(plan, flow);
  const int stages = static_cast<int>(plan.stages.size());
  std::vector<StageLoad> loads(stages);
  const bool together = weight_rule_facts(plan.weights).one_update_for_all;
  for (int s = 0; s < stages; ++s) {
    loads[s].first = s == 0;
    loads[s].last = s + 1 == stages;
    loads[s].frozen = plan.stages[s].frozen;
    loads[s].captured = flow.captures && (together || loads[s].last) && !plan.stages[s].splits();
    loads[s].after_frozen = s > 0 && plan.stages[s - 1].frozen;
    loads[s].in_stays = s > 0 && plan.stages[s - 1].ranks == plan.stages[s].ranks;
    loads[s].out_stays = s + 1 < stages && plan.stages[s + 1].ranks == plan.stages[s].ranks;
  }
  Readers readers;
  add_nodes(flow, stage_of, &loads, &readers);
  add_ties(plan, flow, stage_of, &loads);
  add_crossing_values(flow, stage_of, &loads);
  add_workspace(flow, stage_of, &loads);
  check_tied(plan, readers);
  check_together(flow, stage_of);
  add_cuts(flow, stage_of, &loads);
  add_first_parts(plan, flow, &loads);
  for (size_t s = 0; s < loads.size(); ++s)
    if (plan.stages[s].splits()) take_part(largest_part(plan.stages[s]), &loads[s]);
  launch_nodes(flow, stage_of, &loads);
  return loads;
}

}  // namespace pipewright
