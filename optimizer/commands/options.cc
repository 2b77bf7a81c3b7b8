#include "optimizer/commands/options.h"

#include <algorithm>
#include <charconv>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/limits.h"
#include "graph/nearest.h"
#include "graph/pipedream.h"
#include "graph/pipeline_rules.h"
#include "graph/rows.h"
#include "graph/units.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/recompute.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

/// Demands for stages beyond are slips.
constexpr int64_t kMostNamedStage = 255;

std::string source_of(const po::variables_map& values, const std::string& name) {
  return values[name].defaulted() ? "default" : "command line";
}

bool given(const po::variables_map& values, const std::string& name) {
  return values.count(name) != 0 && !values[name].defaulted();
}

double positive(double value, const std::string& option) {
  if (value > 0) return value;
  throw InputError("--" + option + ": got " + std::to_string(value) + "; expected more than 0");
}

std::vector<std::string> list_of(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

int64_t whole_number(const std::string& text, const std::string& option, int64_t low, int64_t high) {
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size() || value < low || value > high) {
    throw InputError("--" + option + ": got " + in_quotes(text) + "; expected a whole number in " +
                     std::to_string(low) + ".." + std::to_string(high));
  }
  return value;
}

/// "LEFT:NUMBER".
std::pair<std::string, int64_t> pair_of(const std::string& text, char separator, const std::string& option,
                                        const std::string& example, int64_t low, int64_t high) {
  const size_t at = text.rfind(separator);
  if (at == std::string::npos || at == 0) {
    throw InputError("--" + option + ": got " + in_quotes(text) + "; expected " + example);
  }
  return {text.substr(0, at), whole_number(text.substr(at + 1), option, low, high)};
}

/// One value for each level, or one for all of them.
std::vector<std::string> by_level(const std::string& option, const std::string& text, size_t levels) {
  std::vector<std::string> parts = list_of(text);
  if (parts.size() == 1) parts.resize(levels, parts[0]);
  if (parts.size() == levels) return parts;
  throw InputError("--" + option + ": got " + std::to_string(parts.size()) + " values for " +
                       std::to_string(levels) + (levels == 1 ? " level" : " levels") + " of devices",
                   "One value for all levels, or one for each, from the inside out: --levels 4,2 "
                   "--bandwidths 12GB/s,10Gbit/s is 2 servers of 4 devices.");
}

bool yes_or_no(const std::string& option, const std::string& text) {
  if (text == "yes" || text == "no") return text == "yes";
  throw InputError("--" + option + ": got " + in_quotes(text) + "; expected yes or no for each level");
}

/// "4:1,2:0.5:8GiB": four devices as profiled, then two of half the speed with 8 GiB each.
std::vector<TopologyDevice> device_classes(const std::string& text) {
  std::vector<TopologyDevice> devices;
  for (const std::string& part : list_of(text)) {
    const auto wrong = [&](const std::string& what) {
      throw InputError("--device-classes: got " + in_quotes(part) + "; " + what,
                       "COUNT:SPEED or COUNT:SPEED:MEMORY, separated by commas: 4:1,2:0.5:8GiB. The speed is "
                       "relative to the profile's device, or the name of a class that --class-profile has.");
    };
    std::vector<std::string> fields(1);
    for (const char c : part) {
      if (c == ':') {
        fields.emplace_back();
      } else {
        fields.back() += c;
      }
    }
    if (fields.size() < 2 || fields.size() > 3) wrong("expected two or three fields");
    const int64_t count = whole_number(fields[0], "device-classes", 1, kMostRanks);
    TopologyDevice device;
    const char* const end = fields[1].data() + fields[1].size();
    const auto [rest, error] = std::from_chars(fields[1].data(), end, device.relative_speed);
    if (error == std::errc::invalid_argument && !fields[1].empty()) {
      device.relative_speed = 1;
      device.device_class = fields[1];
    } else if (error != std::errc() || rest != end || !(device.relative_speed >= 1e-6) ||
               device.relative_speed > 1e6) {
      wrong("its speed is neither a number from 1e-6 to 1e6 nor the name of a class");
    }
    if (fields.size() == 3) device.memory_bytes = parse_bytes(fields[2], "--device-classes");
    if (static_cast<int64_t>(devices.size()) + count > kMostRanks) wrong("too many devices");
    devices.insert(devices.end(), static_cast<size_t>(count), device);
  }
  return devices;
}

}  // namespace

