// Piper's input files.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/limits.h"
#include "optimizer/baselines/piper.h"
#include "optimizer/cuts/contraction.h"

namespace pipewright {
namespace {

constexpr int64_t kMostPiperId = int64_t{1} << 53;
constexpr auto kMost = static_cast<double>(kMostBytes);

int64_t number_of(const JsonReader& reader, const std::string& key, int64_t least, int64_t most) {
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(key.data(), key.data() + key.size(), value);
  if (error != std::errc() || rest != key.data() + key.size() || value < least || value > most)
    reader.fail(key,
                "expected a number in " + std::to_string(least) + ".." + std::to_string(most) + " as key");
  return value;
}

class Parser {
 public:
  Parser(const Json& json, const std::string& where) : top_(json, where), where_(where) {
    problem_.devices = top_.integer("maxDevices", 1, kMostRanks);
    problem_.memory_bytes = top_.number("maxMemoryPerDevice", 0, kMost);
    problem_.bandwidth_bytes_per_second = top_.number("bandwidth", 1e-9, kMostBytesPerSecond);
    problem_.samples_per_batch = top_.integer("mbsInBatch", 1, kMostRanks);
    std::vector<JsonReader> nodes = top_.objects("nodes");
    if (nodes.empty()) top_.fail("nodes", "there are none");
    for (JsonReader& reader : nodes) {
      const int64_t id = reader.integer("id", 0, kMostPiperId);
      if (!number_.emplace(id, static_cast<int>(number_.size())).second)
        reader.fail("id", "another node has id " + std::to_string(id));
      ids_.push_back(id);
      PiperNode node;
      node.name = reader.has("name") ? reader.string("name") : "node" + std::to_string(id);
      problem_.nodes.push_back(std::move(node));
    }
    read_edges();
    for (size_t v = 0; v < nodes.size(); ++v) read_options(&nodes[v], static_cast<int>(v));
    top_.finish();
    check_order();
  }
  PiperProblem problem() && { return std::move(problem_); }

 private:
  void read_edges() {
    std::set<std::pair<int, int>> known;
    for (JsonReader& reader : top_.objects("edges")) {
      const auto node_of = [&](const std::string& key) {
        const auto found = number_.find(reader.integer(key, 0, kMostPiperId));
        if (found == number_.end()) reader.fail(key, "no node has this id");
        return found->second;
      };
      PiperEdge edge;
      edge.from = node_of("sourceId");
      edge.to = node_of("destId");
      edge.bytes = reader.number("communicationCost", 0, kMost);
      reader.finish();
      if (edge.from == edge.to) reader.fail("destId", "an edge from a node to itself");
      if (!known.emplace(edge.from, edge.to).second) reader.fail("destId", "this edge is there twice");
      problem_.edges.push_back(edge);
    }
  }

  void read_options(JsonReader* node, int v) {
    JsonReader degrees = node->object("TMPCs");
    const Json& all = node->raw("TMPCs");
    if (all.empty()) node->fail("TMPCs", "there are none");
    for (const auto& [key, unused] : all.items()) {
      const int64_t degree = number_of(degrees, key, 1, kMostRanks);
      std::vector<PiperOption>& options = problem_.nodes[v].options[degree];
      for (JsonReader& reader : degrees.objects(key)) options.push_back(read_option(&reader, v));
      if (options.empty() || options.size() > 2)
        degrees.fail(key, "got " + std::to_string(options.size()) + " ways to run the node, expected 1 or 2");
    }
    node->finish();
  }

  PiperOption read_option(JsonReader* reader, int v) {
    PiperOption option;
    option.name = reader->string("id");
    option.seconds = reader->number("timePerSample", 0, kMostSeconds);
    option.parameter_bytes = reader->number("parameterSize", 0, kMost);
    option.memory_each_bytes = reader->number("memoryUsageA", 0, kMost);
    option.memory_fixed_bytes = reader->number("memoryUsageB", 0, kMost);
    option.sync_from_bytes = read_sync(reader, "syncTimeFw");
    option.sync_to_bytes = read_sync(reader, "syncTimeBw");
    reader->finish();
    size_t from = 0;
    size_t to = 0;
    for (const PiperEdge& edge : problem_.edges) {
      if (edge.to == v) from += require(*reader, "syncTimeFw", option.sync_from_bytes, edge.from);
      if (edge.from == v) to += require(*reader, "syncTimeBw", option.sync_to_bytes, edge.to);
    }
    if (from != option.sync_from_bytes.size()) reader->fail("syncTimeFw", "a node that no edge comes from");
    if (to != option.sync_to_bytes.size()) reader->fail("syncTimeBw", "a node that no edge goes to");
    return option;
  }

