// Does a plan cut this graph? Rules that need both documents.
#include <map>
#include <set>
#include <unordered_map>

#include "graph/document.h"
#include "graph/graph.h"
#include "graph/graph_identity.h"
#include "graph/nearest.h"
#include "graph/plan.h"
#include "graph/sample_ranges.h"

namespace pipewright {
namespace {

const char* const kPlanAgain =
    "The plan was made for another model or an older version of it: make profile and plan again "
    "(pipewright-profiler, "
    "pipewright-optimizer).";

std::string stage_text(size_t stage) { return "stage " + std::to_string(stage); }

// Stage of each node, by position in the graph.
std::vector<size_t> check_cover(const Plan& plan, const Graph& graph) {
  std::unordered_map<std::string, size_t> position;
  std::vector<std::string> names;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    position.emplace(graph.nodes[i].name, i);
    names.push_back(graph.nodes[i].name);
  }
  constexpr size_t kNone = static_cast<size_t>(-1);
  std::vector<size_t> stage_of(graph.nodes.size(), kNone);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    size_t last = kNone;
    for (const std::string& name : plan.stages[s].nodes) {
      const auto it = position.find(name);
      if (it == position.end()) {
        const std::string near = nearest(name, names);
        throw PlanError("plan: " + stage_text(s) + " has node " + in_quotes(name) + ", which the graph of " +
                            in_quotes(graph.name) + " has not" +
                            (near.empty() ? "" : "; did you mean '" + near + "'?"),
                        kPlanAgain);
      }
      if (stage_of[it->second] != kNone) {
        throw PlanError("plan: node " + in_quotes(name) + " is in " + stage_text(stage_of[it->second]) +
                        " and in " + stage_text(s));
      }
      if (last != kNone && it->second < last) {
        throw PlanError("plan: " + stage_text(s) + " has node " + in_quotes(name) + " after " +
                            in_quotes(names[last]) + ", against the order of the graph",
                        "List the nodes of a stage in the order of graph.json.");
      }
      stage_of[it->second] = s;
      last = it->second;
    }
  }
  const auto is_new = [&](const std::string& layer) {
    for (size_t i = 0; i < stage_of.size(); ++i)
      if (stage_of[i] != kNone && graph.nodes[i].layer == layer) return false;
    return true;
  };
  for (size_t i = 0; i < stage_of.size(); ++i) {
    if (stage_of[i] != kNone) continue;
    const std::string& layer = graph.nodes[i].layer;
    const bool new_layer = !layer.empty() && is_new(layer);
    throw PlanError("plan: " + (new_layer ? "layer " + in_quotes(layer) + " is new: its " : std::string()) +
                        "node " + in_quotes(names[i]) + " is in no stage",
                    kPlanAgain);
  }
  return stage_of;
}

std::string stages_text(const std::set<int64_t>& stages) {
  std::vector<std::string> words;
  for (const int64_t stage : stages) words.push_back(std::to_string(stage));
  return "stages " + join(words, ", ");
}

// `tied_parameters` are exactly the parameters that several stages read.
void check_tied(const Plan& plan, const std::map<std::string, std::set<int64_t>>& readers) {
  std::map<std::string, std::set<int64_t>> said;
  for (const TiedParameter& tied : plan.tied_parameters)
    said[tied.name] = std::set<int64_t>(tied.stages.begin(), tied.stages.end());
  for (const auto& [name, stages] : readers) {
    const auto it = said.find(name);
    if (stages.size() > 1 && it == said.end()) {
      throw PlanError(
          "plan: parameter " + in_quotes(name) + " is read by " + stages_text(stages) +
              ", but `tied_parameters` does not name it",
          "Put all nodes that read it into one stage, or (weights 'flush' and '2bw' only) add it to "
          "`tied_parameters` with these stages.");
    }
    if (it != said.end() && it->second != stages) {
      throw PlanError("plan: `tied_parameters` says that " + in_quotes(name) + " is read by " +
                      stages_text(it->second) + "; it is read by " + stages_text(stages));
    }
  }
  for (const auto& [name, stages] : said) {
    if (readers.count(name) == 0) {
      throw PlanError("plan: `tied_parameters` names " + in_quotes(name) +
                      ", which no node reads as a parameter");
    }
  }
}

void check_flow(const Plan& plan, const Graph& graph, const std::vector<size_t>& stage_of) {
  std::unordered_map<std::string, size_t> maker;     // value -> node
  std::map<std::string, std::set<int64_t>> readers;  // parameter -> stages that read it
  std::unordered_map<std::string, bool> is_parameter;
  for (const Parameter& parameter : graph.parameters) is_parameter.emplace(parameter.name, true);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    for (const std::string& name : node.reads()) {
      if (const auto it = maker.find(name); it != maker.end() && stage_of[it->second] > stage_of[i]) {
        throw PlanError("plan: node " + in_quotes(node.name) + " of " + stage_text(stage_of[i]) + " reads " +
                            in_quotes(name) + ", which node " + in_quotes(graph.nodes[it->second].name) +
                            " of " + stage_text(stage_of[it->second]) +
                            " makes: a value would flow backwards",
                        "Move one of the two nodes, so that values flow to later stages only.");
      }
      if (is_parameter.count(name) == 0) continue;
      readers[name].insert(static_cast<int64_t>(stage_of[i]));
    }
    for (const std::string& output : node.outputs) maker.emplace(output, i);
  }
  check_tied(plan, readers);
}

void check_together(const Graph& graph, const std::vector<size_t>& stage_of) {
  if (graph.together.empty()) return;
  std::unordered_map<std::string, size_t> stages;
  for (size_t i = 0; i < graph.nodes.size(); ++i) stages.emplace(graph.nodes[i].name, stage_of[i]);
  for (const auto& set : graph.together) {
    for (const std::string& name : set) {
      if (stages.at(name) == stages.at(set[0])) continue;
      throw PlanError(
          "plan: nodes " + in_quotes(set[0]) + " of " + stage_text(stages.at(set[0])) + " and " +
              in_quotes(name) + " of " + stage_text(stages.at(name)) +
              " share memory that is written in place: a cut between them would change the result",
          "Put all nodes of this set of the graph's `together` into one stage: " + join(set, ", ") + ".");
    }
  }
}

}  // namespace

void check_plan_for_graph(const Plan& plan, const Graph& graph) {
  const std::vector<size_t> stage_of = check_cover(plan, graph);
  check_flow(plan, graph, stage_of);
  check_together(graph, stage_of);
  check_split_stages(plan, graph);
  if (plan.graph_digest.empty() || is_digest_of(graph, plan.graph_digest, plan.model)) return;
  const int64_t planned = planned_samples(plan), here = samples_of(graph);
  if (planned > 0 && here > 0 && planned != here) {
    throw PlanError(
        "plan: made for minibatches of " + std::to_string(planned) + " samples, got " + std::to_string(here),
        "Give --batch-size " + std::to_string(planned) +
            ", or make profile and plan again with --batch-size " + std::to_string(here) + ".");
  }
  throw PlanError("plan: made for the same nodes as those of " + in_quotes(graph.name) +
                      ", but with other shapes or arguments",
                  "Likely cause: another --batch-size or other model options here than when the profile was "
                  "made. Give the "
                  "profile's, or make profile and plan again with these.");
}

}  // namespace pipewright