void add_device_options(po::options_description* options) {
  options->add_options()                                                                               //
      ("gpus", po::value<int64_t>(), "devices")                                                        //
      ("topology", po::value<std::string>(), "topology.json, instead of the options above and below")  //
      ("levels", po::value<std::string>(), "4,2: 2 servers of 4 devices; from inside out")             //
      ("bandwidths", po::value<std::string>()->default_value("10Gbit/s"),
       "of a link, per direction; one, or one for each level: 12GB/s,10Gbit/s")  //
      ("latency", po::value<std::string>()->default_value("50us"),
       "of one message; one, or one for each level")  //
      ("shared", po::value<std::string>()->default_value("no"),
       "yes: all below that level share one link; one, or one for each level")  //
      ("device-classes", po::value<std::string>(),
       "4:1,2:0.5:8GiB: 4 as profiled, 2 of half the speed; 2:slow: of a class")  //
      ("class-profile", po::value<std::vector<std::string>>(),
       "CLASS=FILE, for each class: its profile")  //
      ("memory", po::value<std::string>(), "of a device: 16GiB; without it no limit");
}

void add_pricing_options(po::options_description* options) {
  options->add_options()  //
      ("objective", po::value<std::string>()->default_value("pipewright"),
       ("cost model: " + join(names_of(cost_models()), ", ") +
        "; plan only: " + join(names_of(published_questions()), ", "))
           .c_str())  //
      ("optimizer-slots", po::value<int64_t>()->default_value(1),
       "values the update rule keeps per parameter: SGD 0, momentum 1, Adam 2");
}

namespace {

std::string schedules_where(bool drains) {
  std::string names;
  for (const ScheduleFacts& schedule : schedule_table())
    if (schedule.trains() && schedule.drains() == drains)
      names += (names.empty() ? "" : ", ") + std::string(schedule.name);
  return names;
}

}  // namespace

void add_run_options(po::options_description* options) {
  options->add_options()  //
      ("schedule", po::value<std::string>()->default_value("1f1b"),
       ("one of " + schedules_where(false) + "; or, drained at every update: " + schedules_where(true))
           .c_str())  //
      ("weights", po::value<std::string>(),
       "version rule: stash (the default), 2bw or vertical with 1f1b; flush with the others")              //
      ("microbatches", po::value<int64_t>(), "of an update, with flush and 2bw; without: a few a device")  //
      ("stages-per-rank", po::value<int64_t>()->default_value(2), "with --schedule interleaved")           //
      ("recompute", po::value<std::string>()->default_value("auto"),
       ("run forwards twice: " + join(names_of(recompute_choices()), ", ")).c_str());
}

void add_demand_options(po::options_description* options) {
  options->add_options()                                                                      //
      ("max-stages", po::value<int64_t>(), "at most so many stages")                          //
      ("replicas", po::value<std::string>(), "0:3,1:1: 3 replicas of stage 0, 1 of stage 1")  //
      ("pin", po::value<std::vector<std::string>>(), "LAYER=STAGE, again for each layer: features.3=0");
}

StageDemands replicas_from(const po::variables_map& values, std::vector<Setting>* settings) {
  StageDemands demands;
  if (values.count("replicas") == 0) return demands;
  const auto text = values["replicas"].as<std::string>();
  for (const std::string& part : list_of(text)) {
    const auto [stage_text, replicas] =
        pair_of(part, ':', "replicas", "STAGE:REPLICAS, separated by commas: 0:3,1:1", 1, kMostRanks);
    const int64_t stage = whole_number(stage_text, "replicas", 0, kMostNamedStage);
    if (!demands.replicas.emplace(stage, replicas).second)
      throw InputError("--replicas: names stage " + std::to_string(stage) + " twice");
  }
  settings->push_back({"replicas", text, "command line"});
  return demands;
}

StageDemands demands_from(const po::variables_map& values, std::vector<Setting>* settings) {
  StageDemands demands;
  if (values.count("max-stages") != 0) {
    demands.most_stages = in_range(values, "max-stages", 1, kMostRanks);
    settings->push_back({"max-stages", std::to_string(demands.most_stages), "command line"});
  }
  demands.replicas = replicas_from(values, settings).replicas;
  if (values.count("pin") != 0) {
    for (const std::string& part : values["pin"].as<std::vector<std::string>>()) {
      const auto [layer, stage] = pair_of(part, '=', "pin", "LAYER=STAGE: features.3=0", 0, kMostNamedStage);
      const auto [it, fresh] = demands.pins.emplace(layer, stage);
      if (!fresh && it->second != stage) {
        throw InputError("--pin: layer " + in_quotes(layer) + " is pinned to stages " +
                         std::to_string(it->second) + " and " + std::to_string(stage));
      }
      settings->push_back({"pin", part, "command line"});
    }
  }
  return demands;
}

std::string required(const po::variables_map& values, const std::string& name) {
  if (values.count(name) != 0) return values[name].as<std::string>();
  throw InputError("option --" + name + " is missing", "--help lists the options.");
}

