// verify, evaluate and predict as processes.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "graph/run.h"
#include "graph/summary.h"
#include "tests/end_to_end/commands.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kMomentumJob = {
    "--model",      kEndlessModel, "--data",     "synthetic-images:image=8,samples=96",
    "--batch-size", "8",           "--momentum", "0.9"};
const std::vector<std::string> kEvaluated = {"--evaluation-data", "synthetic-images:image=8,samples=50"};

Json json_of(const Outcome& outcome) {
  INFO(outcome.error);
  REQUIRE(outcome.code == 0);
  return parse_json(outcome.output, "standard output");
}

std::string write_scheduled_plan(const TemporaryFolder& folder, const std::string& name,
                                 const std::vector<int64_t>& replicas, const std::string& schedule = "1f1b",
                                 const std::string& weights = "stash", int64_t microbatches = 1) {
  Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), replicas);
  plan.schedule = schedule;
  plan.weights = weights;
  plan.microbatches = microbatches;
  for (Stage& stage : plan.stages)
    if (schedule == "gpipe") stage.in_flight = microbatches;
  write_document(folder / name, plan);
  return (folder / name).string();
}

std::vector<std::string> scratch_folders(const TemporaryFolder& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder / ""))
    if (entry.path().filename().string().rfind("pipewright-", 0) == 0) found.push_back(entry.path());
  return found;
}

}  // namespace

TEST_CASE("verify: every rule equals the serial reference, what computes the same as one device is near it") {
  const TemporaryFolder folder;
  struct Case {
    std::vector<int64_t> replicas;
    std::string schedule, weights;
    int64_t microbatches;
    bool one_device;
    std::vector<std::string> more;
  };
  const std::vector<Case> cases = {
      {{2, 1}, "1f1b", "stash", 1, false, {"--learning-rate-policy", "cosine"}},
      {{1, 1, 1}, "1f1b", "2bw", 3, false, {"--optimizer", "adam", "--momentum=0", "--learning-rate=1e-3"}},
      {{1, 3}, "1f1b-flush", "flush", 4, true, {"--gradient-clipping-norm", "0.5"}},
      {{3}, "1f1b", "stash", 1, true, {"--transport", "gloo", "--gradient-accumulation", "2"}}};
  for (const Case& c : cases) {
    auto words = kMomentumJob;
    if (c.more[0] == "--optimizer") words.resize(words.size() - 2);
    const std::string plan =
        write_scheduled_plan(folder, "plan.json", c.replicas, c.schedule, c.weights, c.microbatches);
    const Json json =
        json_of(runtime(folder, std::vector<std::string>{"verify", "--json", "--plan", plan} + words +
                                    c.more + std::vector<std::string>{"--minibatches", "13"}));
    CAPTURE(json.dump());
    CHECK(json["verdict"] == "equal");
    CHECK(json["minibatches"] == 13);
    CHECK(json["serial_reference"]["equal"] == true);
    CHECK(json["one_device"].is_null() == !c.one_device);
    if (!c.one_device) continue;
    CHECK(json["one_device"]["parameters"].size() == 14);
    CHECK(json["one_device"]["model"].get<double>() < 1e-4);
    CHECK(json["one_device"]["losses"].get<double>() < 1e-5);
  }
  CHECK(scratch_folders(folder).empty());
}

