#include "optimizer/commands/report.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>

#include "graph/units.h"
#include "optimizer/cost/formulas.h"
#include "optimizer/cost/tied.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/memory_check.h"
#include "optimizer/plan/stage_layers.h"

namespace pipewright {
namespace {

constexpr auto kLeft = TableColumn::Side::kLeft;
constexpr auto kRight = TableColumn::Side::kRight;

std::string bytes(int64_t count) { return format_bytes(static_cast<double>(count)); }

}  // namespace

std::string ranks_text(const std::vector<int64_t>& ranks) {
  std::string text;
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ",";
    text += std::to_string(ranks[first]);
    if (last > first) text += "-" + std::to_string(ranks[last]);
    first = last + 1;
  }
  return text;
}

std::string devices_text(const Stage& stage, const Topology& topology) {
  std::vector<std::string> classes;
  for (const int64_t rank : stage.ranks) {
    if (topology.devices.empty()) break;
    const std::string& name = topology.devices.at(static_cast<size_t>(rank)).device_class;
    if (!name.empty() && std::find(classes.begin(), classes.end(), name) == classes.end())
      classes.push_back(name);
  }
  return ranks_text(stage.ranks) + (classes.empty() ? "" : " (" + join(classes, ", ") + ")");
}

std::string depth_text(const Stage& stage) {
  if (!stage.recompute) return std::to_string(stage.in_flight);
  char part[32] = "";
  if (stage.recompute_ratio != 1) std::snprintf(part, sizeof part, " its last %.3g", stage.recompute_ratio);
  return std::to_string(stage.in_flight) + ", recomputes" + part;
}

std::string shape_and_recompute_text(const Plan& plan) {
  std::vector<int64_t> recomputing;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (plan.stages[s].recompute) recomputing.push_back(static_cast<int64_t>(s));
  }
  return plan.shape_text() + (recomputing.empty() ? "" : ", recomputing " + ranks_text(recomputing));
}

std::string layers_text(const std::vector<std::string>& layers) {
  const auto shorter = [](const std::string& name) {
    return name.size() <= 28 ? name : name.substr(0, 25) + "...";
  };
  if (layers.empty()) return "-";
  if (layers.size() == 1) return shorter(layers.front());
  return shorter(layers.front()) + " .. " + shorter(layers.back()) + " (" + std::to_string(layers.size()) +
         ")";
}

std::string layers_text(const Stage& stage) {
  return layers_text(stage.layers.empty() ? stage.nodes : stage.layers);
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value >= 1000 ? "%.0f" : "%.3g", value);
  return text;
}

std::string ties_text(const Plan& plan, const Profile& profile) {
  if (!weight_rule_facts(plan.weights).one_update_for_all) {
    std::string text = forbidden_cuts_text(profile);
    if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
    return text;
  }
  if (plan.tied_parameters.empty()) return "";
  const TiedParameter& first = plan.tied_parameters.front();
  const size_t others = plan.tied_parameters.size() - 1;
  return "Parameter '" + first.name + "' has copies in stages " + ranks_text(first.stages) +
         (others > 0 ? " (" + std::to_string(others) + " more are tied)" : "") +
         ": these stages wait for each other's gradients before each update";
}

namespace {

/// Of the stage that is slowed most.
CrowdFactors crowd_of_plan(const Plan& plan, const Inputs& inputs) {
  const CostInputs cost = cost_of_plan(plan, inputs.profile, inputs.topology, inputs.request).inputs;
  CrowdFactors most;
  for (const Stage& stage : plan.stages) {
    const CrowdFactors own = crowd_of(stage, plan.world_size, cost);
    most = {std::max(most.compute, own.compute), std::max(most.update, own.update)};
  }
  return most;
}

constexpr double kSeen = 1.005;  // a factor that three digits show

}  // namespace

std::string crowd_text(const Plan& plan, const Inputs& inputs) {
  const std::optional<ProfiledCrowd>& crowd = inputs.profile.whole.crowd;
  if (!crowd || std::max(crowd->compute_factor, crowd->replicas_compute_factor) < kSeen) return "";
  const auto beside = [](int64_t others) {
    return "beside " + std::to_string(others) + (others == 1 ? " other" : " others");
  };
  const std::string doubt = crowd->doubt();
  const std::string source = "profile: " + beside(crowd->ranks - 1) + (doubt.empty() ? "" : "; " + doubt);
  const int64_t devices = inputs.topology.levels.at(0).count;
  if (plan.world_size < 2 || devices < 2) return "";
  if (inputs.request.ignore_crowd) {
    return "Ranks of a host are taken not to slow each other (--ignore-crowd), against " +
           number_text(crowd->compute_factor) + " times measured (" + source + ")";
  }
  if (!is_measured_on_such_hosts(*crowd, inputs.topology)) {
    return "Ranks of a host are taken not to slow each other: the profile was measured " +
           beside(crowd->ranks - 1) + ", which says nothing of hosts with " + std::to_string(devices) +
           " devices; pipewright-profiler --beside " + std::to_string(devices - 1) + " measures it there";
  }
  const CrowdFactors slowed = crowd_of_plan(plan, inputs);
  if (slowed.compute < kSeen && slowed.update < kSeen) return "";
  return "Ranks of a host slow each other " + number_text(slowed.compute) + " times" +
         (slowed.update >= kSeen ? ", their updates " + number_text(slowed.update) + " times" : "") + " (" +
         source + "); --ignore-crowd leaves that out";
}