int64_t in_range(const po::variables_map& values, const std::string& name, int64_t low, int64_t high) {
  const auto value = values[name].as<int64_t>();
  if (value >= low && value <= high) return value;
  throw InputError("--" + name + ": " + std::to_string(value) + " is not in " + std::to_string(low) + ".." +
                   std::to_string(high));
}

Profile read_profile(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  if (looks_like_pipedream_profile(text)) return parse_pipedream_profile(text, file.string());
  return parse_document<Profile>(text, file.string());
}

Plan read_plan(const po::variables_map& values) { return read_document<Plan>(required(values, "plan")); }

Topology topology_from(const po::variables_map& values, int64_t devices_if_unsaid,
                       std::vector<Setting>* settings) {
  const auto set = [&](const std::string& name, const std::string& value, const std::string& source) {
    settings->push_back({name, value, source});
  };
  Topology topology;
  if (given(values, "topology")) {
    const auto file = values["topology"].as<std::string>();
    for (const char* other : {"gpus", "levels", "bandwidths", "latency", "shared", "device-classes"}) {
      if (!given(values, other)) continue;
      throw InputError(std::string("--") + other + ": not together with --topology, which says the same",
                       "Leave one of them out, or change " + file + ".");
    }
    topology = read_document<Topology>(file);
    set("topology", file, "command line");
    set("gpus", std::to_string(topology.device_count()), file);
  } else {
    std::vector<int64_t> counts;
    std::string source = "the plan";
    if (given(values, "gpus") && given(values, "levels")) {
      throw InputError("--levels: not together with --gpus, which says the same");
    }
    std::vector<TopologyDevice> classes;
    if (given(values, "device-classes")) classes = device_classes(values["device-classes"].as<std::string>());
    if (given(values, "gpus")) {
      counts = {in_range(values, "gpus", 1, kMostRanks)};
      source = "command line";
    } else if (given(values, "levels")) {
      for (const std::string& part : list_of(values["levels"].as<std::string>()))
        counts.push_back(whole_number(part, "levels", 1, kMostRanks));
      source = "command line";
    } else if (!classes.empty()) {
      counts = {static_cast<int64_t>(classes.size())};
      source = "command line";
    } else if (devices_if_unsaid > 0) {
      counts = {devices_if_unsaid};
    } else {
      throw InputError("the devices are missing: one of --gpus, --topology and --levels",
                       "For four devices: --gpus 4 --bandwidths 10Gbit/s --memory 16GiB");
    }
    const auto bandwidths = values["bandwidths"].as<std::string>();
    const auto latencies = values["latency"].as<std::string>();
    const auto shared = values["shared"].as<std::string>();
    const std::vector<std::string> bandwidth = by_level("bandwidths", bandwidths, counts.size());
    const std::vector<std::string> latency = by_level("latency", latencies, counts.size());
    const std::vector<std::string> sharing = by_level("shared", shared, counts.size());
    for (size_t i = 0; i < counts.size(); ++i) {
      TopologyLevel level;
      level.count = counts[i];
      level.bandwidth_bytes_per_second =
          positive(parse_bytes_per_second(bandwidth[i], "--bandwidths"), "bandwidths");
      level.latency_seconds = parse_seconds(latency[i], "--latency");
      level.shared = yes_or_no("shared", sharing[i]);
      topology.levels.push_back(level);
    }
    if (!classes.empty()) {
      int64_t devices = 1;
      for (const int64_t count : counts) devices = std::min(devices * count, kMostRanks + 1);
      if (devices != static_cast<int64_t>(classes.size())) {
        throw InputError("--device-classes: makes " + std::to_string(classes.size()) +
                         " devices; --gpus or --levels say " + std::to_string(devices));
      }
      topology.devices = std::move(classes);
      set("device-classes", values["device-classes"].as<std::string>(), "command line");
    }
    std::vector<std::string> words;
    for (const int64_t count : counts) words.push_back(std::to_string(count));
    set(given(values, "levels") ? "levels" : "gpus", join(words, ","), source);
    set("bandwidths", bandwidths, source_of(values, "bandwidths"));
    set("latency", latencies, source_of(values, "latency"));
    set("shared", shared, source_of(values, "shared"));
  }
  if (given(values, "memory")) {
    const auto memory = values["memory"].as<std::string>();
    topology.memory_bytes = parse_bytes(memory, "--memory");
    for (TopologyDevice& device : topology.devices) device.memory_bytes = 0;
    if (topology.memory_bytes == 0)
      throw InputError("--memory: got " + in_quotes(memory) + "; expected more than 0");
    set("memory", memory, "command line");
  } else if (given(values, "topology")) {
    set("memory",
        topology.memory_bytes == 0 ? "no limit" : format_bytes(static_cast<double>(topology.memory_bytes)),
        values["topology"].as<std::string>());
  } else {
    set("memory", "no limit", "default");
  }
  topology.validate(given(values, "topology") ? values["topology"].as<std::string>() : "command line");
  return topology;
}

