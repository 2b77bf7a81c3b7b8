#include "optimizer/commands/plan_inputs.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/text_table.h"
#include "graph/units.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/inference_plan.h"
#include "optimizer/plan/memory_check.h"

namespace pipewright {

namespace po = boost::program_options;

void add_plan_options(po::options_description* options) {
  options->add_options()                                 //
      ("plan", po::value<std::string>(), "gpus=N.json")  //
      ("profile", po::value<std::string>(), "profile.json, or PipeDream's graph.txt");
  add_device_options(options);
  add_pricing_options(options);
  options->add_options()("cached", po::bool_switch(), "the frozen layers' values come from a cache");
  add_wide_option(options);
}

Inputs inputs_for(const po::variables_map& values, const Plan& plan, int64_t devices) {
  Inputs inputs;
  inputs.profile = read_profile(required(values, "profile"));
  inputs.topology = topology_from(values, devices, &inputs.settings);
  inputs.request = request_from(values, &inputs.settings);
  inputs.request.class_profiles = class_profiles_from(values, inputs.topology, &inputs.settings);
  if (!plan.graph_digest.empty() && !inputs.profile.graph_digest.empty() &&
      plan.graph_digest != inputs.profile.graph_digest) {
    throw PlanError("plan: was made for graph " + plan.graph_digest + "; the profile is of graph " +
                        inputs.profile.graph_digest,
                    "The model or its options changed: plan again with the new profile.");
  }
  if (!plan.profile_digest.empty() && plan.profile_digest != document_digest(inputs.profile)) {
    std::cerr << "note: the plan was made with another profile of this model\n";
  }
  inputs.profile =
      frozen_profile(inputs.profile, plan.frozen_layers, values["cached"].as<bool>(), "plan: frozen_layers");
  return inputs;
}

void require_memory(const Plan& plan, const Prediction& prediction, const Inputs& inputs) {
  // What recomputing would do is priced only if it is asked.
  if (memory_deficits(plan, prediction, prediction, inputs.topology).empty()) return;
  Plan recomputing = plan;
  for (Stage& stage : recomputing.stages) {
    stage.recompute = true;
    stage.recompute_ratio = 1;
  }
  // Answers have nothing to recompute.
  check_plan_memory(plan, prediction,
                    is_for_inference(plan)
                        ? prediction
                        : evaluate_plan(recomputing, inputs.profile, inputs.topology, inputs.request),
                    inputs.topology, inputs.profile.minibatch_samples);
}

std::string room_text(const Plan& plan, const Prediction& prediction, const Topology& topology) {
  const auto deficits = memory_deficits(plan, prediction, prediction, topology);
  if (deficits.empty()) return "";
  const auto worst = std::max_element(
      deficits.begin(), deficits.end(),
      [](const MemoryDeficit& a, const MemoryDeficit& b) { return a.lacking_bytes() < b.lacking_bytes(); });
  const auto text = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  return "It does not fit: rank " + std::to_string(worst->rank) + " (stage " + std::to_string(worst->stage) +
         ") holds " + text(worst->memory.total_bytes()) + " of tensors, " + text(worst->lacking_bytes()) +
         " more than its " + text(worst->limit_bytes) +
         "; `pipewright-optimizer check` with --profile and the same options says what would help.";
}

void write_text(const std::string& file, const std::string& text) {
  write_file(file, text);
  std::cerr << "wrote " << file << "\n";
}

std::string clipped(const std::string& drawing, int64_t width) {
  if (width == kAnyWidth) return drawing;
  std::istringstream lines(drawing);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    if (static_cast<int64_t>(line.size()) > width) {
      const size_t last = line.rfind(' ', static_cast<size_t>(std::max<int64_t>(width - 1, 0)));
      line = line.substr(0, last == std::string::npos ? 0 : last);
      line.erase(line.find_last_not_of(' ') + 1);
      line += " >";
    }
    text += line + "\n";
  }
  return text;
}

std::string suffix_of(const std::string& file) { return std::filesystem::path(file).extension().string(); }

PlanCost cost_as_run(const Plan& plan, const Inputs& inputs) {
  return cost_of_plan(plan, inputs.profile, inputs.topology, inputs.request);
}

}  // namespace pipewright
