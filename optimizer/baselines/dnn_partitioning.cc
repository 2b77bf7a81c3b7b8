#include "optimizer/baselines/dnn_partitioning.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/limits.h"
#include "optimizer/cuts/contraction.h"

namespace pipewright {
namespace {

constexpr double kMilli = 1e-3;
constexpr int64_t kMostId = int64_t{1} << 53;

struct File {
  MaxLoadProblem problem;
  std::vector<double> output_bytes;  // by node
};

/// true, false, 1 or 0.
bool flag(JsonReader* reader, const std::string& key) {
  const Json& value = reader->raw(key);
  if (value.is_boolean()) return value.get<bool>();
  return reader->integer(key, 0, 1) == 1;
}

MaxLoadNode read_node(JsonReader* reader, int64_t id) {
  MaxLoadNode node;
  node.name = reader->has("name") ? reader->string("name") : "node" + std::to_string(id);
  node.accelerator = flag(reader, "supportedOnFpga");
  node.backward = flag(reader, "isBackwardNode");
  node.accelerator_seconds = reader->number("fpgaLatency", 0, kMostSeconds) * kMilli;
  node.cpu_seconds = reader->number("cpuLatency", 0, kMostSeconds) * kMilli;
  if (reader->has("size")) node.bytes = reader->number("size", 0, static_cast<double>(kMostBytes));
  // Without a class a node is its own: ids are not negative, classes may be.
  node.color =
      reader->has("colorClass") ? reader->integer("colorClass", -kMostId, kMostId) : 2 * kMostId + id;
  reader->has("layerId");
  reader->finish();
  return node;
}

void check_order(const File& file, const std::string& where) {
  const auto& nodes = file.problem.nodes;
  const auto count = static_cast<int>(nodes.size());
  const Contraction parts = contract(count, file.problem.edges, {});
  for (const std::vector<int>& part : parts.members) {
    if (part.size() < 2) continue;
    fail_document(
        where, "edges",
        "they make a cycle through '" + nodes[part[0]].name + "' and '" + nodes[part[1]].name + "'");
  }
}

File read_file_text(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  JsonReader top(json, where);
  File file;
  MaxLoadProblem& problem = file.problem;
  problem.accelerators = top.integer("maxFPGAs", 0, kMostRanks);
  problem.processors = top.integer("maxCPUs", 0, kMostRanks);
  problem.memory_bytes = top.number("maxSizePerFPGA", 0, static_cast<double>(kMostBytes));
  std::map<int64_t, int> number;
  for (JsonReader& reader : top.objects("nodes")) {
    const int64_t id = reader.integer("id", 0, kMostId);
    if (!number.emplace(id, static_cast<int>(number.size())).second)
      reader.fail("id", "another node has id " + std::to_string(id));
    problem.nodes.push_back(read_node(&reader, id));
  }
  if (problem.nodes.empty()) top.fail("nodes", "there are none");
  file.output_bytes.assign(problem.nodes.size(), 0);
  std::vector<double> cost(problem.nodes.size(), -1);
  for (JsonReader& reader : top.objects("edges")) {
    const auto node_of = [&](const std::string& key) {
      const auto found = number.find(reader.integer(key, 0, kMostId));
      if (found == number.end()) reader.fail(key, "no node has this id");
      return found->second;
    };
    const int from = node_of("sourceId");
    const int to = node_of("destId");
    if (from == to) reader.fail("destId", "an edge from a node to itself");
    if (problem.nodes[from].backward && !problem.nodes[to].backward)
      reader.fail("destId", "an edge from a backward node to a forward node");
    const double seconds = reader.number("cost", 0, kMostSeconds) * kMilli;
    if (cost[from] >= 0 && std::abs(cost[from] - seconds) > 1e-6 * kMilli)
      reader.fail("cost", "another edge of node '" + problem.nodes[from].name + "' has another cost");
    cost[from] = std::max(cost[from], seconds);
    problem.nodes[from].send_seconds = cost[from];
    if (reader.has("size")) {
      const double bytes = reader.number("size", 0, static_cast<double>(kMostBytes));
      file.output_bytes[from] = std::max(file.output_bytes[from], bytes);
    }
    reader.has("isArtificial");
    reader.finish();
    problem.edges.emplace_back(from, to);
  }
  top.finish();
  check_order(file, where);
  return file;
}

}  // namespace

MaxLoadProblem parse_dnn_partitioning(const std::string& text, const std::string& where) {
  return read_file_text(text, where).problem;
}

Profile dnn_partitioning_profile(const std::string& text, const std::string& where) {
  const File file = read_file_text(text, where);
  const auto& nodes = file.problem.nodes;
  const auto count = static_cast<int>(nodes.size());
  std::map<int64_t, int> first_forward;  // by class
  std::map<int64_t, int> forward_count;
  for (int v = 0; v < count; ++v) {
    if (nodes[v].backward) continue;
    first_forward.emplace(nodes[v].color, v);
    ++forward_count[nodes[v].color];
  }

  Profile profile;
  profile.model = std::filesystem::path(where).stem().string();
  profile.device = kUnknownDevice;
  profile.provenance = {{"source", "input of dnn-partitioning"}};
  std::vector<ProfiledNode> made(count);
  std::map<std::string, int> names;
  for (int v = 0; v < count; ++v) {
    const MaxLoadNode& node = nodes[v];
    const bool own = !node.backward || first_forward.count(node.color) == 0;
    ProfiledNode& profiled = made[own ? v : first_forward.at(node.color)];
    if (own) {
      const int seen = names[node.name]++;
      profiled.name = node.name + (seen == 0 ? "" : "#" + std::to_string(seen));
      profiled.layer = node.name;
      profiled.outputs = {{profiled.name, std::llround(file.output_bytes[v])}};
      if (forward_count[node.color] > 1) profiled.parameters = {"class " + std::to_string(node.color)};
    }
    (node.backward ? profiled.backward_input_seconds : profiled.forward_seconds) += node.accelerator_seconds;
    (node.backward ? profile.whole.backward_seconds : profile.whole.forward_seconds) +=
        node.accelerator_seconds;
    profiled.saved_bytes += std::llround(node.bytes);
  }
  for (const auto& [from, to] : file.problem.edges) {
    if (nodes[from].backward || nodes[to].backward) continue;
    std::vector<std::string>& inputs = made[to].inputs;
    if (std::find(inputs.begin(), inputs.end(), made[from].name) == inputs.end())
      inputs.push_back(made[from].name);
  }
  const Contraction order = contract(count, file.problem.edges, {});
  for (const std::vector<int>& part : order.members) {
    ProfiledNode& node = made[part[0]];
    if (!node.name.empty()) profile.nodes.push_back(std::move(node));
  }
  profile.validate(where);
  return profile;
}

bool looks_like_dnn_partitioning(const std::string& text) {
  return text.find("\"maxFPGAs\"") != std::string::npos;
}

}  // namespace pipewright