ClassProfiles class_profiles_from(const po::variables_map& values, const Topology& topology,
                                  std::vector<Setting>* settings) {
  ClassProfiles profiles;
  if (values.count("class-profile") == 0) return profiles;
  std::vector<std::string> named;
  for (const TopologyDevice& device : topology.devices) {
    const bool known = std::find(named.begin(), named.end(), device.device_class) != named.end();
    if (!device.device_class.empty() && !known) named.push_back(device.device_class);
  }
  for (const std::string& part : values["class-profile"].as<std::vector<std::string>>()) {
    const size_t at = part.find('=');
    if (at == std::string::npos || at == 0 || at + 1 == part.size())
      throw InputError("--class-profile: got " + in_quotes(part) +
                       "; expected CLASS=FILE: slow=profile.json");
    const std::string name = part.substr(0, at);
    if (std::find(named.begin(), named.end(), name) == named.end()) {
      throw InputError(
          "--class-profile: no device is of class " + in_quotes(name) + suggestion(name, named),
          "Classes are named by --device-classes 4:1,2:slow or by `class` in a topology's devices.");
    }
    if (!profiles.emplace(name, read_profile(part.substr(at + 1))).second)
      throw InputError("--class-profile: names class " + in_quotes(name) + " twice");
    settings->push_back({"class-profile", part, "command line"});
  }
  return profiles;
}

PlanRequest request_from(const po::variables_map& values, std::vector<Setting>* settings) {
  PlanRequest request;
  request.objective = values["objective"].as<std::string>();
  request.optimizer_slots = in_range(values, "optimizer-slots", 0, 8);
  settings->push_back({"objective", request.objective, source_of(values, "objective")});
  settings->push_back(
      {"optimizer-slots", std::to_string(request.optimizer_slots), source_of(values, "optimizer-slots")});
  if (values.count("strategy") != 0) {
    request.strategy = values["strategy"].as<std::string>();
    settings->push_back({"strategy", request.strategy, source_of(values, "strategy")});
  }
  request.demands = demands_from(values, settings);
  if (values.count("for") != 0) {
    const auto purpose = values["for"].as<std::string>();
    if (purpose != "training" && purpose != "inference")
      throw InputError("--for: got " + in_quotes(purpose) + "; expected training or inference");
    const bool inference = purpose == "inference";
    if (inference != (values.count("period") != 0)) {
      throw InputError(inference ? "--period is missing: how often a minibatch comes, with --for inference"
                                 : "--period: only with --for inference",
                       "--for inference --period 20ms: the least latency at 50 minibatches a second.");
    }
    if (inference) {
      for (const char* other : {"schedule", "weights", "microbatches", "strategy", "max-stages", "replicas",
                                "pin", "stages-per-rank", "recompute"}) {
        if (given(values, other))
          throw InputError(std::string("--") + other + ": not together with --for inference");
      }
      request.inference_period_seconds =
          positive(parse_seconds(values["period"].as<std::string>(), "--period"), "period");
    }
    settings->push_back({"for", purpose, source_of(values, "for")});
    if (inference) settings->push_back({"period", values["period"].as<std::string>(), "command line"});
  }
  if (values.count("schedule") != 0) {
    request.schedule = values["schedule"].as<std::string>();
    request.stages_per_rank = in_range(values, "stages-per-rank", 2, 64);
    if (values.count("weights") != 0) request.weights = values["weights"].as<std::string>();
    if (values.count("microbatches") != 0)
      request.microbatches = in_range(values, "microbatches", 1, kMostInFlight);
    settings->push_back({"schedule", request.schedule, source_of(values, "schedule")});
    settings->push_back({"weights", request.weights.empty() ? "that of the schedule" : request.weights,
                         request.weights.empty() ? "default" : "command line"});
    settings->push_back(
        {"microbatches",
         request.microbatches == 0 ? "a few for each device" : std::to_string(request.microbatches),
         request.microbatches == 0 ? "default" : "command line"});
    request.recompute = values["recompute"].as<std::string>();
    settings->push_back({"recompute", request.recompute, source_of(values, "recompute")});
  }
  if (values.count("use-all-devices") != 0) {
    request.use_all_devices = values["use-all-devices"].as<bool>();
    settings->push_back(
        {"use-all-devices", request.use_all_devices ? "yes" : "no", source_of(values, "use-all-devices")});
  }
  return request;
}

}  // namespace pipewright