TEST_CASE(
    "verify --run: a finished and resumed run holds, changed documents and losses do not, with exit code 6") {
  const TemporaryFolder folder;
  const fs::path output = folder / "run";
  const auto train = [&](const std::vector<std::string>& more) {
    const Outcome outcome = runtime(
        folder,
        std::vector<std::string>{"launch", "--plan", write_scheduled_plan(folder, "plan.json", {1, 1})} +
            kMomentumJob +
            std::vector<std::string>{"--output", output.string(), "--checkpoint-every-minibatches", "10"} +
            more);
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    return outcome.output;
  };
  CHECK_THAT(train({"--epochs", "2"}), Catch::Contains("24 minibatches in "));
  const std::vector<std::string> verify = {"verify", "--run", output.string()};
  const Outcome whole = runtime(folder, verify);
  INFO(whole.error);
  CHECK(whole.code == 0);
  CHECK(whole.output.find("minibatches 0 to 23") != std::string::npos);
  CHECK(whole.output.find("equal bit for bit: losses equal") != std::string::npos);

  CHECK_THAT(train({"--epochs", "3", "--resume", "latest"}),
             Catch::Contains("12 minibatches, from minibatch 24 on, in "));
  CHECK(read_document<Summary>(output / "summary.json").minibatches == 36);
  // Its beginning is not in run.json any more: from the oldest checkpoint that is left.
  const fs::path good = folder / "good.html";
  const Outcome resumed = runtime(folder, verify + std::vector<std::string>{"--report", good.string()});
  INFO(resumed.error);
  CHECK(resumed.code == 0);
  CHECK(resumed.output.find("to 35") != std::string::npos);
  CHECK_THAT(read_file(good), Catch::Contains("the ranks have computed what one process computes") &&
                                  Catch::Contains("digest of the last weights"));

  // Its beginning is another run's checkpoint.
  const fs::path first = output / "checkpoints" / "minibatch-24",
                 moved = folder / "elsewhere" / first.filename();
  const auto other = [&](const fs::path& from) {
    const fs::path into = folder / "other";
    const Outcome trained =
        runtime(folder, std::vector<std::string>{"launch", "--resume", from.string(), "--output",
                                                 into.string(), "--plan", (folder / "plan.json").string(),
                                                 "--checkpoint-every-epochs", "3", "--overwrite"} +
                            kMomentumJob + std::vector<std::string>{"--epochs", "3"});
    INFO(trained.error);
    REQUIRE(trained.code == 0);
    return runtime(folder, {"verify", "--run", into.string()});
  };
  const Outcome elsewhere = other(first);
  INFO(first << elsewhere.error);
  CHECK(elsewhere.code == 0);
  fs::create_directories(moved.parent_path());
  fs::copy(first, moved);
  other(moved);
  fs::remove_all(moved);
  const Outcome gone = runtime(folder, {"verify", "--run", (folder / "other").string()});
  CHECK(gone.code == 2);
  CHECK_THAT(gone.error, Catch::Contains("the run went on from " + moved.string() + ", which is not there"));

  const auto document = read_document<Run>(output / "run.json");
  Run changed = document;
  changed.optimizer.learning_rate *= 1.0001;
  write_document(output / "run.json", changed);
  const fs::path page = folder / "verified.html";
  const Outcome different = runtime(folder, verify + std::vector<std::string>{"--report", page.string()});
  CHECK(different.code == 6);
  CHECK_THAT(read_file(page), Catch::Contains("verify: parameter &quot;") &&
                                  Catch::Contains("the first that differs is that of minibatch 2") &&
                                  Catch::Contains("Tensors that differ") && Catch::Contains(">differs<"));
  REQUIRE(runtime(folder, {"report", output.string(), "--output", page.string()}).code == 0);
  CHECK_THAT(read_file(page), Catch::Contains("Not equal to one process that trains the plan: verify: ") &&
                                  Catch::Contains("the first loss that differs is that of minibatch 2") &&
                                  !Catch::Contains("Not yet"));
  CAPTURE(different.error);
  CHECK(different.error.find("verify: parameter \"") != std::string::npos);
  CHECK(different.error.find("of stage 0 differs from the serial reference at [0") != std::string::npos);
  CHECK(different.error.find("the first loss that differs is that of minibatch 2") != std::string::npos);
  write_document(output / "run.json", document);

  // One digit of one loss.
  std::string metrics = read_file(output / "metrics.jsonl");
  const size_t line = metrics.find("{\"minibatch\":33,");
  REQUIRE(line != std::string::npos);
  const size_t digit = metrics.find("\"loss\":", line) + 7;
  metrics[digit] = metrics[digit] == '1' ? '2' : '1';
  write_file(output / "metrics.jsonl", metrics);
  const Outcome loss = runtime(folder, verify + std::vector<std::string>{"--json"});
  CHECK(loss.code == 6);
  CHECK(parse_json(loss.output, "output")["serial_reference"]["first_loss"]["minibatch"] == 33);
  CHECK(loss.error.find("all weights are equal") != std::string::npos);
}

