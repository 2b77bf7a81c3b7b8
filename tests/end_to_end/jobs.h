// Small jobs that run for as long as a test wants.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/document.h"
#include "graph/graph.h"
#include "graph/plan.h"
#include "test_paths.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {

inline std::string program(const std::string& name) {
  // Appended: GCC 12 takes a chain of sums for an overflow where it compiles for the thread sanitizer.
  std::string path = PIPEWRIGHT_BINARY_DIR;
  path += "/pipewright-";
  path += name;
  return path;
}

/// The model's nodes, as the profiler prints them into a graph document.
inline Graph graph_of(const std::string& model, int64_t batch_size, const TemporaryFolder& folder) {
  const auto file = folder / "graph.json";
  Process process({program("profiler"), "graph", "--model", model, "--batch-size", std::to_string(batch_size),
                   "--output", file.string()},
                  folder / "graph.out", folder / "graph.err");
  if (process.wait(std::chrono::seconds(60)) != 0) throw std::runtime_error(process.error());
  return read_document<Graph>(file);
}

/// Does a cut before this node, in the graph's order, go through what must stay together?
inline bool cuts_what_is_together(const Graph& graph, size_t node) {
  std::set<std::string> before;
  for (size_t i = 0; i < node; ++i) before.insert(graph.nodes[i].name);
  return std::any_of(graph.together.begin(), graph.together.end(), [&](const auto& names) {
    return std::any_of(names.begin(), names.end(),
                       [&](const auto& name) { return before.count(name) != before.count(names.front()); });
  });
}

/// A plan by hand: the nodes in equal parts, replicas as given, depth what 1F1B needs to keep every rank
/// busy.
inline Plan even_plan(const Graph& graph, const std::vector<int64_t>& replicas) {
  Plan plan;
  plan.model = graph.name;
  plan.strategy = "manual";
  int64_t behind = 0;
  for (const int64_t r : replicas) behind += r;
  size_t node = 0;
  for (size_t s = 0; s < replicas.size(); ++s) {
    Stage stage;
    const size_t end = graph.nodes.size() * (s + 1) / replicas.size();
    for (; node < end || cuts_what_is_together(graph, node); ++node)
      stage.nodes.push_back(graph.nodes[node].name);
    for (int64_t q = 0; q < replicas[s]; ++q) stage.ranks.push_back(plan.world_size++);
    stage.in_flight = (behind + replicas[s] - 1) / replicas[s];
    behind -= replicas[s];
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

/// Words that train a small network on synthetic images until somebody stops it. Unless a test is about the
/// time-out, nobody is missed however busy the machine is, and who ends early has not waited for it.
inline std::vector<std::string> endless_job(const TemporaryFolder& folder,
                                            const std::string& timeout = "5min") {
  return {"--model",      "mlp:layers=6,width=64,image=8,channels=1",
          "--data",       "synthetic-images:image=8,samples=256",
          "--batch-size", "8",
          "--epochs",     "100000",
          "--timeout",    timeout,
          "--output",     (folder / "run").string()};
}
inline const char* const kEndlessModel = "mlp:layers=6,width=64,image=8,channels=1";

inline std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline size_t times_in(const std::string& text, const std::string& word) {
  size_t times = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++times;
  return times;
}

/// The ways in which a signal reaches a job: its launcher (or only process), one of its ranks, or all of its
/// processes at once and again 10 ms later, as a scheduler's does that sends it to each and through others
/// too.
enum class Reaches { kFirst, kOneRank, kAllTwice };
inline const std::vector<Reaches> kWaysOfSignals = {Reaches::kFirst, Reaches::kOneRank, Reaches::kAllTwice};

/// To the processes of a job: the launcher, if there is one, first.
inline void deliver(int signal, Reaches way, const std::vector<pid_t>& processes) {
  if (way == Reaches::kFirst) ::kill(processes.front(), signal);
  if (way == Reaches::kOneRank) ::kill(processes.back(), signal);
  if (way != Reaches::kAllTwice) return;
  for (const pid_t process : processes) ::kill(process, signal);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  for (const pid_t process : processes) ::kill(process, signal);
}

/// A launcher and its ranks, or a process alone.
inline std::vector<pid_t> processes_of(const Process& launcher) {
  std::vector<pid_t> processes = {launcher.pid()};
  for (const pid_t rank : launcher.children()) processes.push_back(rank);
  return processes;
}

/// Lines of metrics.jsonl that are complete.
inline std::vector<std::string> complete_lines(const std::filesystem::path& file) {
  std::vector<std::string> lines;
  const std::string text = Process::contents(file);
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

/// Lines of a run's metrics.jsonl but for the times, for what ranks and links are slow, and for the plans
/// that came into force, of which a run that goes on tells again; evaluations last, as between minibatches
/// their place is not certain where the last stage has replicas, and behind them the spreads of all ranks.
inline std::vector<Json> metrics(const std::filesystem::path& run) {
  std::vector<Json> lines;
  for (const std::string& line : complete_lines(run / "metrics.jsonl")) {
    lines.push_back(parse_json(line, "metrics.jsonl"));
    lines.back().erase("elapsed_seconds");
    const Json& last = lines.back();
    if (last.contains("generation") || last.contains("speed") || last.contains("link")) lines.pop_back();
  }
  const auto others = std::stable_partition(lines.begin(), lines.end(),
                                            [](const Json& line) { return line.contains("minibatch"); });
  const auto spreads =
      std::stable_partition(others, lines.end(), [](const Json& line) { return !line.contains("spread"); });
  std::sort(spreads, lines.end(), [](const Json& a, const Json& b) { return a.dump() < b.dump(); });
  return lines;
}

/// The bytes of the .safetensors files of a folder, by name. There are some.
inline std::map<std::string, std::string> tensor_files(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors")
      files[entry.path().filename().string()] = read_file(entry.path());
  }
  if (files.empty()) throw std::runtime_error(folder.string() + " holds no tensors");
  return files;
}

}  // namespace pipewright::testing
