#include "optimizer/comparison.h"

#include <cmath>

#include "graph/error.h"
#include "graph/units.h"
#include "optimizer/report.h"

namespace pipewright {
namespace {

/// More devices for less than a percent are not worth having.
constexpr double kWorthwhile = 0.99;
constexpr double kFactor = 4;  // steps of bandwidth, three to each side
constexpr int kSteps = 3;
constexpr int kBisections = 7;  // 4^(1/128): about a percent

double seconds(const Contender& contender) { return contender.plan->predicted->minibatch_seconds; }

bool plain(const PlanRequest& request) {
  return request.schedule == "1f1b" && (request.weights.empty() || request.weights == "stash");
}

Contender contender(const Inputs& inputs, const std::string& name, const std::string& prefix) {
  Contender made;
  made.name = name;
  made.file = prefix + "." + name + ".json";
  Topology topology = inputs.topology;
  PlanRequest request = inputs.request;
  request.strategy = name;
  if (name == "one device") {
    made.file = "gpus=1.json";
    request.strategy = "dp";
    request.schedule = "1f1b";
    request.weights.clear();
    request.microbatches = 0;
    for (TopologyLevel& level : topology.levels) level.count = 1;
    if (!topology.devices.empty()) topology.devices.resize(1);
  } else if (name == "model-parallel") {
    request.schedule = "1f1b";
    request.weights.clear();
    request.microbatches = 0;
  } else if (name == "flush") {
    request.strategy = "best";
    request.schedule = "1f1b-flush";
  } else if (name == "2bw") {
    request.strategy = "best";
    request.weights = "2bw";
  }
  try {
    made.plan = make_plan(inputs.profile, topology, request);
  } catch (const InfeasibleError& error) {
    made.why_not = error.what();
    made.lacks_memory = dynamic_cast<const MemoryError*>(&error) != nullptr;
  }
  return made;
}

std::string kind_of(const Plan& plan) {
  if (plan.world_size == 1) return "one device";
  if (plan.stages.size() == 1) return "data parallelism";
  for (const Stage& stage : plan.stages) {
    if (stage.ranks.size() > 1) return "hybrid";
  }
  return "a straight pipeline";
}

struct Winner {
  std::string kind;
  std::string shape;
};

std::optional<Winner> winner_at(const Inputs& inputs, double factor) {
  Topology topology = inputs.topology;
  for (TopologyLevel& level : topology.levels) {
    level.bandwidth_bytes_per_second *= factor;
    if (level.bandwidth_bytes_per_second > 1e18) return std::nullopt;
  }
  PlanRequest request = inputs.request;
  request.strategy = "best";
  try {
    const Plan plan = make_plan(inputs.profile, topology, request);
    return Winner{kind_of(plan), plan.shape_text()};
  } catch (const InfeasibleError&) {
    return std::nullopt;
  }
}

/// The nearest turn to one side. Between two steps the planner itself is asked again and again.
std::optional<Turn> turn(const Inputs& inputs, const Winner& now, bool below) {
  double near = 1;
  for (int step = 0; step < kSteps; ++step) {
    double far = below ? near / kFactor : near * kFactor;
    std::optional<Winner> other = winner_at(inputs, far);
    if (!other) return std::nullopt;
    if (other->kind == now.kind) {
      near = far;
      continue;
    }
    for (int i = 0; i < kBisections; ++i) {
      const double middle = std::sqrt(near * far);
      std::optional<Winner> found = winner_at(inputs, middle);
      if (!found) return std::nullopt;
      if (found->kind == now.kind) {
        near = middle;
      } else {
        far = middle;
        other = std::move(found);
      }
    }
    return Turn{inputs.topology.levels[0].bandwidth_bytes_per_second * far, below, other->kind, other->shape};
  }
  return std::nullopt;
}

std::string advice_for(const Comparison& comparison, const Inputs& inputs) {
  const Contender& best = comparison.contenders[comparison.best];
  const Contender* parallel = nullptr;
  for (const Contender& each : comparison.contenders) {
    if (each.name == "dp" && each.plan) parallel = &each;
  }
  std::string text = "Take " + best.name + " (" + shape_and_recompute_text(*best.plan) + "): ";
  if (&best == parallel) {
    text += "the exchange of gradients costs less than any pipeline's unequal stages or transfers";
  } else if (best.name == "one device") {
    text +=
        "the links are too slow for this model, or it is too small: more devices only wait for each other";
  } else if (parallel != nullptr) {
    const std::string& bound = parallel->plan->predicted->bottleneck;
    text += number_text(seconds(*parallel) / seconds(best)) +
            " times as fast as data parallelism, which is bound by " + bound.substr(bound.find(':') + 2);
  } else {
    text += "the fastest that fits " + format_bytes(static_cast<double>(inputs.topology.memory_bytes)) +
            " a device; data parallelism does not";
  }
  text += ". It is bound by " + best.plan->predicted->bottleneck + ".";
  for (const Turn& each : comparison.turns) text += " " + turn_text(each) + ".";
  return text;
}

}  // namespace

std::string turn_text(const Turn& turn) {
  char rate[32];
  std::snprintf(rate, sizeof rate, "%.2g Gbit/s", turn.bytes_per_second * 8e-9);
  return std::string(turn.below ? "Below " : "Above ") + rate + " " + turn.kind + " wins (" + turn.shape +
         ")";
}

double one_device_seconds(const Inputs& inputs) {
  Inputs one = inputs;
  one.topology = flat_topology(1, inputs.topology.levels[0].bandwidth_bytes_per_second, 0, 0);
  one.request.strategy = "dp";
  one.request.demands = {};
  one.request.schedule = "1f1b";
  one.request.weights.clear();
  one.request.microbatches = 0;
  one.request.recompute = "never";
  one.request.class_profiles.clear();
  return make_plan(one.profile, one.topology, one.request).predicted->minibatch_seconds;
}

Comparison compare(const Inputs& inputs) {
  Comparison comparison;
  comparison.model = inputs.profile.model;
  comparison.devices = inputs.topology.device_count();
  comparison.one_device_seconds = one_device_seconds(inputs);
  const std::string prefix = "gpus=" + std::to_string(comparison.devices);
  std::vector<std::string> names = {"one device", "dp", "model-parallel", "straight", "hybrid"};
  if (plain(inputs.request) && inputs.request.microbatches == 0 && !inputs.request.use_all_devices &&
      cost_model_named(inputs.request.objective).simulated) {
    names.insert(names.end(), {"flush", "2bw"});
  }
  bool any = false;
  for (const std::string& name : names) {
    comparison.contenders.push_back(contender(inputs, name, prefix));
    const Contender& last = comparison.contenders.back();
    if (!last.plan) continue;
    if (!any || seconds(last) < kWorthwhile * seconds(comparison.contenders[comparison.best]))
      comparison.best = comparison.contenders.size() - 1;
    any = true;
  }
  if (!any) {
    throw InfeasibleError("no strategy fits: " + comparison.contenders[1].why_not,
                          "Give more memory, more devices, or a profile with a smaller minibatch.");
  }
  if (plain(inputs.request) && comparison.devices > 1) {
    if (const std::optional<Winner> now = winner_at(inputs, 1)) {
      for (const bool below : {true, false}) {
        if (const std::optional<Turn> found = turn(inputs, *now, below)) comparison.turns.push_back(*found);
      }
    }
  }
  comparison.advice = advice_for(comparison, inputs);
  return comparison;
}

TextTable comparison_table(const Comparison& comparison, const Inputs& inputs) {
  constexpr auto kLeft = TableColumn::Side::kLeft;
  constexpr auto kRight = TableColumn::Side::kRight;
  TextTable table({{"strategy", kLeft},
                   {"stages", kLeft, 0, 12},
                   {"ranks", kRight, 3},
                   {"minibatch"},
                   {"speed-up", kRight, 1},
                   {"samples/s", kRight, 4},
                   {"memory", kRight, 2},
                   {"bound by", kLeft, 0, 16}});
  for (const Contender& each : comparison.contenders) {
    if (!each.plan) {
      table.add(
          {each.name, "-", "-", "-", "-", "-", "-", each.lacks_memory ? "does not fit" : "not possible"});
      continue;
    }
    const Prediction& predicted = *each.plan->predicted;
    table.add({each.name, shape_and_recompute_text(*each.plan), std::to_string(each.plan->world_size),
               format_seconds(predicted.minibatch_seconds),
               number_text(comparison.one_device_seconds / predicted.minibatch_seconds) + "x",
               inputs.profile.minibatch_samples > 0 ? number_text(predicted.samples_per_second) : "-",
               format_bytes(static_cast<double>(largest_memory(predicted))), predicted.bottleneck});
  }
  return table;
}

Json comparison_json(const Comparison& comparison) {
  Json json;
  json["model"] = comparison.model;
  json["strategies"] = Json::array();
  for (const Contender& each : comparison.contenders) {
    Json row;
    row["strategy"] = each.name;
    if (each.plan) {
      const Prediction& predicted = *each.plan->predicted;
      row["shape"] = each.plan->shape_text();
      row["world_size"] = each.plan->world_size;
      row["recompute"] = Json::array();
      for (const Stage& stage : each.plan->stages) row["recompute"].push_back(stage.recompute);
      row["minibatch_seconds"] = predicted.minibatch_seconds;
      row["speed_up"] = comparison.one_device_seconds / predicted.minibatch_seconds;
      row["memory_bytes"] = largest_memory(predicted);
      row["bottleneck"] = predicted.bottleneck;
    } else {
      row["why_not"] = each.why_not;
    }
    json["strategies"].push_back(row);
  }
  json["best"] = comparison.contenders[comparison.best].name;
  json["turns"] = Json::array();
  for (const Turn& each : comparison.turns) {
    json["turns"].push_back({{"bandwidth_bytes_per_second", each.bytes_per_second},
                             {"side", each.below ? "below" : "above"},
                             {"kind", each.kind},
                             {"shape", each.shape}});
  }
  json["advice"] = comparison.advice;
  return json;
}

}  // namespace pipewright