std::string sums_text(const Plan& plan, const Inputs& inputs) {
  const Topology& topology = inputs.topology;
  const TopologyLevel& outer = topology.levels.back();
  if (topology.levels.size() < 2 || !outer.exchanges.empty() || outer.exchange_bytes_per_second > 0)
    return "";
  const int64_t host = topology.levels.front().count;
  double direct = 0, ring = 0;  // times the gradients' bytes, on a host's link
  for (const Stage& stage : plan.stages) {
    std::map<int64_t, int64_t> on_host;
    for (const int64_t rank : stage.ranks) ++on_host[rank / host];
    const auto replicas = static_cast<int64_t>(stage.ranks.size());
    for (const auto& [number, count] : on_host) {
      if (count == replicas || 2 * crossing_part(count, replicas) <= direct) continue;
      direct = 2 * crossing_part(count, replicas);
      ring = 2 * crossing_part(1, replicas);
    }
  }
  if (direct <= ring) return "";
  if (inputs.profile.device.starts_with("cuda")) {
    return "Sums over replicas are priced as NCCL's rings: " + number_text(ring) +
           " times the gradients' bytes pass each host's link each way";
  }
  return "Sums over replicas are priced as this runtime makes them between CPUs, directly from rank to "
         "rank: " +
         number_text(direct) +
         " times the gradients' bytes pass each host's link each way (in rings, as NCCL "
         "makes them between GPUs, " +
         number_text(ring) + " times)";
}

std::string crowd_cell(const Plan& plan, const Inputs& inputs) {
  const double factor = crowd_of_plan(plan, inputs).compute;
  return factor < kSeen ? "-" : number_text(factor) + "x";
}

std::string calibration_text(const HostFactors& factors) {
  if (factors.runs == 0) return "";
  std::string text = "Prices are calibrated by " + std::to_string(factors.runs) +
                     (factors.runs == 1 ? " run" : " runs") + ": computing takes, as times the profile's,";
  const char* comma = " ";
  for (const HostFactorRow& row : host_factor_rows()) {
    text += comma + number_text(factors.*row.factor) + " (" + row.name + ")";
    comma = ", ";
  }
  return text;
}

int64_t largest_memory(const Plan& plan, const Prediction& prediction) {
  int64_t largest = 0;
  for (const auto& [rank, memory] : memory_by_rank(plan, prediction))
    largest = std::max(largest, memory.total_bytes());
  return largest;
}

TextTable stage_table(const Plan& plan, const Prediction& prediction, const Inputs& inputs) {
  const std::vector<StagePeriod> periods =
      busy_periods(plan, cost_of_plan(plan, inputs.profile, inputs.topology, inputs.request));
  const LayerWeights layers(inputs.profile);
  TextTable table({{"stage"},
                   {"ranks", kLeft, 1},
                   {"depth", kRight, 3},
                   {"compute", kRight, 4},
                   {"sync", kRight, 5},
                   {"update", kRight, 7},
                   {"transfer", kRight, 6},
                   {"minibatch"},
                   {"bound by", kLeft, 2},
                   {"memory"},
                   {"layers", kLeft, 0, 12}});
  for (size_t s = 0; s < periods.size(); ++s) {
    const Stage& stage = plan.stages[s];
    const StagePeriod& period = periods[s];
    std::vector<std::string> names = layers.of(stage.nodes);
    if (names.empty()) names = stage.nodes;
    table.add({std::to_string(s), devices_text(stage, inputs.topology), depth_text(stage),
               format_seconds(period.compute_seconds), format_seconds(period.gradient_sync_seconds),
               format_seconds(period.step_seconds), format_seconds(period.link_seconds),
               format_seconds(period.total_seconds()), period.binding(),
               bytes(prediction.stages[s].memory.total_bytes()), layers_text(names)});
  }
  return table;
}

