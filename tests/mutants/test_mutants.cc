// Defects as pipeline stacks have had them, put into our own runtime one at a time (mutants.json): `verify`
// kills each, against the serial reference and against another training, and says where it began.
// PIPEWRIGHT_MUTANT_PLANS: random plans for each.
#include <catch2/catch.hpp>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "graph/json.h"
#include "tests/end_to_end/commands.h"
#include "tests/support/long.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace fs = std::filesystem;

namespace {

const fs::path kSource = PIPEWRIGHT_SOURCE_DIR;

struct Mutant {
  std::string name, what, file, from;
  std::string action;           // that verify names
  std::set<std::string> needs;  // of a plan on which it can show
  bool against = true;  // another training is off, too: statistics of replicas are not compared with it
  bool quick = false;   // tried without --long, too
};

std::vector<Mutant> all_mutants() {
  std::vector<Mutant> mutants;
  const Json list = read_json_file(kSource / "tests/mutants/mutants.json");
  for (const Json& json : list.at("mutants")) {
    Mutant mutant{json["name"],
                  json["what"],
                  json["file"],
                  json["from"],
                  json["action"],
                  {},
                  json.value("against", true),
                  json.value("quick", false)};
    std::istringstream needs(json["needs"].get<std::string>());
    for (std::string need; needs >> need;) mutant.needs.insert(need);
    mutants.push_back(std::move(mutant));
  }
  return mutants;
}

// A job on which the defect shows, drawn.
class Drawn {
 public:
  Drawn(const Mutant& mutant, const TemporaryFolder& folder, uint32_t seed)
      : needs_(mutant.needs), folder_(folder), random_(seed) {
    choose_model();
    graph_ = graph_of(model_, kSamples, folder);
    do {
      draw_plan();
    } while (!shows());
    write_document(folder / "plan.json", plan_);
  }

  Words words() const {
    Words words = {"--model",
                   model_,
                   "--data",
                   data_,
                   "--batch-size",
                   std::to_string(kSamples),
                   "--plan",
                   (folder_ / "plan.json").string(),
                   "--learning-rate",
                   "0.05",
                   "--checkpoint-every-minibatches",
                   "1",
                   "--checkpoint-keep",
                   "100",
                   "--epochs",
                   needs("epochs") || needs("evaluation") ? "2" : "1",
                   "--seed",
                   std::to_string(plan_.world_size)};
    if (needs("accumulation")) words = words + Words{"--gradient-accumulation", "2"};
    if (needs("clipping")) words = words + Words{"--gradient-clipping-norm", "0.05"};
    if (needs("rates")) words = words + Words{"--learning-rate-policy", "polynomial"};
    if (needs("no-decay"))
      words = words + Words{"--optimizer", "adamw", "--weight-decay", "0.5", "--no-decay", "bias"};
    if (needs("evaluation")) words = words + Words{"--evaluation-data", data_};
    if (needs("adafactor")) return words + Words{"--optimizer", "adafactor"};
    return needs("no-decay") ? words : words + Words{"--momentum", "0.9"};
  }
  std::string text() const { return json_text(plan_.to_json()); }

 private:
  static constexpr int64_t kSamples = 8;