TEST_CASE("a run of a plan that was changed by hand says why it has no prediction, and what makes one") {
  const TemporaryFolder folder;
  const fs::path plan = write_scheduled_plan(folder, "plan.json", {1, 1}), page = folder / "run.html";
  Json json = read_json_file(plan);
  json["predicted"] = {
      {"minibatch_seconds", 0.5},   {"bottleneck", "stage 0: compute"},
      {"lower_bound_seconds", 0.5}, {"samples_per_second", 16},
      {"stages", Json::array()},    {"plan_digest", "xxh128:8d330871841481cb03ee06ff28d84125"}};
  write_file(plan, json.dump());
  const std::string run = (folder / "run").string();
  const Outcome trained =
      runtime(folder, std::vector<std::string>{"launch", "--plan", plan.string(), "--minibatches", "4",
                                               "--output", run, "--report", page.string()} +
                          kMomentumJob);
  INFO(trained.error);
  REQUIRE(trained.code == 0);
  CHECK_THAT(trained.error, Catch::Contains("plan.json was changed after its prediction was made"));
  for (const std::string& told : {read_file(page), runtime(folder, {"report", run}).output})
    CHECK_THAT(told, Catch::Contains("No prediction: the plan was changed after its own was made"));
  CHECK_THAT(read_file(page),
             Catch::Contains("pipewright-optimizer evaluate --plan " + run + "/plan.json --profile"));
}

TEST_CASE("verify goes on from a checkpoint, and begins with given weights") {
  const TemporaryFolder folder;
  const std::string plan = write_scheduled_plan(folder, "plan.json", {1, 2});
  const Outcome first =
      runtime(folder, std::vector<std::string>{"launch", "--plan", plan, "--optimizer", "adam"} +
                          std::vector<std::string>(kMomentumJob.begin(), kMomentumJob.end() - 2) +
                          std::vector<std::string>{"--output", (folder / "run").string(), "--minibatches",
                                                   "6", "--checkpoint-every-epochs", "1"});
  INFO(first.error);
  REQUIRE(first.code == 0);
  const std::string checkpoint = (folder / "run" / "checkpoints" / "minibatch-6").string();
  const Json resumed = json_of(
      runtime(folder, std::vector<std::string>{"verify", "--json", "--plan", plan, "--optimizer", "adam",
                                               "--minibatches", "20", "--resume", checkpoint} +
                          std::vector<std::string>(kMomentumJob.begin(), kMomentumJob.end() - 2)));
  CHECK(resumed["first_minibatch"] == 6);
  CHECK(resumed["minibatches"] == 14);
  CHECK(resumed["verdict"] == "equal");

  const std::string weights = (folder / "weights.safetensors").string();
  REQUIRE(runtime(folder, {"checkpoint", "export", checkpoint, "--output", weights}).code == 0);
  const Json given = json_of(
      runtime(folder, std::vector<std::string>{"verify", "--json", "--plan", plan, "--minibatches", "5",
                                               "--precision", "bfloat16", "--initial-weights", weights} +
                          kMomentumJob));
  CHECK(given["verdict"] == "equal");
  // What it trained left the run folder alone.
  CHECK(fs::exists(folder / "run" / "summary.json"));
  CHECK_FALSE(fs::exists("runs/latest/verify.json"));
}

