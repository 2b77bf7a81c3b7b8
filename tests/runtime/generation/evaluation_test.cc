// Evaluation on ranks as threads: every plan gives each minibatch the numbers that one device gives it, also
// plans that put what reads the labels anywhere before the loss.
#include "runtime/generation/evaluation.h"

#include <map>
#include <random>

#include "models/zoo/registry.h"
#include "tests/runtime/pipelines.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

// What the evaluation says of each minibatch.
std::map<int64_t, std::string> evaluated(const Run& run, const Model& model, const Plan& plan,
                                         const Dataset& data) {
  std::map<int64_t, std::string> lines;
  std::mutex mutex;
  const auto evaluate = [&](int64_t rank, Transport* links) {
    at::set_num_threads(1);
    Worker worker(model, plan, rank, links, TrainingRules{}, nullptr, {});
    Evaluation evaluation(run, model, plan, data, worker);
    evaluation.run({}, {}, [&](const EvaluatedMinibatch& done, const at::Tensor&) {
      if (rank != evaluation.rank_of(done.minibatch)) throw std::runtime_error("another rank's minibatch");
      const std::lock_guard lock(mutex);
      lines[done.minibatch] = done.to_json().dump();
    });
  };
  if (plan.world_size == 1) {
    evaluate(0, nullptr);
  } else {
    spawn(make_world("local", plan.world_size),
          [&](int64_t rank, Transport& links) { evaluate(rank, &links); });
  }
  return lines;
}

class RandomCuts {
 public:
  RandomCuts(const Graph& graph, uint32_t seed) : graph_(graph), random_(seed) {}

  // One that fits the graph.
  Plan next() {
    for (;;) {
      moves_labels_ = false;
      Plan plan = draw();
      try {
        check_plan_for_graph(plan, graph_);
      } catch (const PlanError&) {
        continue;
      }
      moved_labels_ += moves_labels_;
      return plan;
    }
  }

  // Of the plans drawn so far, those in which a node that reads the labels is before the last stage's.
  int64_t moved_labels() const { return moved_labels_; }

 private:
  // Cuts and replicas at random; each node that reads nothing but fields is in any stage up to its own.
  Plan draw() {
    const int64_t stages = between(1, 4);
    const auto nodes = static_cast<int64_t>(graph_.nodes.size());
    std::vector<int64_t> cuts = {0, nodes};
    while (static_cast<int64_t>(cuts.size()) <= stages) {
      const int64_t cut = between(1, nodes - 1);
      if (std::find(cuts.begin(), cuts.end(), cut) == cuts.end()) cuts.push_back(cut);
    }
    std::sort(cuts.begin(), cuts.end());
    Plan plan;
    plan.model = graph_.name;
    plan.strategy = "manual";
    for (int64_t s = 0; s < stages; ++s) {
      Stage stage;
      for (int64_t q = between(1, 2); q > 0; --q) stage.ranks.push_back(plan.world_size++);
      stage.in_flight = 2 * (stages - s);
      plan.stages.push_back(std::move(stage));
    }
    plan.schedule = "1f1b-flush";
    plan.weights = "flush";
    plan.microbatches = 2;
    for (int64_t s = 0; s < stages; ++s) {
      for (int64_t i = cuts[static_cast<size_t>(s)]; i < cuts[static_cast<size_t>(s) + 1]; ++i) {
        const Node& node = graph_.nodes[static_cast<size_t>(i)];
        const auto read = node.reads();
        const bool of_fields = std::all_of(read.begin(), read.end(), [&](const std::string& name) {
          return std::find(graph_.inputs.begin(), graph_.inputs.end(), name) != graph_.inputs.end();
        });
        const int64_t to = of_fields ? between(0, s) : s;
        plan.stages[static_cast<size_t>(to)].nodes.push_back(node.name);
        moves_labels_ |= to != s && std::find(read.begin(), read.end(), "labels") != read.end();
      }
    }
    tie(plan, graph_);
    return plan;
  }

  int64_t between(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  const Graph& graph_;
  std::mt19937 random_;
  int64_t moved_labels_ = 0;
  bool moves_labels_ = false;
};

}  // namespace

TEST_CASE("evaluation: whatever a plan cuts and wherever labels are read, each minibatch is one device's") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 12; ++i) text += "Line " + std::to_string(i) + " of a text that is masked in part.\n";
  write_file(folder / "text.txt", text);
  const std::vector<std::pair<std::string, std::string>> jobs = {
      {"gpt:layers=2,width=16,heads=2,tokens=8,vocabulary=32,dropout=0.1",
       "synthetic-text:vocabulary=32,tokens=8,samples=22"},
      {"bert:layers=2,width=16,heads=2,tokens=16,vocabulary=257",
       "masked-text:file=" + (folder / "text.txt").string() + ",tokens=16"},
      {"mlp:layers=3,width=16,image=8,channels=1", "synthetic-images:image=8,samples=22"}};
  for (const auto& [spec, set] : jobs) {
    CAPTURE(spec);
    Run run;
    run.batch_size = 4;
    const Model model = build_model(spec, run.batch_size);
    const auto data = open_dataset(set, "evaluation");
    RandomCuts cuts(model.graph, 11);
    const auto expected = evaluated(run, model, plan_of(model, {1}, {1}), *data);
    REQUIRE(static_cast<int64_t>(expected.size()) == (data->size() + 3) / 4);
    for (int i = 0; i < 40; ++i) {
      const Plan plan = cuts.next();
      CAPTURE(i, plan.shape_text());
      CHECK(evaluated(run, model, plan, *data) == expected);
    }
    if (spec.starts_with("gpt")) CHECK(cuts.moved_labels() > 5);
  }
}

}  // namespace pipewright::testing