  size_t require(const JsonReader& reader, const std::string& key, const std::map<int, double>& sync,
                 int node) const {
    if (sync.count(node) == 0)
      reader.fail(key, "the edge with node " + std::to_string(ids_[node]) + " is missing");
    return 1;
  }

  std::map<int, double> read_sync(JsonReader* reader, const std::string& key) {
    JsonReader entries = reader->object(key);
    std::map<int, double> sync;
    for (const auto& [id, unused] : reader->raw(key).items()) {
      const auto found = number_.find(number_of(entries, id, 0, kMostPiperId));
      if (found == number_.end()) entries.fail(id, "no node has this id");
      sync[found->second] = entries.number(id, 0, kMost);
    }
    return sync;
  }

  void check_order() const {
    std::vector<NodePair> edges;
    for (const PiperEdge& edge : problem_.edges) edges.emplace_back(edge.from, edge.to);
    for (const auto& part : contract(static_cast<int>(problem_.nodes.size()), edges, {}).members) {
      if (part.size() < 2) continue;
      fail_document(where_, "edges",
                    "they make a cycle through nodes " + std::to_string(ids_[part[0]]) + " and " +
                        std::to_string(ids_[part[1]]));
    }
  }

  JsonReader top_;
  std::string where_;
  PiperProblem problem_;
  std::map<int64_t, int> number_;
  std::vector<int64_t> ids_;
};

}  // namespace

PiperProblem parse_piper(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  return Parser(json, where).problem();
}

Profile piper_profile(const std::string& text, const std::string& where) {
  const PiperProblem problem = parse_piper(text, where);
  std::vector<NodePair> edges;
  std::vector<double> sent(problem.nodes.size(), 0);
  for (const PiperEdge& edge : problem.edges) {
    edges.emplace_back(edge.from, edge.to);
    sent[edge.from] = std::max(sent[edge.from], edge.bytes);
  }
  Profile profile;
  profile.model = std::filesystem::path(where).stem().string();
  profile.device = kUnknownDevice;
  profile.provenance = {{"source", "input of Piper"}};
  profile.minibatch_samples = 1;
  std::map<std::string, int> names;
  std::vector<std::string> name_of;
  for (const PiperNode& node : problem.nodes) {
    const int seen = names[node.name]++;
    name_of.push_back(node.name + (seen == 0 ? "" : "#" + std::to_string(seen)));
  }
  const Contraction order = contract(static_cast<int>(problem.nodes.size()), edges, {});
  for (const std::vector<int>& part : order.members) {
    const int v = part[0];
    const auto found = problem.nodes[v].options.find(1);
    if (found == problem.nodes[v].options.end()) {
      fail_document(where, "nodes[" + std::to_string(v) + "].TMPCs", "nothing for 1 device",
                    "A profile is of one device; plan the file itself with --objective piper.");
    }
    const PiperOption& option = found->second.front();
    ProfiledNode node;
    node.name = name_of[v];
    node.layer = problem.nodes[v].name;
    for (const PiperEdge& edge : problem.edges) {
      if (edge.to == v) node.inputs.push_back(name_of[edge.from]);
    }
    node.outputs = {{node.name, std::llround(sent[v])}};
    node.forward_seconds = option.seconds;
    node.saved_bytes = std::llround(option.memory_each_bytes);
    node.parameter_bytes = node.trainable_parameter_bytes = std::llround(option.parameter_bytes);
    profile.whole.forward_seconds += option.seconds;
    profile.nodes.push_back(std::move(node));
  }
  profile.validate(where);
  return profile;
}

bool looks_like_piper(const std::string& text) { return text.find("\"TMPCs\"") != std::string::npos; }

}  // namespace pipewright