TEST_CASE("evaluate gives the numbers of the training run's own evaluation, under its plan and any other") {
  const TemporaryFolder folder;
  const fs::path output = folder / "run";
  const Outcome trained = runtime(
      folder,
      std::vector<std::string>{"launch", "--plan", write_scheduled_plan(folder, "plan.json", {2, 1})} +
          kMomentumJob + kEvaluated +
          std::vector<std::string>{"--output", output.string(), "--checkpoint-every-epochs", "1"});
  INFO(trained.error);
  REQUIRE(trained.code == 0);
  const std::string checkpoint = (output / "checkpoints" / "minibatch-12").string();
  const auto own = parse_json(complete_lines(output / "metrics.jsonl").back(), "metrics")["evaluation"];
  const auto check = [&](const std::vector<std::string>& words) {
    CAPTURE(words);
    const Json json = json_of(runtime(folder, std::vector<std::string>{"evaluate", "--json"} + words));
    CHECK(json["loss"] == own["loss"]);
    CHECK(json["top1"] == own["top1"]);
    CHECK(json["samples"] == 50);
  };
  check({"--config", (output / "run.json").string(), "--resume", "latest"});
  check({"--resume", checkpoint});
  check({"--resume", checkpoint, "--plan", write_scheduled_plan(folder, "other.json", {1, 2, 1})});
  const std::string weights = (folder / "weights.safetensors").string();
  REQUIRE(runtime(folder, {"checkpoint", "export", output.string(), "--output", weights}).code == 0);
  check(
      std::vector<std::string>{"--model", kEndlessModel, "--batch-size", "8", "--initial-weights", weights} +
      kEvaluated);
  CHECK(fs::exists(output / "summary.json"));  // the run is as it was
  CHECK(scratch_folders(folder).empty());

  // Two ranks that somebody else has started.
  const std::string port = std::to_string(20000 + ::getpid() % 12000);
  const std::vector<std::string> rank = {
      "evaluate",     "--resume", checkpoint,      "--plan", write_scheduled_plan(folder, "two.json", {1, 1}),
      "--world-size", "2",        "--master-port", port,     "--rank"};
  Process second(std::vector<std::string>{program("runtime")} + rank + std::vector<std::string>{"1"},
                 folder / "out1", folder / "err1");
  Process zero(std::vector<std::string>{program("runtime")} + rank + std::vector<std::string>{"0", "--json"},
               folder / "out0", folder / "err0");
  CHECK(zero.wait(120s) == 0);
  INFO(zero.error());
  CHECK(second.wait(60s) == 0);
  CHECK(second.output().empty());
  CHECK(parse_json(zero.output(), "output")["loss"] == own["loss"]);
}

TEST_CASE("predict writes the same bytes under every plan, they say what evaluate says") {
  const TemporaryFolder folder;
  const fs::path output = folder / "run";
  REQUIRE(runtime(folder, std::vector<std::string>{"train", "--output", output.string(),
                                                   "--checkpoint-every-epochs", "1"} +
                              kMomentumJob + kEvaluated)
              .code == 0);
  const std::string checkpoint = (output / "checkpoints" / "minibatch-12").string();
  std::vector<std::string> scores, classes;
  for (const auto& replicas : {std::vector<int64_t>{1}, {1, 1}, {1, 1, 1}, {1, 2}, {3}}) {
    const std::string plan = write_scheduled_plan(folder, "plan.json", replicas);
    const Outcome outcome = runtime(
        folder, {"predict", "--resume", checkpoint, "--plan", plan, "--predictions",
                 (folder / "p.safetensors").string(), "--classes", (folder / "p.jsonl").string(), "--json"});
    CHECK(json_of(outcome)["samples"] == 50);
    scores.push_back(read_file(folder / "p.safetensors"));
    classes.push_back(read_file(folder / "p.jsonl"));
    CHECK(scores.back() == scores.front());
    CHECK(classes.back() == classes.front());
  }
  const auto own = parse_json(complete_lines(output / "metrics.jsonl").back(), "metrics")["evaluation"];
  int64_t hits = 0;
  const auto lines = complete_lines(folder / "p.jsonl");
  REQUIRE(lines.size() == 50);
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json line = parse_json(lines[i], "p.jsonl");
    CHECK(line["sample"] == i);
    hits += line["class"] == line["label"];
  }
  CHECK(static_cast<double>(hits) / 50 == own["top1"].get<double>());
}