  bool needs(const std::string& what) const { return needs_.count(what) > 0; }
  int64_t between(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  std::string one_of(const Words& words) {
    return words[static_cast<size_t>(between(0, static_cast<int64_t>(words.size()) - 1))];
  }

  void choose_model() {
    const std::string samples = std::to_string(kSamples * between(6, 10) + 3);
    model_ = kEndlessModel;
    data_ = "synthetic-images:image=8,samples=" + samples;
    if (needs("batch-norm")) {
      model_ = "convnet:width=4,image=16";
      data_ = "synthetic-images:image=16,samples=" + samples;
    } else if (needs("dropout") || needs("carried")) {
      model_ = std::string("vit:patch=7,image=14,layers=3,width=8,heads=2,dropout=") +
               (needs("dropout") ? "0.3" : "0");
      data_ = "synthetic-images:image=14,samples=" + samples;
    } else if (needs("tied")) {
      model_ = "bert:layers=2,width=16,heads=2,tokens=16,vocabulary=257,dropout=0";
      std::ofstream text(folder_ / "text.txt");
      for (int64_t i = 0; i < kSamples * 8; ++i)
        text << "the " << i << " pipelines of stage " << i * i % 97 << " were as they should be.\n";
      text.close();
      data_ = "masked-text:file=" + (folder_ / "text.txt").string() + ",tokens=16";
    }
  }

  bool in_place() const { return needs("paci") || needs("predict"); }
  bool recomputes(size_t stage) const { return needs("recompute") && (!needs("stash") || stage == 0); }

  void draw_plan() {
    plan_ = Plan();
    plan_.model = graph_.name;
    plan_.strategy = "manual";
    const bool replicas = needs("replicas") || needs("accumulation") || needs("split");
    const int64_t stages = needs("carried") || in_place() ? 3 : replicas ? between(1, 2) : between(2, 3);
    size_t node = 0;
    for (int64_t s = 0; s < stages; ++s) {
      Stage stage;
      const auto left = static_cast<int64_t>(graph_.nodes.size() - node) - (stages - s - 1);
      size_t end = s + 1 == stages ? graph_.nodes.size() : node + static_cast<size_t>(between(1, left));
      for (; node < end || (s + 1 < stages && cuts_what_is_together(graph_, node)); ++node)
        stage.nodes.push_back(graph_.nodes[node].name);
      const int64_t count = replicas ? 2 : 1;
      for (int64_t q = 0; q < count; ++q) stage.ranks.push_back(plan_.world_size++);
      if (needs("split")) stage.split = {between(2, 3), 1};
      stage.recompute = recomputes(static_cast<size_t>(s));
      plan_.stages.push_back(std::move(stage));
    }
    const bool flushes = needs("microbatches") || needs("tied") || needs("clipping") || needs("pairs");
    const bool stale = needs("stash") || needs("vertical") || needs("accumulation") || in_place();
    const bool flush = flushes || (!stale && between(0, 1) == 0);
    plan_.schedule = needs("pairs") ? "gpipe" : flush ? one_of({"gpipe", "1f1b-flush"}) : "1f1b";
    plan_.weights = needs("vertical")  ? "vertical"
                    : needs("paci")    ? "paci"
                    : needs("predict") ? "predict"
                    : flush            ? "flush"
                                       : "stash";
    plan_.microbatches = !flush ? 1 : needs("pairs") ? 2 : between(2, 4);
    for (int64_t s = 0; s < stages; ++s)
      plan_.stages[static_cast<size_t>(s)].in_flight = flush ? plan_.microbatches : stages - s;
    tie();
  }

  void tie() {
    for (const Parameter& parameter : graph_.parameters) {
      TiedParameter tied{parameter.name, {}};
      for (size_t s = 0; s < plan_.stages.size(); ++s)
        if (reads(plan_.stages[s], parameter.name)) tied.stages.push_back(static_cast<int64_t>(s));
      if (tied.stages.size() > 1) plan_.tied_parameters.push_back(std::move(tied));
    }
  }
  bool reads(const Stage& stage, const std::string& value) const {
    return std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) {
      const auto& nodes = stage.nodes;
      const auto read = node.reads();
      return std::find(nodes.begin(), nodes.end(), node.name) != nodes.end() &&
             std::find(read.begin(), read.end(), value) != read.end();
    });
  }
  bool has(const Stage& stage, const std::string& word) const {
    return std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) {
      return node.op.find(word) != std::string::npos &&
             std::find(stage.nodes.begin(), stage.nodes.end(), node.name) != stage.nodes.end();
    });
  }
  // A value of the first stage that the last one reads, beside another that crosses there.
  bool carries() const {
    for (const Node& node : graph_.nodes) {
      const auto& first = plan_.stages.front().nodes;
      if (std::find(first.begin(), first.end(), node.name) == first.end()) continue;
      for (const std::string& value : node.outputs)
        if (reads(plan_.stages[2], value) && reads(plan_.stages[1], value)) return true;
    }
    return false;
  }

  bool shows() const {
    if (std::any_of(plan_.stages.begin(), plan_.stages.end(),
                    [&](const Stage& stage) { return stage.nodes.empty() || parameters_of(stage) == 0; }))
      return false;
    if (needs("tied") != !plan_.tied_parameters.empty()) return false;
    if (needs("carried") && !carries()) return false;
    // Gradients of a stage of one layer do not depend on its weights.
    if (needs("stash") && needs("recompute") && parameters_of(plan_.stages[0]) < 4) return false;
    const auto any = [&](const std::string& word) {
      return std::any_of(plan_.stages.begin(), plan_.stages.end(),
                         [&](const Stage& stage) { return has(stage, word); });
    };
    return (!needs("dropout") || any("dropout")) && (!needs("batch-norm") || any("batch_norm"));
  }
  int64_t parameters_of(const Stage& stage) const {
    return std::count_if(graph_.parameters.begin(), graph_.parameters.end(),
                         [&](const Parameter& parameter) { return reads(stage, parameter.name); });
  }

  const std::set<std::string>& needs_;
  const TemporaryFolder& folder_;
  std::mt19937 random_;
  Graph graph_;
  std::string model_, data_;
  Plan plan_;
};

