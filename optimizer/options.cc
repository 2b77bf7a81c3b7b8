#include "optimizer/options.h"

#include "graph/document.h"
#include "graph/error.h"
#include "graph/limits.h"
#include "graph/pipedream.h"
#include "graph/units.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

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

[[noreturn]] void fail_levels(const std::string& option, const std::string& text) {
  throw InputError(
      "--" + option + ": got " + in_quotes(text) + "; this version plans for one level of devices",
      "Hierarchical planning is not in this version. Give one value: all devices as --gpus N, and the "
      "bandwidth of the slowest link between them.");
}

int64_t level_count(const std::string& text) {
  if (text.find(',') != std::string::npos) fail_levels("levels", text);
  size_t used = 0;
  int64_t count = 0;
  try {
    count = std::stoll(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || count < 1 || count > kMostRanks) {
    throw InputError("--levels: got " + in_quotes(text) + "; expected a number of devices in 1.." +
                     std::to_string(kMostRanks));
  }
  return count;
}

}  // namespace

void add_device_options(po::options_description* options) {
  options->add_options()                                                                               //
      ("gpus", po::value<int64_t>(), "devices")                                                        //
      ("topology", po::value<std::string>(), "topology.json, instead of the options above and below")  //
      ("levels", po::value<std::string>(), "devices, as a list of levels; this version takes one")     //
      ("bandwidths", po::value<std::string>()->default_value("10Gbit/s"),
       "of each device's link, per direction: 12GB/s, 10Gbit/s")                      //
      ("latency", po::value<std::string>()->default_value("50us"), "of one message")  //
      ("memory", po::value<std::string>(), "each device may hold: 16GiB; without it there is no limit");
}

void add_pricing_options(po::options_description* options) {
  options->add_options()  //
      ("objective", po::value<std::string>()->default_value("pipewright"),
       "cost model: pipewright, or pipedream (the original's formula)")  //
      ("optimizer-slots", po::value<int64_t>()->default_value(1),
       "values the update rule keeps per parameter: SGD 0, momentum 1, Adam 2");
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
    for (const char* other : {"gpus", "levels", "bandwidths", "latency"}) {
      if (!given(values, other)) continue;
      throw InputError(std::string("--") + other + ": not together with --topology, which says the same",
                       "Leave one of them out, or change " + file + ".");
    }
    topology = read_document<Topology>(file);
    set("topology", file, "command line");
    set("gpus", std::to_string(topology.device_count()), file);
  } else {
    int64_t devices = devices_if_unsaid;
    std::string source = "the plan";
    if (given(values, "gpus") && given(values, "levels")) {
      throw InputError("--levels: not together with --gpus, which says the same");
    }
    if (given(values, "gpus")) devices = in_range(values, "gpus", 1, kMostRanks);
    if (given(values, "levels")) devices = level_count(values["levels"].as<std::string>());
    if (given(values, "gpus") || given(values, "levels")) source = "command line";
    if (devices == 0) {
      throw InputError("the devices are missing: one of --gpus, --topology and --levels",
                       "For four devices: --gpus 4 --bandwidths 10Gbit/s --memory 16GiB");
    }
    const auto bandwidth = values["bandwidths"].as<std::string>();
    if (bandwidth.find(',') != std::string::npos) fail_levels("bandwidths", bandwidth);
    const auto latency = values["latency"].as<std::string>();
    topology =
        flat_topology(devices, positive(parse_bytes_per_second(bandwidth, "--bandwidths"), "bandwidths"),
                      parse_seconds(latency, "--latency"), 0);
    set("gpus", std::to_string(devices), source);
    set("bandwidths", bandwidth, source_of(values, "bandwidths"));
    set("latency", latency, source_of(values, "latency"));
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
  if (values.count("use-all-devices") != 0) {
    request.use_all_devices = values["use-all-devices"].as<bool>();
    settings->push_back(
        {"use-all-devices", request.use_all_devices ? "yes" : "no", source_of(values, "use-all-devices")});
  }
  return request;
}

}  // namespace pipewright
