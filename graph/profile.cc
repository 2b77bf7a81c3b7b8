#include "graph/profile.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "graph/limits.h"
#include "graph/node_sets.h"

namespace pipewright {
namespace {

/// Both or neither.
void read_pair(JsonReader& reader, const char* forward_key, const char* backward_key,
               std::optional<double>* forward, std::optional<double>* backward) {
  if (!reader.has(forward_key) && !reader.has(backward_key)) return;
  *forward = reader.number(forward_key, 0, kMostSeconds);
  *backward = reader.number(backward_key, 0, kMostSeconds);
}

void write_pair(Json& json, const char* forward_key, const char* backward_key,
                const std::optional<double>& forward, const std::optional<double>& backward) {
  if (!forward || !backward) return;
  json[forward_key] = *forward;
  json[backward_key] = *backward;
}

constexpr const char* kForwardLaunch = "forward_launch_seconds";
constexpr const char* kBackwardLaunch = "backward_launch_seconds";
constexpr const char* kForwardGap = "forward_gap_seconds";
constexpr const char* kBackwardGap = "backward_gap_seconds";

ProfiledNode node_from_json(JsonReader& reader) {
  reader.expect({"name", "layer", "inputs", "outputs", "forward_seconds", "backward_input_seconds",
                 "backward_weight_seconds", "spread", "saved_bytes", "workspace_bytes", "keeps",
                 "parameter_bytes", "trainable_parameter_bytes", "buffer_bytes", "parameters", kForwardLaunch,
                 kBackwardLaunch, kForwardGap, kBackwardGap});
  ProfiledNode node;
  node.name = reader.string("name");
  node.layer = reader.string("layer");
  node.inputs = reader.strings("inputs");
  for (JsonReader& output : reader.objects("outputs")) {
    output.expect({"name", "bytes"});
    node.outputs.push_back({output.string("name"), output.integer("bytes", 0, kMostBytes)});
    output.finish();
  }
  node.forward_seconds = reader.number("forward_seconds", 0, kMostSeconds);
  node.backward_input_seconds = reader.number("backward_input_seconds", 0, kMostSeconds);
  node.backward_weight_seconds = reader.number("backward_weight_seconds", 0, kMostSeconds);
  node.spread = reader.number("spread", 0, kLargestNumber);
  node.saved_bytes = reader.integer("saved_bytes", 0, kMostBytes);
  if (reader.has("workspace_bytes")) node.workspace_bytes = reader.integer("workspace_bytes", 0, kMostBytes);
  if (reader.has("keeps")) node.keeps = reader.strings("keeps");
  node.parameter_bytes = reader.integer("parameter_bytes", 0, kMostBytes);
  node.trainable_parameter_bytes = reader.integer("trainable_parameter_bytes", 0, kMostBytes);
  node.buffer_bytes = reader.integer("buffer_bytes", 0, kMostBytes);
  node.parameters = reader.strings("parameters");
  read_pair(reader, kForwardLaunch, kBackwardLaunch, &node.forward_launch_seconds,
            &node.backward_launch_seconds);
  read_pair(reader, kForwardGap, kBackwardGap, &node.forward_gap_seconds, &node.backward_gap_seconds);
  reader.finish();
  return node;
}

Json node_to_json(const ProfiledNode& node) {
  Json outputs = Json::array();
  for (const ProfiledValue& output : node.outputs)
    outputs.push_back({{"name", output.name}, {"bytes", output.bytes}});
  Json json;
  json["name"] = node.name;
  json["layer"] = node.layer;
  json["inputs"] = node.inputs;
  json["outputs"] = std::move(outputs);
  json["forward_seconds"] = node.forward_seconds;
  json["backward_input_seconds"] = node.backward_input_seconds;
  json["backward_weight_seconds"] = node.backward_weight_seconds;
  json["spread"] = node.spread;
  json["saved_bytes"] = node.saved_bytes;
  if (node.workspace_bytes > 0) json["workspace_bytes"] = node.workspace_bytes;
  if (!node.keeps.empty()) json["keeps"] = node.keeps;
  json["parameter_bytes"] = node.parameter_bytes;
  json["trainable_parameter_bytes"] = node.trainable_parameter_bytes;
  json["buffer_bytes"] = node.buffer_bytes;
  json["parameters"] = node.parameters;
  write_pair(json, kForwardLaunch, kBackwardLaunch, node.forward_launch_seconds,
             node.backward_launch_seconds);
  write_pair(json, kForwardGap, kBackwardGap, node.forward_gap_seconds, node.backward_gap_seconds);
  return json;
}

}  // namespace

std::optional<double> ProfiledNode::launch_seconds() const {
  if (!forward_launch_seconds || !backward_launch_seconds) return std::nullopt;
  return *forward_launch_seconds + *backward_launch_seconds;
}

PassSeconds ProfiledNode::launch_pass() const {
  return {forward_launch_seconds.value_or(0), backward_launch_seconds.value_or(0)};
}

PassSeconds ProfiledNode::gap_pass() const {
  return {forward_gap_seconds.value_or(0), backward_gap_seconds.value_or(0)};
}

PassSeconds& PassSeconds::operator+=(const PassSeconds& other) {
  forward_seconds += other.forward_seconds;
  backward_seconds += other.backward_seconds;
  return *this;
}

PassSeconds& PassSeconds::operator-=(const PassSeconds& other) {
  forward_seconds -= other.forward_seconds;
  backward_seconds -= other.backward_seconds;
  return *this;
}

void PassSeconds::scale(double factor) {
  forward_seconds *= factor;
  backward_seconds *= factor;
}

PassSeconds launched_seconds(const PassSeconds& computing, const PassSeconds& gaps,
                             const PassSeconds& launching) {
  PassSeconds device = computing;
  device += gaps;
  return launching.sum() > device.sum() ? launching : device;
}

PassSeconds launched_seconds(const std::vector<ProfiledNode>& nodes) {
  PassSeconds computing, gaps, launching;
  for (const ProfiledNode& node : nodes) {
    computing += node.pass_seconds();
    gaps += node.gap_pass();
    launching += node.launch_pass();
  }
  return launched_seconds(computing, gaps, launching);
}

double launched_factor(const std::vector<ProfiledNode>& nodes) {
  double computing = 0;
  for (const ProfiledNode& node : nodes) computing += node.compute_seconds();
  return computing > 0 ? launched_seconds(nodes).sum() / computing : 1;
}

std::string Profile::device_passes() const {
  if (!device.starts_with("cuda")) return "";
  const auto entry = std::find_if(provenance.begin(), provenance.end(),
                                  [](const auto& one) { return one.first == "device_passes"; });
  return entry == provenance.end() ? "" : entry->second;
}

double Profile::compute_seconds() const {
  double sum = 0;
  for (const ProfiledNode& node : nodes) sum += node.compute_seconds();
  return sum;
}

std::string ProfiledCrowd::doubt() const {
  // Less than that is hardly seen in caches and memory, and passes scatter.
  constexpr double kFewCores = 0.2, kSteady = 0.15;
  char text[128] = "";
  if (other_cores > kFewCores)
    std::snprintf(text, sizeof text, "other programs used %.2g cores meanwhile", other_cores);
  else if (reference_spread > kSteady)
    std::snprintf(
        text, sizeof text,
        "the model alone took up to %.2f times as long at one moment, or on one core, as at another",
        1 + reference_spread);
  return text;
}

namespace {

constexpr double kMostCrowdFactor = 1e6;

ProfiledUpdate update_from_json(JsonReader reader) {
  std::vector<std::string> keys;
  for (const ProfiledUpdateRow& row : profiled_update_rows()) keys.emplace_back(row.key);
  reader.expect(keys);
  ProfiledUpdate update;
  for (const ProfiledUpdateRow& row : profiled_update_rows())
    if (!row.bytes || reader.has(row.key))
      update.*row.value = reader.number(row.key, 0, row.bytes ? double{kMostBytes} : kMostSeconds);
  reader.finish();
  return update;
}

ProfiledCrowd crowd_from_json(JsonReader reader) {
  reader.expect({"ranks", "compute_factor", "update_factor", "replicas_compute_factor",
                 "replicas_update_factor", "by_turns_compute_factor", "clock_factor", "other_cores",
                 "reference_spread"});
  ProfiledCrowd crowd;
  crowd.ranks = reader.integer("ranks", 2, kMostRanks);
  crowd.compute_factor = reader.number("compute_factor", 1, kMostCrowdFactor);
  crowd.update_factor = reader.number("update_factor", 1, kMostCrowdFactor);
  const auto optional = [&](const char* key, double otherwise) {
    return reader.has(key) ? reader.number(key, 1, kMostCrowdFactor) : otherwise;
  };
  crowd.replicas_compute_factor = optional("replicas_compute_factor", crowd.compute_factor);
  crowd.replicas_update_factor = optional("replicas_update_factor", crowd.update_factor);
  crowd.by_turns_compute_factor = optional("by_turns_compute_factor", 1);
  if (reader.has("clock_factor")) crowd.clock_factor = reader.number("clock_factor", 1, kMostCrowdFactor);
  if (reader.has("other_cores")) crowd.other_cores = reader.number("other_cores", 0, kMostRanks);
  if (reader.has("reference_spread"))
    crowd.reference_spread = reader.number("reference_spread", 0, kMostCrowdFactor);
  reader.finish();
  return crowd;
}

Json to_json(const ProfiledUpdate& update) {
  Json json;
  for (const ProfiledUpdateRow& row : profiled_update_rows())
    if (!row.bytes || update.*row.value > 0) json[row.key] = update.*row.value;
  return json;
}

}  // namespace

const std::vector<ProfiledUpdateRow>& profiled_update_rows() {
  static const std::vector<ProfiledUpdateRow> rows = {
      {"step_in_place_seconds", &ProfiledUpdate::step_in_place_seconds},
      {"gradient_add_seconds", &ProfiledUpdate::gradient_add_seconds},
      {"gradient_copy_seconds", &ProfiledUpdate::gradient_copy_seconds},
      {"gradient_divide_seconds", &ProfiledUpdate::gradient_divide_seconds},
      {"copied_bytes", &ProfiledUpdate::copied_bytes, /*bytes=*/true}};
  return rows;
}

void ProfiledUpdate::scale(double part) {
  for (const ProfiledUpdateRow& row : profiled_update_rows()) this->*row.value *= part;
}

Profile Profile::from_json(JsonReader& reader) {
  reader.expect({"schema", "model", "graph_digest", "minibatch_samples", "device", "threads", "provenance",
                 "input_seconds", "nodes", "whole", "combines", "together"});
  Profile profile;
  profile.model = reader.string("model");
  profile.graph_digest = reader.string("graph_digest");
  profile.minibatch_samples = reader.integer("minibatch_samples", 0, kMostCount);
  profile.device = reader.string("device");
  profile.threads = reader.integer("threads", 1, kMostRanks);
  profile.provenance = reader.string_entries("provenance");
  profile.input_seconds = reader.number("input_seconds", 0, kMostSeconds);
  for (JsonReader& node : reader.objects("nodes")) profile.nodes.push_back(node_from_json(node));
  JsonReader whole = reader.object("whole");
  whole.expect({"forward_seconds", "backward_seconds", "step_seconds", kForwardLaunch, kBackwardLaunch,
                "allocated_bytes", "library_bytes", "input_bytes", "uploaded_bytes", "host_cores",
                "known_within", "update", "crowd"});
  profile.whole.forward_seconds = whole.number("forward_seconds", 0, kMostSeconds);
  profile.whole.backward_seconds = whole.number("backward_seconds", 0, kMostSeconds);
  profile.whole.step_seconds = whole.number("step_seconds", 0, kMostSeconds);
  read_pair(whole, kForwardLaunch, kBackwardLaunch, &profile.whole.forward_launch_seconds,
            &profile.whole.backward_launch_seconds);
  if (whole.has("allocated_bytes"))
    profile.whole.allocated_bytes = whole.integer("allocated_bytes", 0, kMostBytes);
  if (whole.has("library_bytes")) profile.whole.library_bytes = whole.integer("library_bytes", 0, kMostBytes);
  if (whole.has("input_bytes")) profile.whole.input_bytes = whole.integer("input_bytes", 0, kMostBytes);
  if (whole.has("uploaded_bytes"))
    profile.whole.uploaded_bytes = whole.integer("uploaded_bytes", 0, kMostBytes);
  if (whole.has("host_cores")) profile.whole.host_cores = whole.integer("host_cores", 1, kMostRanks);
  if (whole.has("known_within")) profile.whole.known_within = whole.number("known_within", 0, kLargestNumber);
  if (whole.has("update")) profile.whole.update = update_from_json(whole.object("update"));
  if (whole.has("crowd")) profile.whole.crowd = crowd_from_json(whole.object("crowd"));
  whole.finish();
  if (reader.has("combines")) profile.combines = reader.strings("combines");
  profile.together = node_sets_from_json(reader, "together");
  return profile;
}

Json Profile::to_json() const {
  Json json;
  json["model"] = model;
  json["graph_digest"] = graph_digest;
  json["minibatch_samples"] = minibatch_samples;
  json["device"] = device;
  json["threads"] = threads;
  json["provenance"] = Json::object();
  for (const auto& [key, value] : provenance) json["provenance"][key] = value;
  json["input_seconds"] = input_seconds;
  json["nodes"] = Json::array();
  for (const ProfiledNode& node : nodes) json["nodes"].push_back(node_to_json(node));
  json["whole"] = {{"forward_seconds", whole.forward_seconds},
                   {"backward_seconds", whole.backward_seconds},
                   {"step_seconds", whole.step_seconds}};
  write_pair(json["whole"], kForwardLaunch, kBackwardLaunch, whole.forward_launch_seconds,
             whole.backward_launch_seconds);
  if (whole.allocated_bytes) json["whole"]["allocated_bytes"] = *whole.allocated_bytes;
  if (whole.library_bytes) json["whole"]["library_bytes"] = *whole.library_bytes;
  if (whole.input_bytes) json["whole"]["input_bytes"] = *whole.input_bytes;
  if (whole.uploaded_bytes) json["whole"]["uploaded_bytes"] = *whole.uploaded_bytes;
  if (whole.host_cores) json["whole"]["host_cores"] = *whole.host_cores;
  if (whole.known_within) json["whole"]["known_within"] = *whole.known_within;
  if (whole.update) json["whole"]["update"] = pipewright::to_json(*whole.update);
  if (whole.crowd) {
    json["whole"]["crowd"] = {{"ranks", whole.crowd->ranks},
                              {"compute_factor", whole.crowd->compute_factor},
                              {"update_factor", whole.crowd->update_factor},
                              {"replicas_compute_factor", whole.crowd->replicas_compute_factor},
                              {"replicas_update_factor", whole.crowd->replicas_update_factor},
                              {"by_turns_compute_factor", whole.crowd->by_turns_compute_factor}};
    for (const auto& [key, value] : {std::pair("clock_factor", whole.crowd->clock_factor),
                                     std::pair("other_cores", whole.crowd->other_cores),
                                     std::pair("reference_spread", whole.crowd->reference_spread)})
      if (value > 0) json["whole"]["crowd"][key] = value;
  }
  if (!combines.empty()) json["combines"] = combines;
  if (!together.empty()) json["together"] = together;
  return json;
}

void Profile::validate(const std::string& where) const {
  if (nodes.empty()) fail_document(where, "nodes", "empty; expected at least one node");
  std::unordered_map<std::string, size_t> maker;  // value -> position of the node that makes it
  std::set<std::string> names;
  const auto place = [](size_t i) { return "nodes[" + std::to_string(i) + "]"; };
  for (size_t i = 0; i < nodes.size(); ++i) {
    const ProfiledNode& node = nodes[i];
    if (node.name.empty()) fail_document(where, place(i) + ".name", "empty");
    if (!names.insert(node.name).second) {
      fail_document(where, place(i) + ".name", "there is another node " + in_quotes(node.name));
    }
    for (const ProfiledValue& output : node.outputs) {
      if (output.name.empty()) fail_document(where, place(i) + ".outputs", "the name of a value is empty");
      const auto [it, fresh] = maker.emplace(output.name, i);
      if (!fresh) {
        fail_document(
            where, place(i) + ".outputs",
            in_quotes(output.name) + " is made already by node " + in_quotes(nodes[it->second].name));
      }
    }
    if (node.trainable_parameter_bytes > node.parameter_bytes) {
      fail_document(where, place(i) + ".trainable_parameter_bytes",
                    std::to_string(node.trainable_parameter_bytes) + " is more than parameter_bytes, " +
                        std::to_string(node.parameter_bytes));
    }
  }
  validate_node_sets(together, names, where, "together");
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const std::string& input : nodes[i].inputs) {
      const auto it = maker.find(input);
      if (it != maker.end() && it->second >= i) {
        fail_document(where, place(i) + ".inputs",
                      "node " + in_quotes(nodes[i].name) + " reads " + in_quotes(input) + " before node " +
                          in_quotes(nodes[it->second].name) + " makes it");
      }
    }
    for (const std::string& kept : nodes[i].keeps) {
      const auto it = maker.find(kept);
      if (it != maker.end() && it->second > i) {
        fail_document(where, place(i) + ".keeps",
                      "node " + in_quotes(nodes[i].name) + " keeps " + in_quotes(kept) + " before node " +
                          in_quotes(nodes[it->second].name) + " makes it");
      }
    }
  }
}

}  // namespace pipewright
