// The commands that search: plan and compare.
#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/units.h"
#include "optimizer/commands.h"
#include "optimizer/optimizer.h"
#include "optimizer/options.h"
#include "optimizer/report.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

void add_question_options(po::options_description* options) {
  options->add_options()("profile", po::value<std::string>(), "profile.json, or PipeDream's graph.txt");
  add_device_options(options);
  add_pricing_options(options);
  add_run_options(options);
  options->add_options()                                                                        //
      ("use-all-devices", po::bool_switch(), "leave none idle, also where that gains nothing")  //
      ("json", po::bool_switch(), "print JSON instead of tables")                               //
      ("print-config", po::bool_switch(),
       "print every setting, its value and where it came from, and stop")  //
      ("time", po::bool_switch(), "print how long planning took, on standard error");
}

Inputs question_from(const po::variables_map& values) {
  Inputs inputs;
  const std::string file = required(values, "profile");
  inputs.settings.push_back({"profile", file, "command line"});
  inputs.topology = topology_from(values, 0, &inputs.settings);
  inputs.request = request_from(values, &inputs.settings);
  const bool output = values.count("output") != 0;
  inputs.settings.push_back(
      {"output", output ? values["output"].as<std::string>() : "none", output ? "command line" : "default"});
  if (!values["print-config"].as<bool>()) inputs.profile = read_profile(file);
  return inputs;
}

bool is_file_name(const std::string& path) {
  return std::filesystem::path(path).extension() == ".json" && !std::filesystem::is_directory(path);
}

std::filesystem::path made_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || !std::filesystem::is_directory(path)) {
    throw RunError("--output: cannot make folder " + in_quotes(path) + (error ? ": " + error.message() : ""));
  }
  return path;
}

/// Seconds of one minibatch on one device, without any exchange.
double one_device_seconds(const Inputs& inputs) {
  Inputs one = inputs;
  one.topology = flat_topology(1, inputs.topology.levels[0].bandwidth_bytes_per_second, 0, 0);
  one.request.strategy = "dp";
  one.request.demands = {};
  one.request.schedule = "1f1b";
  one.request.weights.clear();
  one.request.microbatches = 0;
  return make_plan(one.profile, one.topology, one.request).predicted->minibatch_seconds;
}

std::string minibatch_text(const Inputs& inputs, const Prediction& prediction) {
  std::string text = format_seconds(prediction.minibatch_seconds) + " per minibatch";
  if (inputs.profile.minibatch_samples > 0) {
    text += " of " + std::to_string(inputs.profile.minibatch_samples) + " (" +
            number_text(prediction.samples_per_second) + " samples/s)";
  }
  return text;
}

void print_plan(const Plan& plan, const Inputs& inputs, const PlanNotes& notes) {
  const Prediction& predicted = *plan.predicted;
  const double alone = one_device_seconds(inputs);
  std::cout << inputs.profile.model << ": " << plan.shape_text() << " on " << plan.world_size << " of "
            << inputs.topology.device_count() << " devices, " << minibatch_text(inputs, predicted) << ", "
            << number_text(alone / predicted.minibatch_seconds) << " times one device\n"
            << "Bound by " << predicted.bottleneck << "; nothing of this kind is faster than "
            << format_seconds(predicted.lower_bound_seconds) << "\n";
  if (!notes.exact) {
    std::cout << "The model has too many cuts to try all: searched along several orders of its nodes and "
                 "around the "
                 "best cuts\n";
  }
  std::cout << "\n"
            << stage_table(plan, predicted, inputs) << "\nMemory of one rank\n"
            << memory_table(predicted);
}

class Stopwatch {
 public:
  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

struct Contender {
  std::string name;
  std::string file;
  std::optional<Plan> plan;
  std::string why_not;
};

std::string advice(const std::vector<Contender>& contenders, int64_t memory_bytes) {
  const Contender* best = nullptr;
  const Contender* parallel = nullptr;
  const auto seconds = [](const Contender* c) { return c->plan->predicted->minibatch_seconds; };
  for (const Contender& contender : contenders) {
    if (!contender.plan) continue;
    // More devices for less than a percent are not worth having.
    if (best == nullptr || seconds(&contender) < 0.99 * seconds(best)) best = &contender;
    if (contender.name == "dp") parallel = &contender;
  }
  std::string text = "Take " + best->name + " (" + best->plan->shape_text() + "): ";
  if (best == parallel) {
    text += "the exchange of gradients costs less than any pipeline's unequal stages or transfers";
  } else if (best->name == "one device") {
    text +=
        "the links are too slow for this model, or it is too small: more devices only wait for each other";
  } else if (parallel != nullptr) {
    text += number_text(seconds(parallel) / seconds(best)) +
            " times as fast as data parallelism, which is bound by " +
            parallel->plan->predicted->bottleneck.substr(parallel->plan->predicted->bottleneck.find(':') + 2);
  } else {
    text += "the fastest that fits " + format_bytes(static_cast<double>(memory_bytes)) +
            " a device; data parallelism does not";
  }
  return text + ". It is bound by " + best->plan->predicted->bottleneck + ".";
}

}  // namespace