TEST_CASE("verify: translations and masked texts in two stages under flush equal one device") {
  const TemporaryFolder folder;
  std::string pairs, text;
  for (int i = 0; i < 12; ++i) {
    pairs += "send " + std::to_string(i) + " to";
    pairs += " me\tsende " + std::to_string(i);
    pairs += " an mich\n";
    text += "Line " + std::to_string(i);
    text += " of some text of which a part is masked.\n";
  }
  write_file(folder / "pairs.tsv", pairs);
  write_file(folder / "text.txt", text);
  const std::vector<std::vector<std::string>> cases = {
      {"gnmt:layers=4,width=16,source=6,target=6,vocabulary=32",
       "translation:file=" + (folder / "pairs.tsv").string() + ",source=6,target=6,vocabulary=32,held=0"},
      {"bert:layers=2,width=16,heads=2,tokens=16,vocabulary=257",
       "masked-text:file=" + (folder / "text.txt").string() + ",tokens=16"}};
  for (const auto& words : cases) {
    CAPTURE(words[0]);
    Plan plan = even_plan(graph_of(words[0], 2, folder), {1, 1});
    plan.schedule = "1f1b-flush";
    plan.weights = "flush";
    plan.microbatches = 3;
    if (words[0].starts_with("bert"))
      plan.tied_parameters = {{"bert.embeddings.word_embeddings.weight", {0, 1}}};
    write_document(folder / "plan.json", plan);
    const Json json =
        json_of(runtime(folder, {"verify", "--json", "--plan", (folder / "plan.json").string(), "--model",
                                 words[0], "--data", words[1], "--batch-size", "2", "--minibatches", "9"}));
    CHECK(json["verdict"] == "equal");
    CHECK(json["serial_reference"]["equal"] == true);
    CHECK(json["one_device"]["losses"].get<double>() < 1e-5);
  }
}

TEST_CASE(
    "evaluate translations: perplexity is of the labels, what was learned by heart has BLEU 1, under every "
    "plan") {
  const TemporaryFolder folder;
  write_file(folder / "pairs.tsv",
             "one two three four\teins zwei drei vier\nfive six seven eight\tacht sieben sechs fünf\n"
             "red green blue gold\trot grün blau gold\n");
  const std::string model = "gnmt:layers=4,width=64,source=5,target=6,vocabulary=32,dropout=0,smoothing=0";
  const std::string data =
      "translation:file=" + (folder / "pairs.tsv").string() + ",source=5,target=6,vocabulary=32,held=0";
  const fs::path output = folder / "run";
  const auto evaluated = [&](int64_t epochs, const std::vector<std::vector<int64_t>>& plans) {
    const Outcome trained = runtime(
        folder, {"train", "--model", model, "--data", data, "--evaluation-data", data, "--batch-size", "3",
                 "--epochs", std::to_string(epochs), "--optimizer", "adam", "--learning-rate", "5e-3",
                 "--output", output.string(), "--checkpoint-every-epochs", std::to_string(epochs)});
    INFO(trained.error);
    REQUIRE(trained.code == 0);
    Json first;
    for (const auto& replicas : plans) {
      CAPTURE(replicas);
      // Half the samples a minibatch: several of them, the last one short.
      write_document(folder / "plan.json", even_plan(graph_of(model, 2, folder), replicas));
      Json json = json_of(
          runtime(folder, {"evaluate", "--json", "--model", model, "--evaluation-data", data, "--batch-size",
                           "2", "--plan", (folder / "plan.json").string(), "--resume",
                           (output / "checkpoints").string() + "/minibatch-" + std::to_string(epochs)}));
      if (first.is_null()) first = json;
      CHECK(json == first);
    }
    CHECK(first["samples"] == 3);
    CHECK(first["perplexity"].get<double>() == Approx(std::exp(first["loss"].get<double>())));
    fs::remove_all(output);
    return first;
  };
  const Json learned = evaluated(500, {{1}, {1, 1}, {1, 2}});
  CHECK(learned["bleu"] == 1);
  CHECK(learned["top1"] == 1);
  CHECK(learned["perplexity"] < 1.05);
  const Json not_yet = evaluated(3, {{1}});
  CHECK(not_yet["bleu"] < 0.5);
  CHECK(not_yet["perplexity"] > 5);
}