TextTable plan_table(const Plan& plan) {
  std::vector<TableColumn> columns = {
      {"stage"}, {"ranks", kLeft}, {"depth", kRight, 2}, {"nodes", kRight, 7}};
  if (plan.predicted) {
    columns.insert(columns.end(), {{"compute", kRight, 1},
                                   {"sync", kRight, 3},
                                   {"update", kRight, 6},
                                   {"send", kRight, 5},
                                   {"receive", kRight, 4},
                                   {"memory"}});
  }
  columns.push_back({"layers", kLeft, 0, 12});
  TextTable table(columns);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    std::vector<std::string> row = {std::to_string(s), ranks_text(stage.ranks), depth_text(stage),
                                    std::to_string(stage.nodes.size())};
    if (plan.predicted) {
      const StagePrediction& predicted = plan.predicted->stages.at(s);
      row.insert(row.end(),
                 {format_seconds(predicted.compute_seconds), format_seconds(predicted.gradient_sync_seconds),
                  format_seconds(predicted.step_seconds), format_seconds(predicted.send_seconds),
                  format_seconds(predicted.receive_seconds), bytes(predicted.memory.total_bytes())});
    }
    row.push_back(layers_text(stage));
    table.add(row);
  }
  return table;
}

std::string inference_text(const Plan& plan, const Inputs& inputs) {
  return inputs.profile.model + ": " + plan.shape_text() + " on " + std::to_string(plan.world_size) + " of " +
         std::to_string(inputs.topology.device_count()) + " devices, " + plan.predicted->bottleneck +
         "; a minibatch can come every " + format_seconds(plan.predicted->minibatch_seconds);
}

std::string memory_heading(const Inputs& inputs) {
  const int64_t slots = inputs.request.optimizer_slots;
  const bool assumed =
      std::any_of(inputs.settings.begin(), inputs.settings.end(), [](const Setting& setting) {
        return setting.name == "optimizer-slots" && setting.source.starts_with("default");
      });
  return "Memory of one rank, with " + std::to_string(slots) + (slots == 1 ? " value" : " values") +
         " of the optimizer for each parameter" +
         (assumed ? " (assumed, as of sgd with momentum; --optimizer NAME says it)" : "");
}

TextTable memory_table(const Prediction& prediction) {
  TextTable table({{"stage"},
                   {"weights"},
                   {"versions", kRight, 3},
                   {"gradients", kRight, 1},
                   {"optimizer", kRight, 2},
                   {"activations"},
                   {"messages", kRight, 4},
                   {"workspace", kRight, 5},
                   {"total"}});
  for (size_t s = 0; s < prediction.stages.size(); ++s) {
    const StageMemory& memory = prediction.stages[s].memory;
    table.add({std::to_string(s), bytes(memory.weights_bytes), bytes(memory.versions_bytes),
               bytes(memory.gradients_bytes), bytes(memory.optimizer_bytes), bytes(memory.activations_bytes),
               bytes(memory.messages_bytes), bytes(memory.workspace_bytes), bytes(memory.total_bytes())});
  }
  return table;
}

TextTable simulation_table(const Simulation& simulation, const std::vector<RankMemory>& memory,
                           const Prediction& prediction) {
  TextTable table({{"rank"},
                   {"stage"},
                   {"busy", kRight, 3},
                   {"receive wait", kRight, 2},
                   {"send wait", kRight, 4},
                   {"sync", kRight, 7},
                   {"bubble"},
                   {"in flight", kRight, 6},
                   {"versions", kRight, 8},
                   {"peak memory", kRight, 1},
                   {"planned", kRight, 5}});
  const double total = simulation.total_seconds;
  for (size_t r = 0; r < simulation.ranks.size(); ++r) {
    const SimulatedRank& rank = simulation.ranks[r];
    const double bubble = total > 0 ? 100 * (1 - rank.busy_seconds / total) : 0;
    std::vector<std::string> stages;
    int64_t planned = 0;
    for (int64_t i = 0; i < rank.placement.stages; ++i) {
      const int64_t stage = rank.placement.stage + i * rank.placement.apart;
      stages.push_back(std::to_string(stage));
      planned += prediction.stages[static_cast<size_t>(stage)].memory.total_bytes();
    }
    int64_t versions = 0;
    for (const int64_t count : memory[r].peak_versions) versions = std::max(versions, count);
    table.add({std::to_string(rank.number), join(stages, ","), format_seconds(rank.busy_seconds),
               format_seconds(rank.receive_wait_seconds), format_seconds(rank.send_wait_seconds),
               format_seconds(rank.reduce_seconds), number_text(bubble) + " %",
               std::to_string(rank.peak_in_flight), std::to_string(versions), bytes(memory[r].peak_bytes),
               bytes(planned)});
  }
  return table;
}

}  // namespace pipewright