void run_plan(const Arguments& arguments) {
  po::options_description options("Options");
  add_question_options(&options);
  add_demand_options(&options);
  options.add_options()  //
      ("strategy", po::value<std::string>()->default_value("best"),
       "best, dp, straight, hybrid or model-parallel")  //
      ("output", po::value<std::string>(), "folder, where gpus=N.json is written, or file.json");
  const po::variables_map values =
      parse_options(arguments, options, "pipewright-optimizer plan --profile FILE --gpus N [--output DIR]");
  const Inputs inputs = question_from(values);
  if (values["print-config"].as<bool>()) {
    std::cout << settings_table(inputs.settings);
    return;
  }
  const Stopwatch stopwatch;
  PlanNotes notes;
  const Plan plan = make_plan(inputs.profile, inputs.topology, inputs.request, &notes);
  const double spent = stopwatch.milliseconds();
  if (values["json"].as<bool>()) {
    std::cout << document_text(plan);
  } else {
    print_plan(plan, inputs, notes);
  }
  if (values.count("output") != 0) {
    const auto output = values["output"].as<std::string>();
    std::filesystem::path file = output;
    if (is_file_name(output)) {
      if (file.has_parent_path()) made_folder(file.parent_path().string());
    } else {
      file = made_folder(output) / ("gpus=" + std::to_string(inputs.topology.device_count()) + ".json");
    }
    write_document(file, plan);
    std::cerr << "wrote " << file.string() << "\n";
  } else if (!values["json"].as<bool>()) {
    std::cerr << "the plan was not written: --output DIR writes it\n";
  }
  if (values["time"].as<bool>()) {
    std::cerr << "planning took " << number_text(spent) << " ms (" << notes.cuts << " cuts)\n";
  }
}

void run_compare(const Arguments& arguments) {
  po::options_description options("Options");
  add_question_options(&options);
  options.add_options()("output", po::value<std::string>(),
                        "folder for one plan file each: gpus=N.dp.json, ...");
  const po::variables_map values = parse_options(
      arguments, options, "pipewright-optimizer compare --profile FILE --gpus N [--output DIR]");
  Inputs inputs = question_from(values);
  if (values["print-config"].as<bool>()) {
    std::cout << settings_table(inputs.settings);
    return;
  }
  const Stopwatch stopwatch;
  const std::string prefix = "gpus=" + std::to_string(inputs.topology.device_count());
  std::vector<Contender> contenders;
  for (const std::string name : {"one device", "dp", "model-parallel", "straight", "hybrid"}) {
    Contender contender;
    contender.name = name;
    contender.file = prefix + "." + name + ".json";
    Topology topology = inputs.topology;
    PlanRequest request = inputs.request;
    request.strategy = name;
    if (name == "one device") {
      contender.file = "gpus=1.json";
      request.strategy = "dp";
      topology.levels[0].count = 1;
      topology.devices.clear();
      for (const TopologyDevice& device : inputs.topology.devices) {
        if (topology.devices.empty()) topology.devices.push_back(device);
      }
    }
    try {
      contender.plan = make_plan(inputs.profile, topology, request);
    } catch (const InfeasibleError& error) {
      contender.why_not = error.what();
    }
    contenders.push_back(std::move(contender));
  }
  const double spent = stopwatch.milliseconds();

  const double alone = one_device_seconds(inputs);
  TextTable table({"strategy", "stages", "ranks", "per minibatch", "speed-up", "samples/s",
                   "memory of a rank", "bound by"});
  Json json;
  json["model"] = inputs.profile.model;
  json["strategies"] = Json::array();
  std::string notes;
  bool any = false;
  for (const Contender& contender : contenders) {
    Json row;
    row["strategy"] = contender.name;
    if (!contender.plan) {
      table.add({contender.name, "-", "-", "-", "-", "-", "-", "does not fit"});
      notes += contender.why_not + "\n";
      row["why_not"] = contender.why_not;
      json["strategies"].push_back(row);
      continue;
    }
    any = true;
    const Plan& plan = *contender.plan;
    const Prediction& predicted = *plan.predicted;
    const double speed_up = alone / predicted.minibatch_seconds;
    const int64_t memory = largest_memory(predicted);
    table.add({contender.name, plan.shape_text(), std::to_string(plan.world_size),
               format_seconds(predicted.minibatch_seconds), number_text(speed_up) + "x",
               inputs.profile.minibatch_samples > 0 ? number_text(predicted.samples_per_second) : "-",
               format_bytes(static_cast<double>(memory)), predicted.bottleneck});
    row["shape"] = plan.shape_text();
    row["world_size"] = plan.world_size;
    row["minibatch_seconds"] = predicted.minibatch_seconds;
    row["speed_up"] = speed_up;
    row["memory_bytes"] = memory;
    row["bottleneck"] = predicted.bottleneck;
    if (values.count("output") != 0) {
      const std::filesystem::path file = made_folder(values["output"].as<std::string>()) / contender.file;
      write_document(file, plan);
      std::cerr << "wrote " << file.string() << "\n";
      row["plan"] = file.string();
    }
    json["strategies"].push_back(row);
  }
  if (!any) {
    throw InfeasibleError("no strategy fits: " + contenders[1].why_not,
                          "Give more memory, more devices, or a profile with a smaller minibatch.");
  }
  const std::string sentence = advice(contenders, inputs.topology.memory_bytes);
  if (values["json"].as<bool>()) {
    json["advice"] = sentence;
    std::cout << json_text(json);
  } else {
    std::cout << inputs.profile.model << " on " << inputs.topology.device_count() << " devices\n\n"
              << table.text() << "\n"
              << notes << sentence << "\n";
  }
  if (values["time"].as<bool>()) std::cerr << "planning took " << number_text(spent) << " ms\n";
}

}  // namespace pipewright