TEST_CASE("what the commands refuse, and with which words") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::vector<std::string>& words, const std::string& text, int code = 2) {
    const Outcome outcome = runtime(folder, words);
    CAPTURE(words, outcome.error);
    CHECK(outcome.code == code);
    CHECK(outcome.error.find(text) != std::string::npos);
  };
  refused(std::vector<std::string>{"evaluate"} + kMomentumJob + kEvaluated,
          "no weights to run: neither --resume nor --initial-weights is given");
  refused(std::vector<std::string>{"evaluate", "--resume", "latest", "--output", (folder / "none").string()} +
              kMomentumJob + kEvaluated,
          "there is no checkpoint in");
  refused(std::vector<std::string>{"evaluate", "--initial-weights", "none.safetensors"} + kMomentumJob,
          "there is no evaluation data");
  refused(std::vector<std::string>{"predict"} + kMomentumJob, "neither --predictions nor --classes is given");
  Plan forward_only = even_plan(graph_of(kEndlessModel, 8, folder), {1});
  forward_only.strategy = "inference";
  write_document(folder / "forward.json", forward_only);
  refused(std::vector<std::string>{"train", "--plan", (folder / "forward.json").string()} + kMomentumJob,
          "strategy 'inference' runs forward only", 3);
  refused({"verify", "--run", (folder / "none").string()}, "is no run folder");
  refused({"verify", "--run", (folder / "none").string(), "--plan", "x"}, "--plan does not go with --run");
  refused(
      std::vector<std::string>{"verify", "--report", (folder / "none" / "x.html").string()} + kMomentumJob,
      "none/x.html; the folder does not exist");
  refused(std::vector<std::string>{"verify", "--tolerance=-1", "--minibatches", "1"} + kMomentumJob,
          "--tolerance");
  for (const char* command : {"train", "launch"}) {
    refused(
        {command, "--model", "resnet18:image=32", "--batch-size", "1", "--data",
         "synthetic-images:image=32,channels=3", "--minibatches", "2", "--output", (folder / "run").string()},
        "layer4.0.bn1: batch_norm: one value per channel, of shape (1, 512, 1, 1), has no variance");
  }
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_CASE("launch: an evaluation is the same wherever the plan has the labels read, on ranks in any order") {
  const TemporaryFolder folder;
  const std::string model = "gpt:layers=2,width=16,heads=2,tokens=8,vocabulary=32";
  const Graph graph = graph_of(model, 4, folder);
  std::vector<Json> evaluations;
  for (const bool early : {false, true}) {
    Plan plan = even_plan(graph, {1, 2, 1});
    plan.schedule = "1f1b-flush";
    plan.weights = "flush";
    plan.microbatches = 2;
    plan.stages[0].ranks = {2};
    plan.stages[1].ranks = {3, 0};
    plan.stages[2].ranks = {1};
    for (const Node& node : graph.nodes) {
      const auto read = node.reads();
      if (!early || read != std::vector<std::string>{"labels"}) continue;
      std::erase(plan.stages[2].nodes, node.name);
      plan.stages[0].nodes.push_back(node.name);
    }
    CHECK((plan.stages[0].nodes.size() > even_plan(graph, {1, 2, 1}).stages[0].nodes.size()) == early);
    write_document(folder / "plan.json", plan);
    const fs::path output = folder / (early ? "early" : "late");
    const Outcome trained =
        runtime(folder, {"launch", "--plan", (folder / "plan.json").string(), "--model", model, "--data",
                         "synthetic-text:vocabulary=32,tokens=8,samples=32", "--evaluation-data",
                         "synthetic-text:vocabulary=32,tokens=8,samples=22", "--batch-size", "4", "--epochs",
                         "1", "--output", output.string()});
    INFO(trained.error);
    REQUIRE(trained.code == 0);
    evaluations.push_back(
        parse_json(complete_lines(output / "metrics.jsonl").back(), "metrics")["evaluation"]);
  }
  CHECK(evaluations[0]["top1"].is_number());
  CHECK(evaluations[1] == evaluations[0]);
}