Outcome launched(const TemporaryFolder& folder, const Words& words, const std::string& name) {
  std::map<std::string, std::string> variables = {{"TMPDIR", fs::path(folder / "").string()}};
  if (name != "none") variables["PIPEWRIGHT_MUTANT"] = name;
  return run_command(
      folder, Words{program("runtime-mutants"), "launch", "--output", (folder / name).string()} + words,
      variables);
}

// What verify says of a run with the defect, on the plan of this seed.
void kill(const Mutant& mutant, uint32_t seed) {
  const TemporaryFolder folder;
  const Drawn drawn(mutant, folder, seed);
  INFO(mutant.name << " " << seed << "\n" << drawn.text());
  const fs::path sound = folder / "none", run = folder / mutant.name;
  const Outcome without = launched(folder, drawn.words(), "none");
  INFO(without.error);
  REQUIRE(without.code == 0);
  const Outcome with = launched(folder, drawn.words(), mutant.name);
  INFO(with.error);
  REQUIRE(with.code == 0);
  const Words against = {"--against", (sound / "metrics.jsonl").string(), "--against",
                         (sound / "model.safetensors").string()};

  // The control: without the switch the program computes what it should.
  const Outcome equal = runtime(folder, Words{"verify", "--run", sound.string()} + against);
  INFO(equal.error << equal.output);
  CHECK(equal.code == 0);
  CHECK_THAT(equal.output, Catch::Contains("the other training equal bit for bit"));

  const Outcome verified = runtime(folder, Words{"verify", "--json", "--run", run.string()} + against);
  INFO(verified.error << verified.output);
  CHECK(verified.code == 6);
  const Json found = parse_json(verified.output, "verify");
  const Json& serial = found["serial_reference"];
  CHECK(serial["equal"] == false);
  CHECK_THAT(serial["first_action"].get<std::string>(),
             Catch::Contains(mutant.action) && Catch::Contains("minibatch"));
  CHECK((serial["first_parameter"].is_object() || serial["first_loss"].is_object()));
  CHECK((found["against"]["verdict"] == "wrong") == mutant.against);
  std::printf("%s (%u): %s\n", mutant.name.c_str(), seed, verified.error.c_str());
}

}  // namespace

TEST_CASE("mutants: each has its place in the source, and the release program has no switch") {
  std::set<std::string> described;
  for (const Mutant& mutant : all_mutants()) {
    INFO(mutant.name << ": its place in " << mutant.file
                     << " is gone: give it another in tests/mutants/mutants.json");
    CHECK(!mutant.what.empty());
    CHECK(described.insert(mutant.what).second);
    if (!mutant.from.empty()) CHECK(times_in(Process::contents(kSource / mutant.file), mutant.from) == 1);
  }
  CHECK(times_in(Process::contents(program("runtime-mutants")), "PIPEWRIGHT_MUTANT") > 0);
  CHECK(times_in(Process::contents(program("runtime")), "PIPEWRIGHT_MUTANT") == 0);
}

TEST_CASE("mutants: verify kills some of each kind, and says where they began") {
  for (const Mutant& mutant : all_mutants())
    if (mutant.quick) kill(mutant, 1);
}

TEST_CASE("mutants: verify kills all of them on random plans") {
  if (!is_long()) return;
  const char* given = std::getenv("PIPEWRIGHT_MUTANT_PLANS");
  const char* only = std::getenv("PIPEWRIGHT_ONLY_MUTANT");
  for (const Mutant& mutant : all_mutants())
    for (int seed = 1; seed <= (given ? std::atoi(given) : 1); ++seed)
      if (!only || mutant.name == only) kill(mutant, static_cast<uint32_t>(seed));
}
