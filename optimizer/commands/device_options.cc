// The options that say what devices there are, and how they are connected.
#include <algorithm>
#include <charconv>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/limits.h"
#include "graph/nearest.h"
#include "graph/units.h"
#include "optimizer/commands/option_values.h"
#include "optimizer/commands/options.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

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

/// "4:1,2:0.5:8GiB": four devices as profiled, then two of half the speed with 8 GiB each.
std::vector<TopologyDevice> device_classes(const std::string& text) {
  std::vector<TopologyDevice> devices;
  for (const std::string& part : list_of(text)) {
    const auto wrong = [&](const std::string& what) {
      throw InputError("--device-classes: got " + in_quotes(part) + "; " + what,
                       "COUNT:SPEED or COUNT:SPEED:MEMORY, separated by commas: 4:1,2:0.5:8GiB. The speed is "
                       "relative to the profile's device, or the name of a class that --class-profile has.");
    };
    const std::vector<std::string> fields = list_of(part, ':');
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

// Of --topology alone.
Topology topology_of_file(const po::variables_map& values, std::vector<Setting>* settings) {
  const auto file = values["topology"].as<std::string>();
  for (const char* other : {"gpus", "levels", "bandwidths", "latency", "shared", "device-classes"}) {
    if (!given(values, other)) continue;
    throw InputError(std::string("--") + other + ": not together with --topology, which says the same",
                     "Leave one of them out, or change " + file + ".");
  }
  Topology topology = read_document<Topology>(file);
  settings->push_back({"topology", file, "command line"});
  settings->push_back({"gpus", std::to_string(topology.device_count()), file});
  return topology;
}

/// Devices of each level, from inside out.
struct Counts {
  std::vector<int64_t> of_levels;
  std::string source = "command line";
};

Counts counts_from(const po::variables_map& values, const std::vector<TopologyDevice>& classes,
                   int64_t devices_if_unsaid) {
  if (given(values, "gpus")) return {{in_range(values, "gpus", 1, kMostRanks)}};
  if (given(values, "levels")) {
    Counts counts;
    for (const std::string& part : list_of(values["levels"].as<std::string>()))
      counts.of_levels.push_back(whole_number(part, "levels", 1, kMostRanks));
    return counts;
  }
  if (!classes.empty()) return {{static_cast<int64_t>(classes.size())}};
  if (devices_if_unsaid > 0) return {{devices_if_unsaid}, "the plan"};
  throw InputError("the devices are missing: one of --gpus, --topology and --levels",
                   "For four devices: --gpus 4 --bandwidths 10Gbit/s --memory 16GiB");
}

std::vector<TopologyLevel> levels_from(const po::variables_map& values, const std::vector<int64_t>& counts) {
  const auto by = [&](const char* option) {
    return by_level(option, values[option].as<std::string>(), counts.size());
  };
  const std::vector<std::string> bandwidth = by("bandwidths"), latency = by("latency"), shared = by("shared");
  std::vector<TopologyLevel> levels;
  for (size_t i = 0; i < counts.size(); ++i) {
    TopologyLevel level;
    level.count = counts[i];
    level.bandwidth_bytes_per_second =
        positive(parse_bytes_per_second(bandwidth[i], "--bandwidths"), "bandwidths");
    level.latency_seconds = parse_seconds(latency[i], "--latency");
    level.shared = yes_or_no("shared", shared[i]);
    levels.push_back(level);
  }
  return levels;
}

void check_device_count(const std::vector<TopologyDevice>& classes, const std::vector<int64_t>& counts) {
  int64_t devices = 1;
  for (const int64_t count : counts) devices = std::min(devices * count, kMostRanks + 1);
  if (devices != static_cast<int64_t>(classes.size())) {
    throw InputError("--device-classes: makes " + std::to_string(classes.size()) +
                     " devices; --gpus or --levels say " + std::to_string(devices));
  }
}

// Of all options but --topology.
Topology topology_of_options(const po::variables_map& values, int64_t devices_if_unsaid,
                             std::vector<Setting>* settings) {
  if (given(values, "gpus") && given(values, "levels"))
    throw InputError("--levels: not together with --gpus, which says the same");
  Topology topology;
  if (given(values, "device-classes"))
    topology.devices = device_classes(values["device-classes"].as<std::string>());
  const Counts counts = counts_from(values, topology.devices, devices_if_unsaid);
  topology.levels = levels_from(values, counts.of_levels);
  if (!topology.devices.empty()) {
    check_device_count(topology.devices, counts.of_levels);
    settings->push_back({"device-classes", values["device-classes"].as<std::string>(), "command line"});
  }
  std::vector<std::string> words;
  for (const int64_t count : counts.of_levels) words.push_back(std::to_string(count));
  settings->push_back({given(values, "levels") ? "levels" : "gpus", join(words, ","), counts.source});
  for (const char* option : {"bandwidths", "latency", "shared"})
    settings->push_back({option, values[option].as<std::string>(), source_of(values, option)});
  return topology;
}

// --memory, or what the topology says. Of devices of --device-classes that have a memory the tighter counts.
void set_memory(const po::variables_map& values, Topology* topology, std::vector<Setting>* settings) {
  if (given(values, "memory")) {
    const auto memory = values["memory"].as<std::string>();
    topology->memory_bytes = parse_bytes(memory, "--memory");
    if (given(values, "topology"))
      for (TopologyDevice& device : topology->devices) device.memory_bytes = 0;
    if (topology->memory_bytes == 0)
      throw InputError("--memory: got " + in_quotes(memory) + "; expected more than 0");
    settings->push_back({"memory", memory, "command line"});
  } else if (given(values, "topology")) {
    const auto bytes = static_cast<double>(topology->memory_bytes);
    settings->push_back({"memory", topology->memory_bytes == 0 ? "no limit" : format_bytes(bytes),
                         values["topology"].as<std::string>()});
  } else {
    settings->push_back({"memory", "no limit", "default"});
  }
}

}  // namespace

void add_device_options(po::options_description* options) {
  options->add_options()                                                                        //
      ("gpus", po::value<int64_t>(), "devices")                                                 //
      ("topology", po::value<std::string>(), "topology.json: all that --gpus to --memory say")  //
      ("levels", po::value<std::string>(), "4,2: 2 servers of 4 devices; from inside out")      //
      ("bandwidths", po::value<std::string>()->default_value("10Gbit/s"),
       "of a link, per direction; one, or one for each level: 12GB/s,10Gbit/s")  //
      ("latency", po::value<std::string>()->default_value("50us"),
       "of one message; one, or one for each level")  //
      ("shared", po::value<std::string>()->default_value("no"),
       "yes: all below that level share one link")  //
      ("device-classes", po::value<std::string>(),
       "4:1,2:0.5:8GiB: 4 as profiled, 2 of half the speed; 2:slow: of a class")  //
      ("class-profile", po::value<std::vector<std::string>>(),
       "CLASS=FILE, for each class: its profile")  //
      ("memory", po::value<std::string>(), "of a device, at most: 16GiB; without: no limit");
}

Topology topology_from(const po::variables_map& values, int64_t devices_if_unsaid,
                       std::vector<Setting>* settings) {
  const bool of_file = given(values, "topology");
  Topology topology =
      of_file ? topology_of_file(values, settings) : topology_of_options(values, devices_if_unsaid, settings);
  set_memory(values, &topology, settings);
  topology.validate(of_file ? values["topology"].as<std::string>() : "command line");
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

}  // namespace pipewright
