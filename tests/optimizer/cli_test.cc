// pipewright-optimizer as a process: exit codes, messages, files.
#include "tests/optimizer/cli.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <string>

#include "graph/document.h"
#include "graph/pipedream.h"
#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"

namespace pipewright {
namespace {

using testing::Cli;
using testing::kProblem;
using testing::Outcome;

TEST_CASE("plan writes gpus=N.json into a folder that it makes") {
  const Cli cli;
  const Outcome outcome = cli.run("plan " + kProblem + "--output some/plans");
  INFO(outcome.error);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("bound by"));
  CHECK_THAT(outcome.error, Catch::Contains("wrote some/plans/gpus=4.json"));
  const Plan plan = read_document<Plan>(cli.path("some/plans/gpus=4.json"));
  CHECK(plan.predicted.has_value());
  // The default command, into a file, as JSON.
  const Outcome again = cli.run(kProblem + "--json --output mine.json");
  CHECK(again.code == 0);
  CHECK(again.out == read_file(cli.path("mine.json")));
  CHECK(again.out == read_file(cli.path("some/plans/gpus=4.json")));
}

TEST_CASE("check, simulate and show take the plans that take over on the way") {
  const Cli cli;
  REQUIRE(cli.run("compare " + kProblem + "--output plans").code == 0);
  const std::string first = "--plan plans/gpus=4.straight.json ";
  const std::string known = first + "--profile profile.json --bandwidths 1MB/s --latency 10us ";
  write_file(cli.path("changes.json"),
             R"([{"minibatch": 20, "plan": "plans/gpus=4.dp.json"},
                 {"minibatch": 50, "plan": "plans/gpus=4.straight.json"}])");
  const std::string changes = "--changes changes.json ";

  const Outcome check = cli.run("check " + known + changes + "--minibatches 90");
  INFO(check.error);
  CHECK(check.code == 0);
  CHECK_THAT(check.out, Catch::Contains("changes   ok: 2 plans, each checked as the first"));
  CHECK_THAT(check.out, Catch::Contains("\n  20  4 ") && Catch::Contains("90 minibatches: ") &&
                            Catch::Contains("go into 2 changes; under the first plan alone"));
  CHECK_THAT(cli.run("check " + first + changes).out, Catch::Contains("not priced: no --profile"));
  // A run that ends before the changes is the first plan's.
  CHECK_THAT(cli.run("check " + known + changes + "--minibatches 20").out,
             Catch::Contains("go into 0 changes"));

  const Outcome played =
      cli.run("simulate " + known + changes + "--minibatches 60 --output all.svg --trace all.json");
  INFO(played.error);
  CHECK(played.code == 0);
  const std::string svg = read_file(cli.path("all.svg"));
  CHECK_THAT(svg, Catch::Contains("2 changes of the plan, 60 minibatches"));
  for (const char* rank : {"rank 0 ", "rank 3 "}) CHECK_THAT(svg, Catch::Contains(rank));
  CHECK_THAT(read_file(cli.path("all.json")), Catch::Contains("59"));

  const Outcome shown = cli.run("show " + first + changes);
  CHECK(shown.code == 0);
  CHECK_THAT(shown.out,
             Catch::Contains("From minibatch 20 on (") && Catch::Contains("From minibatch 50 on ("));

  const auto refused = [&](const std::string& words, int code, const std::string& text) {
    const Outcome outcome = cli.run(words);
    INFO(words << "\n" << outcome.error);
    CHECK(outcome.code == code);
    CHECK_THAT(outcome.error, Catch::Contains(text));
  };
  refused("simulate " + known + changes + "--minibatches 20", 2, "the first change is at minibatch 20");
  refused("simulate " + known + changes + "--slot 1ms", 2, "--slot: not together with --changes");
  refused("check " + known + "--changes nothing.json", 2, "nothing.json");
  refused("check --plan plans/gpus=4.dp.json --profile profile.json --bandwidths 1MB/s --memory 100KiB " +
              changes,
          4, "gpus=4.straight.json: plan: stage 0 needs");
  Plan other = read_document<Plan>(cli.path("plans/gpus=4.dp.json"));
  other.stages[0].nodes.pop_back();
  write_document(cli.path("plans/gpus=4.dp.json"), other);
  refused("check " + first + changes, 3,
          "gpus=4.dp.json: the plan has other nodes than that of plans/gpus=4.straight.json");
}

TEST_CASE("what a command prints is as wide as the terminal: tables, sentences, drawings") {
  const Cli cli;
  Profile profile = read_document<Profile>(cli.path("profile.json"));
  profile.model = "a-model-with-quite-a-name";
  for (size_t v = 0; v < profile.nodes.size(); ++v)
    profile.nodes[v].layer = "backbone.features.block" + std::to_string(v) + ".convolution";
  write_document(cli.path("long.json"), profile);
  const std::string problem = "--profile long.json --gpus 6 --bandwidths 1MB/s --latency 10us ";
  REQUIRE(cli.run("compare " + problem + "--output plans").code == 0);
  const std::string plan = "--plan plans/gpus=6.straight.json ";
  const std::string known = plan + "--profile long.json --bandwidths 2MB/s ";
  const std::vector<std::string> commands = {
      "plan " + problem,
      "plan " + problem + "--print-config",
      "plan " + problem + "--for inference --period 1s",
      "plan " + problem + "--objective max-load --memory 16GiB",
      "compare " + problem,
      "compare " + problem + "--memory 100kB",
      "check " + known,
      "evaluate " + known,
      "simulate " + known + "--slot 1ms",
      "show " + plan,
  };
  const auto width = [](const std::string& text) {
    size_t most = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      most = std::max(most, end - begin);
      begin = end + 1;
    }
    return most;
  };
  size_t widest = 0;
  for (const std::string& command : commands) {
    const Outcome whole = cli.run(command);
    INFO(command << "\n" << whole.out << whole.error);
    REQUIRE(whole.code == 0);
    widest = std::max(widest, width(whole.out));
    CHECK(cli.run(command + " --wide", 60).out == whole.out);
    CHECK(cli.run(command, 1000000).out == whole.out);
    for (const int64_t columns : {120, 100, 80, 60}) {
      const Outcome fitted = cli.run(command, columns);
      INFO(columns << " columns\n" << fitted.out);
      CHECK(fitted.code == 0);
      CHECK(width(fitted.out) <= static_cast<size_t>(columns));
    }
  }
  CHECK(widest > 120);
  // What decides is there at 80 columns.
  const std::string comparison = cli.run("compare " + problem, 80).out;
  for (const char* head : {"strategy", "stages", "minibatch", "speed-up", "memory", "bound by"})
    CHECK_THAT(comparison, Catch::Contains(head));
  const std::string planned = cli.run("plan " + problem, 80).out;
  for (const char* head : {"stage", "ranks", "compute", "minibatch", "bound by", "memory", "layers"})
    CHECK_THAT(planned, Catch::Contains(head));
}

TEST_CASE("a plan by hand shows its nodes, and with a profile the layers of them") {
  const Cli cli;
  REQUIRE(cli.run("plan " + kProblem + "--strategy straight --output p.json").code == 0);
  Plan plan = read_document<Plan>(cli.path("p.json"));
  const std::vector<std::string> nodes = plan.stages[0].nodes;
  for (Stage& stage : plan.stages) stage.layers.clear();
  plan.predicted.reset();
  plan.strategy = "manual";
  write_document(cli.path("hand.json"), plan);
  const Outcome shown = cli.run("show --plan hand.json");
  INFO(shown.out);
  CHECK_THAT(shown.out, Catch::Contains(" " + nodes.front()) && !Catch::Contains(" -\n"));
  const Outcome priced = cli.run("evaluate --plan hand.json --profile profile.json");
  INFO(priced.out);
  CHECK_THAT(priced.out, Catch::Contains("layer0") && !Catch::Contains(" -\n"));
}

TEST_CASE("plan, show, evaluate, simulate and check make pages, also of plans that do not run") {
  const Cli cli;
  REQUIRE(cli.run("plan " + kProblem + "--strategy straight --output p.json").code == 0);
  const std::string known = "--plan p.json --profile profile.json --bandwidths 1MB/s --latency 10us ";
  const auto page = [&](const std::string& words, int code, const std::vector<std::string>& parts) {
    const Outcome outcome = cli.run(words + " --report page.html");
    INFO(words << "\n" << outcome.error);
    CHECK(outcome.code == code);
    CHECK_THAT(outcome.error, Catch::Contains("wrote page.html\n"));
    const std::string text = read_file(cli.path("page.html"));
    for (const std::string& part : parts) CHECK_THAT(text, Catch::Contains(part));
    std::filesystem::remove(cli.path("page.html"));
  };
  page("evaluate " + known, 0,
       {"per minibatch, bound by", "The model coloured by stage", "With a cut moved",
        "launch --plan p.json --model "});
  page("evaluate " + known + "--output q.json", 0, {"launch --plan q.json --model "});
  page("show " + known, 0, {"launch --plan p.json --model "});
  page("plan " + kProblem + "--output plans", 0, {"launch --plan plans/gpus=4.json --model "});
  page("plan " + kProblem + "--for inference --period 1s --output i.json", 0, {"latency", "Stages"});
  page("evaluate --plan i.json --profile profile.json --gpus 4", 0, {"forward only", "Stages"});
  page("show --plan i.json --profile profile.json --gpus 4", 0, {"inference", "Stages"});
  page("plan " + kProblem, 0, {"launch --plan PLAN.json --model "});  // of none that was written
  page("evaluate " + known + "--memory 1kB", 4, {"per minibatch, bound by", "It does not fit: rank "});
  page("simulate " + known, 0, {"64 minibatches: ", "in the long run", "What each rank does", ">bubble<"});
  page("simulate " + known + "--minibatches 5000", 0, {"What each rank does: the first 250 minibatches"});
  page("check " + known, 0, {"It would run on these devices", "no rank waits for ever", "by purpose"});
  page("check " + known + "--memory 1kB", 4,
       {"It would not run: ", "of 1000 B: ", " too much", "What was checked before that", "cover"});
  page("check --plan p.json", 0, {"not checked: no --profile"});
  Plan plan = read_document<Plan>(cli.path("p.json"));
  plan.stages[0].nodes.pop_back();
  write_document(cli.path("holed.json"), plan);
  page("check --plan holed.json --profile profile.json", 3, {"It would not run: "});
  // Refused when it is read.
  plan.stages[1].ranks = plan.stages[0].ranks;
  write_file(cli.path("twice.json"), document_text(plan));
  page("check --plan twice.json", 2,
       {"<h1>twice.json, checked</h1>",
        "It would not run: twice.json: stages[1].ranks[0]: rank 0 is in stage 0"});
  for (const char* command : {"evaluate ", "simulate ", "check "}) {
    const Outcome refused = cli.run(command + known + "--report page.svg");
    CHECK(refused.code == 2);
    CHECK_THAT(refused.error,
               Catch::Contains("--report: got \"page.svg\"; expected a name that ends in .html"));
  }
}

TEST_CASE("show: of a plan that was changed by hand the old prediction is no prediction") {
  const Cli cli;
  REQUIRE(cli.run("plan " + kProblem + "--strategy straight --output p.json").code == 0);
  CHECK_THAT(cli.run("show --plan p.json").out, Catch::Contains("Expected: "));
  Json json = read_json_file(cli.path("p.json"));
  json["stages"][0]["in_flight"] = json["stages"][0]["in_flight"].get<int>() - 1;
  write_file(cli.path("p.json"), json.dump());
  const Outcome changed = cli.run("show --plan p.json");
  CHECK(changed.code == 0);
  CHECK_THAT(changed.out, !Catch::Contains("Expected: "));
  CHECK_THAT(changed.error, Catch::Contains("note: p.json was changed after its prediction was made"));
  REQUIRE(cli.run("evaluate --plan p.json --profile profile.json --output p.json").code == 0);
  const Outcome anew = cli.run("show --plan p.json");
  CHECK_THAT(anew.out, Catch::Contains("Expected: "));
  CHECK(anew.error.empty());
}

TEST_CASE("layers are named by the nodes that a stage holds, not by those that it held before an edit") {
  const Cli cli;
  REQUIRE(cli.run("plan " + kProblem + "--strategy straight --output p.json").code == 0);
  Json json = read_json_file(cli.path("p.json"));
  // The last node of a stage to the next one, and nothing else.
  size_t s = 0;
  while (json["stages"][s]["nodes"].size() < 2) ++s;
  REQUIRE(s + 1 < json["stages"].size());
  Json &from = json["stages"][s]["nodes"], &to = json["stages"][s + 1]["nodes"];
  const auto moved = from.back().get<std::string>();
  to.insert(to.begin(), moved);
  from.erase(from.size() - 1);
  write_file(cli.path("p.json"), json.dump());
  const Outcome alone = cli.run("show --plan p.json");
  INFO(alone.out << alone.error);
  CHECK_THAT(alone.out, Catch::Contains(" " + moved + " .. ") && !Catch::Contains("layer0"));
  CHECK_THAT(alone.error, Catch::Contains("as are the names of its layers"));
  // Who deletes the prediction with it is told no other names.
  json.erase("predicted");
  write_file(cli.path("unpriced.json"), json.dump());
  const Outcome unpriced = cli.run("show --plan unpriced.json");
  INFO(unpriced.out << unpriced.error);
  CHECK(unpriced.out.find(" " + moved + " .. ") != std::string::npos);
  CHECK(unpriced.out.find("layer0") == std::string::npos);
  CHECK_THAT(unpriced.error, Catch::Contains("note: unpriced.json has no prediction"));
  for (Json& stage : json["stages"]) stage.erase("layers");
  write_file(cli.path("unpriced.json"), json.dump());
  CHECK(cli.run("show --plan unpriced.json").error.empty());
  const Profile profile = read_document<Profile>(cli.path("profile.json"));
  const auto node = std::find_if(profile.nodes.begin(), profile.nodes.end(),
                                 [&](const ProfiledNode& each) { return each.name == moved; });
  REQUIRE(node != profile.nodes.end());
  CHECK_THAT(cli.run("show --plan unpriced.json --profile profile.json").out,
             Catch::Contains("  " + node->layer + "\n"));
  CHECK_THAT(cli.run("show --plan p.json --profile profile.json").out,
             Catch::Contains("  " + node->layer + "\n"));
  REQUIRE(cli.run("evaluate --plan p.json --profile profile.json --output p.json").code == 0);
  CHECK(read_document<Plan>(cli.path("p.json")).stages[s + 1].layers.front() == node->layer);
}

TEST_CASE("show and simulate say of a plan that does not fit by how much it does not") {
  const Cli cli;
  REQUIRE(cli.run("plan " + kProblem + "--strategy straight --output p.json").code == 0);
  const std::string known = " --plan p.json --profile profile.json --bandwidths 1MB/s --latency 10us";
  for (const std::string& command :
       std::vector<std::string>{"show --plan p.json", "show" + known, "simulate" + known}) {
    const Outcome small = cli.run(command + " --memory 1kB");
    INFO(small.out << small.error);
    CHECK(small.code == 0);
    CHECK_THAT(small.out,
               Catch::Contains("It does not fit: rank ") &&
                   Catch::Contains(" more than its 1000 B; `pipewright-optimizer check` with --profile "));
    CHECK_THAT(cli.run(command + " --memory 1GB").out, !Catch::Contains("does not fit"));
    CHECK_THAT(cli.run(command).out, !Catch::Contains("does not fit"));
  }
}

TEST_CASE("check: 0 for a good plan, 3 for a wrong one, 4 for one that does not fit") {
  const Cli cli;
  REQUIRE(cli.run("plan " + kProblem + "--strategy straight --output p.json").code == 0);
  CHECK(cli.run("check --plan p.json").code == 0);
  CHECK(cli.run("check --plan p.json --profile profile.json").code == 0);
  const Outcome kept = cli.run("check --plan p.json --profile profile.json --on-loss restart");
  CHECK_THAT(kept.out, Catch::Contains("\nkept      ") && Catch::Contains("of each state for lost ranks"));
  CHECK_THAT(
      cli.run("check --plan p.json --profile profile.json --on-loss restrat").error,
      Catch::Contains("--on-loss: got \"restrat\"; expected restart or continue; did you mean 'restart'?"));
  const Outcome small = cli.run("check --plan p.json --profile profile.json --memory 1kB");
  CHECK(small.code == 4);
  CHECK_THAT(small.error, Catch::Contains("needs") && Catch::Contains("the limit is"));
  CHECK(cli.run("check --plan p.json --profile profile.json --gpus 1").code == 4);

  Plan plan = read_document<Plan>(cli.path("p.json"));
  plan.stages[0].nodes.pop_back();
  write_document(cli.path("holed.json"), plan);
  const Outcome holed = cli.run("check --plan holed.json --profile profile.json");
  CHECK(holed.code == 3);
  CHECK_THAT(holed.error, Catch::Contains("no stage holds node"));
  plan = read_document<Plan>(cli.path("p.json"));
  plan.schedule = "1f1c";
  write_document(cli.path("odd.json"), plan);
  CHECK(cli.run("check --plan odd.json").code != 0);
  // Damage by hand, each in words.
  const auto refused = [&](const Plan& damaged, int code, const std::string& expected) {
    write_document(cli.path("damaged.json"), damaged);
    const Outcome outcome = cli.run("check --plan damaged.json --profile profile.json");
    INFO(outcome.error);
    CHECK(outcome.code == code);
    CHECK_THAT(outcome.error, Catch::Contains(expected));
    CHECK(outcome.error.find("\n  ") != std::string::npos);  // and the cure
  };
  const Plan good = read_document<Plan>(cli.path("p.json"));
  REQUIRE(good.stages.size() > 1);
  plan = good;
  std::swap(plan.stages[0].nodes, plan.stages[1].nodes);
  refused(plan, 3, "later stage");
  plan = good;
  plan.weights = "flush";
  refused(plan, 3, "does not go with weights");
  plan = good;
  plan.schedule = "gpipe";
  plan.weights = "flush";
  plan.microbatches = 8;
  refused(plan, 3, "in_flight is");
  plan = good;
  plan.weights = "2bw";
  plan.stages[0].in_flight = 4;
  plan.stages[1].in_flight = 4;
  refused(plan, 3, "microbatches an update");
  plan = good;
  for (Stage& stage : plan.stages) {
    if (stage.nodes.size() < 2) continue;
    std::swap(stage.nodes.front(), stage.nodes.back());
    refused(plan, 3, "order of the profile");
    break;
  }
  CHECK(cli.run("check --plan missing.json").code == 2);
}

TEST_CASE("evaluate, simulate, show, convert") {
  const Cli cli;
  REQUIRE(cli.run("plan " + kProblem + "--output p.json").code == 0);
  const std::string links = " --bandwidths 1MB/s --latency 10us";
  const Outcome evaluated = cli.run("evaluate --plan p.json --profile profile.json --json" + links);
  CHECK(evaluated.code == 0);
  const Plan plan = read_document<Plan>(cli.path("p.json"));
  CHECK(parse_document<Plan>(evaluated.out, "out").predicted->minibatch_seconds ==
        Approx(plan.predicted->minibatch_seconds));
  const Outcome simulated =
      cli.run("simulate --plan p.json --profile profile.json --minibatches 30 --trace t.json" + links);
  INFO(simulated.error);
  CHECK(simulated.code == 0);
  CHECK_THAT(simulated.out, Catch::Contains("bubble"));
  const std::string simulate = "simulate --plan p.json --profile profile.json --minibatches 12" + links;
  CHECK(cli.run(simulate + " --transfers blocking --output s.svg --memory-over-time m.svg").code == 0);
  CHECK_THAT(read_file(cli.path("s.svg")), Catch::Contains("<svg"));
  CHECK_THAT(read_file(cli.path("m.svg")), Catch::Contains("peak"));
  CHECK(cli.run(simulate + " --memory-over-time m.csv").code == 0);
  CHECK_THAT(read_file(cli.path("m.csv")), Catch::StartsWith("rank,seconds,bytes\n0,0,"));
  CHECK_THAT(cli.run(simulate + " --slot 1ms").out, Catch::Contains("F0"));
  CHECK(cli.run(simulate + " --slot 1ns").code == 2);
  CHECK(cli.run(simulate + " --transfers none").code == 2);
  CHECK(cli.run(simulate + " --output s.png").code == 2);
  CHECK(read_json_file(cli.path("t.json")).is_object() + read_json_file(cli.path("t.json")).is_array() == 1);
  const Outcome shown = cli.run("show --plan p.json");
  CHECK(shown.code == 0);
  CHECK_THAT(shown.out, Catch::Contains("F0"));
  CHECK(cli.run("show --plan p.json --profile profile.json --output t.svg").code == 0);
  CHECK_THAT(read_file(cli.path("t.svg")), Catch::Contains("<svg"));
  CHECK(cli.run("show --plan p.json --output t.png").code == 2);

  CHECK(cli.run("convert --input profile.json --output graph.txt").code == 0);
  CHECK(looks_like_pipedream_profile(read_file(cli.path("graph.txt"))));
  CHECK(cli.run("convert --input graph.txt --output back.json").code == 0);
  CHECK(read_document<Profile>(cli.path("back.json")).nodes.size() == 6);
  CHECK(cli.run("convert --input graph.txt --output again.txt").code == 2);
  CHECK(cli.run("--profile graph.txt --gpus 2").code == 0);
}

TEST_CASE("simulate --sync: pipelines side by side, on devices of their own speed, and what to take") {
  const Cli cli;
  Topology topology;
  topology.levels = {{2, 1e9, 1e-6, false}};
  for (const double speed : {1.0, 0.25}) topology.devices.push_back({"host", speed, 0});
  write_document(cli.path("topology.json"), topology);
  for (const char* devices : {"--bandwidths 1GB/s", "--topology topology.json"}) {
    const Outcome planned =
        cli.run(std::string("plan --profile profile.json --gpus 2 --strategy dp --output p.json ") +
                (devices[2] == 'b' ? devices : "--bandwidths 1GB/s"));
    INFO(planned.error);
    REQUIRE(planned.code == 0);
    const std::string simulate =
        std::string("simulate --plan p.json --profile profile.json --minibatches 400 ") + devices;
    const Outcome all = cli.run(simulate + " --sync all");
    INFO(all.error << all.out);
    REQUIRE(all.code == 0);
    for (const char* row :
         {"all-reduce", "partial-reduce", "adpsgd-lockstep", "adpsgd", "hetpipe", "none:minibatches=shared"})
      CHECK_THAT(all.out, Catch::Contains(row));
    const bool slow = devices[2] == 't';
    CHECK_THAT(all.out, Catch::Contains(slow ? "Take adpsgd: " : "Take all-reduce: "));
    const Outcome one = cli.run(simulate + " --sync none --sync hetpipe:distance=3");
    CHECK(one.code == 0);
    CHECK_THAT(one.out, Catch::Contains("hetpipe:distance=3") && !Catch::Contains("partial-reduce"));
    const Outcome json = cli.run(simulate + " --sync all --json");
    const Json rows = parse_json(json.out, "rows");
    REQUIRE(rows.size() == 7);
    CHECK(rows[0]["times_all_reduce"] == 1);
    CHECK((rows[1]["times_all_reduce"] > 1.1) == slow);
    const Outcome wrong = cli.run(simulate + " --sync hetpip");
    CHECK(wrong.code == 2);
    CHECK_THAT(wrong.error, Catch::Contains("did you mean 'hetpipe'"));
    CHECK(cli.run(simulate + " --sync all --output t.svg").code == 2);
  }
  REQUIRE(
      cli.run("plan --profile profile.json --gpus 3 --replicas 0:2,1:1 --bandwidths 1GB/s --output q.json")
          .code == 0);
  const Outcome refused =
      cli.run("simulate --plan q.json --profile profile.json --bandwidths 1GB/s --sync all");
  CHECK(refused.code == 3);
  CHECK_THAT(refused.error, Catch::Contains("side by side"));
}

TEST_CASE("plans of every schedule and version rule are checked, priced again and simulated") {
  const Cli cli;
  const std::string links = " --bandwidths 1MB/s --latency 10us ";
  for (const std::string rules :
       {"--schedule 1f1b", "--weights 2bw", "--weights 2bw --microbatches 4",
        "--weights vertical --strategy straight", "--schedule gpipe", "--schedule gpipe --microbatches 3",
        "--schedule 1f1b-flush --microbatches 6", "--schedule 1f1b-flush --strategy hybrid",
        "--schedule zb-h1 --strategy straight", "--schedule interleaved --microbatches 8",
        "--schedule gpipe --replicas 0:2,1:1", "--strategy model-parallel"}) {
    INFO(rules);
    const Outcome planned = cli.run("plan " + kProblem + rules + " --output p.json");
    INFO(planned.error);
    REQUIRE(planned.code == 0);
    const Plan plan = read_document<Plan>(cli.path("p.json"));
    const Outcome checked = cli.run("check --plan p.json --profile profile.json" + links);
    INFO(checked.error);
    CHECK(checked.code == 0);
    const Outcome evaluated = cli.run("evaluate --plan p.json --profile profile.json --json" + links);
    REQUIRE(evaluated.code == 0);
    CHECK(parse_document<Plan>(evaluated.out, "out").predicted->minibatch_seconds ==
          Approx(plan.predicted->minibatch_seconds).epsilon(1e-9));
    CHECK(plan.predicted->lower_bound_seconds <= plan.predicted->minibatch_seconds);
    CHECK(cli.run("simulate --plan p.json --profile profile.json --minibatches 24" + links).code == 0);
    CHECK(cli.run("show --plan p.json").code == 0);
  }
}

TEST_CASE("inference plans name their latency, too fast a rate exits 4 with what is possible") {
  const Cli cli;
  const Outcome planned = cli.run("plan " + kProblem + "--for inference --period 1s --output p.json");
  INFO(planned.error);
  CHECK(planned.code == 0);
  CHECK_THAT(planned.out, Catch::Contains("latency"));
  // Priced again it is what it was: forward only.
  const Outcome again = cli.run("evaluate --plan p.json --profile profile.json --gpus 4");
  INFO(again.error);
  CHECK(again.code == 0);
  CHECK_THAT(again.out, Catch::Contains("forward only") && Catch::Contains("The plan itself says") &&
                            !Catch::Contains("made with another profile"));
  const Outcome shown = cli.run("show --plan p.json");
  CHECK(shown.code == 0);
  CHECK_THAT(shown.out,
             Catch::Contains("schedule forward") && Catch::Contains("F0") && !Catch::Contains("B0"));
  const Outcome simulated = cli.run("simulate --plan p.json --profile profile.json --gpus 4");
  CHECK(simulated.code == 3);
  CHECK_THAT(simulated.error, Catch::Contains("strategy 'inference' runs forward only"));
  const Outcome fast = cli.run("plan " + kProblem + "--for inference --period 1us");
  CHECK(fast.code == 4);
  CHECK_THAT(fast.error, Catch::Contains("is possible"));
}

TEST_CASE("equal problems give equal bytes, twenty times") {
  const Cli cli;
  for (const std::string rules : {"", "--schedule 1f1b-flush", "--weights 2bw", "--max-stages 2"}) {
    std::string first;
    for (int run = 0; run < 20; ++run) {
      const Outcome outcome = cli.run("plan " + kProblem + rules + " --json");
      REQUIRE(outcome.code == 0);
      if (run == 0) first = outcome.out;
      REQUIRE(outcome.out == first);
    }
  }
}

TEST_CASE("convert: a plan becomes PipeDream's files and comes back") {
  const Cli cli;
  REQUIRE(cli.run("plan " + kProblem + "--replicas 0:2,1:1 --output p.json").code == 0);
  const Plan plan = read_document<Plan>(cli.path("p.json"));
  CHECK(cli.run("convert --input p.json --profile profile.json --output stages.txt").code == 0);
  CHECK(cli.run("convert --input p.json --output conf.json").code == 0);
  CHECK(cli.run("convert --input conf.json --profile stages.txt --output back.json").code == 0);
  const Plan back = read_document<Plan>(cli.path("back.json"));
  REQUIRE(back.stages.size() == plan.stages.size());
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    CHECK(back.stages[s].nodes == plan.stages[s].nodes);
    CHECK(back.stages[s].ranks == plan.stages[s].ranks);
    CHECK(back.stages[s].in_flight == plan.stages[s].in_flight);
  }
  CHECK(cli.run("check --plan back.json --profile profile.json").code == 0);
  CHECK(cli.run("convert --input back.json --output conf2.json").code == 0);
  CHECK(read_file(cli.path("conf.json")) == read_file(cli.path("conf2.json")));
  CHECK(cli.run("convert --input stages.txt --replicas 0:2,1:1 --output third.json").code == 0);
  CHECK(read_document<Plan>(cli.path("third.json")).shape_text() == plan.shape_text());

  CHECK(cli.run("convert --input conf.json --profile profile.json --output x.json").code == 2);
  CHECK(cli.run("convert --input conf.json --output x.json").code == 2);
  CHECK(cli.run("convert --input stages.txt --replicas 9:2 --output x.json").code == 2);
  CHECK(cli.run("convert --input p.json --replicas 0:2 --output x.json").code == 2);
  Plan flush = plan;
  flush.schedule = "gpipe";
  flush.weights = "flush";
  write_document(cli.path("flush.json"), flush);
  CHECK(cli.run("convert --input flush.json --output x.json").code == 3);
}

TEST_CASE("convert --to: plans for other programs, and PyTorch's schedules back") {
  const Cli cli;
  auto profile = read_document<Profile>(cli.path("profile.json"));
  for (size_t v = 0; v < profile.nodes.size(); ++v) profile.nodes[v].layer = "layers." + std::to_string(v);
  write_document(cli.path("profile.json"), profile);
  const std::string problem = "plan --profile profile.json --gpus 2 --bandwidths 1GB/s --microbatches 4 ";
  REQUIRE(cli.run(problem + "--strategy straight --schedule 1f1b-flush --output p.json").code == 0);
  REQUIRE(cli.run("convert --input p.json --to torch-csv --output p.csv").code == 0);
  CHECK_THAT(read_file(cli.path("p.csv")), Catch::StartsWith("0F0,0F1,0B0"));
  REQUIRE(cli.run("convert --input p.csv --plan p.json --output theirs.json").code == 0);
  CHECK(read_document<Plan>(cli.path("theirs.json")).schedule == "custom");
  const std::string links = " --profile profile.json --bandwidths 1GB/s";
  CHECK(cli.run("check --plan theirs.json" + links).code == 0);
  const auto steady = [&](const std::string& plan) {
    const Outcome evaluated = cli.run("evaluate --json --plan " + plan + links);
    REQUIRE(evaluated.code == 0);
    return parse_document<Plan>(evaluated.out, "out").predicted->minibatch_seconds;
  };
  CHECK(steady("theirs.json") == Approx(steady("p.json")));
  write_file(cli.path("stuck.csv"), "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  const Outcome stuck = cli.run("convert --input stuck.csv --plan p.json --output stuck.json");
  CHECK(stuck.code == 3);
  CHECK_THAT(stuck.error, Catch::Contains("deadlock") && Catch::Contains("Change its order"));

  REQUIRE(
      cli.run("convert --input p.json --profile profile.json --to torchtitan --output modules.json").code ==
      0);
  const Json modules = read_json_file(cli.path("modules.json"));
  REQUIRE(modules.size() == 2);
  CHECK(modules[0][0] == "layers.0");
  REQUIRE(cli.run("convert --input p.json --profile profile.json --to deepspeed --output parts.json").code ==
          0);
  CHECK(read_json_file(cli.path("parts.json"))["parts"].back() == 6);

  for (const std::string schedule : {"zbv", "dualpipev", "interleaved"}) {
    REQUIRE(cli.run(problem + "--use-all-devices --schedule " + schedule + " --output v.json").code == 0);
    const Plan plan = read_document<Plan>(cli.path("v.json"));
    CHECK(plan.stages.size() == 4);
    CHECK(plan.v_shaped() == (schedule != "interleaved"));
    CHECK(cli.run("check --plan v.json" + links).code == 0);
    CHECK(cli.run("simulate --minibatches 8 --plan v.json" + links).code == 0);
    REQUIRE(cli.run("convert --input v.json --to torch-csv --output v.csv").code == 0);
    REQUIRE(cli.run("convert --input v.csv --plan v.json --output back.json").code == 0);
    CHECK(steady("back.json") == Approx(steady("v.json")));
    CHECK(
        cli.run("convert --input v.json --profile profile.json --to torchtitan --output modules.json").code ==
        0);
    CHECK(cli.run("convert --input v.json --profile profile.json --to deepspeed --output x.json").code == 3);
  }

  const auto wrong = [&](const std::string& words, int code, const std::string& expected) {
    const Outcome outcome = cli.run(words);
    CAPTURE(words, outcome.error);
    CHECK(outcome.code == code);
    CHECK_THAT(outcome.error, Catch::Contains(expected));
  };
  REQUIRE(
      cli.run("plan --profile profile.json --gpus 2 --bandwidths 1GB/s --strategy straight --output a.json")
          .code == 0);
  wrong("convert --input a.json --to torch-csv --output x.csv", 3, "cannot hold weights 'stash'");
  wrong("convert --input p.json --to torch-cvs --output x.csv", 2, "did you mean 'torch-csv'");
  wrong("convert --input p.json --to torch-csv --output x.json", 2, "ends in .csv");
  for (const char* target : {"torchtitan", "deepspeed"}) {  // said before any file is read
    wrong(std::string("convert --input nowhere.json --to ") + target + " --output x.json", 2,
          std::string("--to ") + target + ": needs --profile FILE");
  }
  CHECK_THAT(cli.run("convert --help").out,
             Catch::Contains("deepspeed") && Catch::Contains("needs --profile"));
  wrong("convert --input profile.json --to torch-csv --output x.csv", 2, "--to: goes with a plan");
  wrong("convert --input p.csv --output x.json", 2, "--plan");
  for (const char* nothing : {"", "\n , \n"}) {
    write_file(cli.path("none.csv"), nothing);
    wrong("convert --input none.csv --output x.json", 2,
          "none.csv: empty; expected a line for each rank, such as 0F0,");
  }
  write_file(cli.path("words.csv"), "rank,step\n");
  wrong("convert --input words.csv --plan p.json --output x.json", 2,
        "words.csv: line 1, cell 1: got 'rank'");
  wrong("convert --input p.json --plan p.json --output x.json", 2, "--plan: goes with a schedule");
  wrong("plan --profile profile.json --gpus 2 --schedule custom", 2,
        "--schedule custom: the order is in a plan");
  wrong("plan --profile profile.json --gpus 2 --schedule zbv --stages-per-rank 3", 2,
        "'zbv' has 2 on each rank, got 3");
}

TEST_CASE("Wrong use: 2, with what was meant") {
  const Cli cli;
  const auto wrong = [&](const std::string& words, const std::string& expected) {
    const Outcome outcome = cli.run(words);
    INFO(words << "\n" << outcome.error);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.error, Catch::Contains(expected));
  };
  wrong("paln", "'plan'");
  wrong("--profil profile.json", "'--profile'");
  wrong("--gpus 4", "--profile is missing");
  wrong("--profile profile.json", "--gpus");
  wrong("--profile nothing.json --gpus 2", "nothing.json");
  wrong("--profile profile.json --gpus 0", "0 is not in 1..");
  wrong("--profile profile.json --gpus many", "many");
  wrong(kProblem + "--strategy hybird", "'hybrid'");
  wrong(kProblem + "--objective pipdream", "'pipedream'");
  wrong(kProblem + "--optimizer-slots -1", "-1 is not in 0..");
  wrong(kProblem + "--memory 16", "16");
  wrong(kProblem + "--levels 4", "--gpus");
  wrong("--profile profile.json --levels 4,x", "\"x\"");
  wrong("--profile profile.json --levels 4,", "whole number");
  wrong("--profile profile.json --levels 4,0", "\"0\"");
  wrong("--profile profile.json --gpus 4 --bandwidths 12GB/s,1GB/s", "2 values for 1 level");
  wrong("--profile profile.json --levels 2,2 --latency 1us,2us,3us", "3 values for 2 levels");
  wrong("--profile profile.json --gpus 4 --shared maybe", "yes or no");
  wrong("--profile profile.json --gpus 4 --device-classes 2:1", "makes 2 devices");
  wrong("--profile profile.json --device-classes 2", "two or three fields");
  wrong("--profile profile.json --device-classes 2:fast", "device 0 is of class \"fast\"");
  wrong("--profile profile.json --device-classes 2:", "speed");
  wrong("--profile profile.json --device-classes 1:1,1:slow --class-profile slwo=profile.json", "'slow'");
  wrong("--profile profile.json --device-classes 1:1,1:slow --class-profile slow", "CLASS=FILE");
  wrong("--profile profile.json --device-classes 2:1:8", "8");
  wrong(kProblem + "--replicas 0", "STAGE:REPLICAS");
  wrong(kProblem + "--replicas 0:1,0:2", "stage 0 twice");
  wrong(kProblem + "--replicas 0:0", "\"0\"");
  wrong(kProblem + "--pin layer0", "LAYER=STAGE");
  wrong(kProblem + "--pin layre1=0", "'layer1'");
  wrong(kProblem + "--pin layer0=0 --pin layer0=1", "stages 0 and 1");
  wrong(kProblem + "--pin n0=0 --pin layer0=1", "and, with");
  wrong(kProblem + "--schedule gpip", "'gpipe'");
  wrong(kProblem + "--weights stahs", "'stash'");
  wrong(kProblem + "--schedule gpipe --weights stash", "does not go with");
  wrong(kProblem + "--microbatches 4", "--microbatches");
  wrong(kProblem + "--weights vertical", "--weights vertical");
  wrong(kProblem + "--schedule model-parallel", "goes with --strategy model-parallel, not 'best'");
  wrong(kProblem + "--schedule gpipe --strategy model-parallel", "model-parallel");
  wrong(kProblem + "--schedule gpipe --objective pipedream", "--objective pipedream");
  wrong("compare --objective pipewright", "--objective");
  wrong(kProblem + "--schedule interleaved --max-stages 2", "--schedule interleaved");
  wrong(kProblem + "--schedule gpipe --microbatches 0", "0 is not in 1..");
  wrong(kProblem + "--data-workers x", R"(--data-workers: got "x"; expected a whole number)");
  wrong(kProblem + "--max-stages 2.5", R"(--max-stages: got "2.5"; expected a whole number)");
  wrong(kProblem + "--for serving", "training or inference");
  wrong(kProblem + "--for inference", "--period is missing");
  wrong(kProblem + "--period 3ms", "only with --for inference");
  wrong(kProblem + "--for inference --period 3ms --schedule gpipe", "not together");
  wrong(kProblem + "--for inference --period 3", "3");
  wrong(kProblem + "--max-stages 0", "0 is not in 1..");
  wrong(kProblem + "--max-stages 2 --use-all-devices", "--use-all-devices");
  wrong(kProblem + "--max-stages 2 --strategy dp", "--strategy dp");
  wrong("--profile profile.json --gpus 4 --bandwidths 12", "12");
}

TEST_CASE("Infeasible: 4, with the memory that would do") {
  const Cli cli;
  const Outcome outcome = cli.run("plan " + kProblem + "--memory 1kB --output plans");
  CHECK(outcome.code == 4);
  CHECK_THAT(outcome.error, Catch::Contains("the smallest that fits one is"));
  CHECK_FALSE(cli.has("plans/gpus=4.json"));
  CHECK(cli.run("--profile profile.json --gpus 2 --strategy hybrid").code == 4);
  const Outcome alone = cli.run("--profile profile.json --gpus 1 --schedule interleaved");
  CHECK(alone.code == 4);
  CHECK_THAT(alone.error, Catch::Contains("needs 2 devices and 4 stages or more; got 1 device"));
  CHECK(cli.run("compare " + kProblem + "--memory 1kB").code == 4);
}

TEST_CASE("recompute: what does not fit otherwise does, and every command knows it") {
  const Cli cli;
  Profile profile = read_document<Profile>(cli.path("profile.json"));
  for (ProfiledNode& node : profile.nodes) node.saved_bytes = 200000;
  write_document(cli.path("deep.json"), profile);
  const std::string problem = "--profile deep.json --gpus 4 --bandwidths 1GB/s --latency 0us --memory 600kB ";
  // A pipeline that need not be full can be shallower instead: it fits without, and is slower.
  const auto seconds = [&](const std::string& more) {
    const Outcome outcome = cli.run("plan " + problem + "--strategy straight --json " + more);
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    return parse_document<Plan>(outcome.out, "out").predicted->minibatch_seconds;
  };
  CHECK(seconds("--recompute never") > seconds("--recompute auto"));
  // One that drains has all its minibatches in flight.
  bool told = false;
  for (int kilobytes = 200; kilobytes < 8000 && !told; kilobytes += 100) {
    const std::string draining =
        "plan --profile deep.json --gpus 4 --bandwidths 1GB/s --latency 0us --schedule gpipe "
        "--memory " +
        std::to_string(kilobytes) + "kB ";
    const Outcome never = cli.run(draining + "--recompute never");
    told = never.code == 4 && never.error.find("With --recompute auto there is a plan") != std::string::npos;
    if (told) CHECK(cli.run(draining + "--recompute auto").code == 0);
    if (never.code == 0) break;
  }
  CHECK(told);
  const Outcome planned = cli.run("plan " + problem + "--strategy straight --output p.json");
  INFO(planned.error);
  REQUIRE(planned.code == 0);
  CHECK_THAT(planned.out, Catch::Contains("recomputing 0"));
  Plan plan = read_document<Plan>(cli.path("p.json"));
  CHECK(plan.stages.front().recompute);
  CHECK_FALSE(plan.stages.back().recompute);  // one minibatch in flight: there is nothing to save
  const std::string given = " --profile deep.json --bandwidths 1GB/s --latency 0us --memory 600kB";
  CHECK(cli.run("check --plan p.json" + given).code == 0);
  const Outcome evaluated = cli.run("evaluate --plan p.json --json" + given);
  CHECK(parse_document<Plan>(evaluated.out, "out").predicted->minibatch_seconds ==
        Approx(plan.predicted->minibatch_seconds).epsilon(1e-9));
  CHECK(cli.run("simulate --plan p.json" + given).code == 0);
  CHECK_THAT(cli.run("show --plan p.json").out, Catch::Contains("recomputes"));
  REQUIRE(cli.run("compare " + problem + "--report r.md").code == 0);
  CHECK_THAT(read_file(cli.path("r.md")), Catch::Contains("recomputing 0"));
  CHECK(cli.run("plan " + problem + "--strategy straight --recompute always").code == 0);
  CHECK(cli.run("plan " + problem + "--recompute sometimes").code == 2);
  // By hand without: the message says what it would save.
  plan.stages.front().recompute = false;
  write_document(cli.path("kept.json"), plan);
  const Outcome kept = cli.run("check --plan kept.json" + given);
  CHECK(kept.code == 4);
  CHECK_THAT(kept.error, Catch::Contains("With \"recompute\": true it needs"));
}

TEST_CASE("classes of devices, each with a profile of its own") {
  const Cli cli;
  Profile profile = read_document<Profile>(cli.path("profile.json"));
  for (ProfiledNode& node : profile.nodes) node.forward_seconds *= 3;
  write_document(cli.path("slow.json"), profile);
  const std::string devices =
      " --profile profile.json --device-classes 2:1,2:slow --bandwidths 1GB/s --class-profile "
      "slow=slow.json ";
  const Outcome planned = cli.run("plan" + devices + "--output p.json");
  INFO(planned.error);
  REQUIRE(planned.code == 0);
  CHECK(cli.run("check --plan p.json" + devices).code == 0);
  const Plan plan = read_document<Plan>(cli.path("p.json"));
  const Outcome evaluated = cli.run("evaluate --plan p.json --json" + devices);
  REQUIRE(evaluated.code == 0);
  CHECK(parse_document<Plan>(evaluated.out, "out").predicted->minibatch_seconds ==
        Approx(plan.predicted->minibatch_seconds).epsilon(1e-9));
  REQUIRE(cli.run("compare" + devices + "--report r.md").code == 0);
  CHECK_THAT(read_file(cli.path("r.md")), Catch::Contains("slow"));
  profile.nodes.pop_back();
  write_document(cli.path("slow.json"), profile);
  const Outcome other = cli.run("plan" + devices);
  CHECK(other.code == 2);
  CHECK_THAT(other.error, Catch::Contains("--class-profile slow: lacks node"));
}

TEST_CASE("classes of devices that have a memory of their own beside --memory: the tighter counts") {
  const Cli cli;
  const auto seconds = [&](const std::string& devices) {
    const Outcome planned =
        cli.run("plan --profile profile.json --bandwidths 1MB/s " + devices + " --output p.json");
    INFO(planned.error);
    REQUIRE(planned.code == 0);
    return read_document<Plan>(cli.path("p.json")).predicted->minibatch_seconds;
  };
  const double tight = seconds("--device-classes 2:1:47kB,2:0.5:47kB");
  CHECK(seconds("--device-classes 2:1,2:0.5") < tight);
  CHECK(seconds("--device-classes 2:1:47kB,2:0.5:47kB --memory 1GB") == tight);
  CHECK(seconds("--device-classes 2:1:1GB,2:0.5 --memory 47kB") == tight);
  const Outcome outcome = cli.run("plan --profile profile.json --device-classes 2:1:1kB,2:0.5:2kB");
  CHECK(outcome.code == 4);
  CHECK_THAT(outcome.error, Catch::Contains("1000 B to 1.95 KiB of memory each"));
}

TEST_CASE("frozen layers: planned for, written, and taken from the plan by those that read it") {
  const Cli cli;
  Profile profile = read_document<Profile>(cli.path("profile.json"));
  for (size_t v = 0; v < profile.nodes.size(); ++v)
    profile.nodes[v].layer = v + 1 == profile.nodes.size() ? "head" : "blocks." + std::to_string(v);
  write_document(cli.path("layers.json"), profile);
  const std::string problem = "--profile layers.json --gpus 4 --bandwidths 1GB/s --latency 10us ";
  REQUIRE(cli.run("plan " + problem + "--output whole.json").code == 0);
  for (const std::string cached : {"", "--cached "}) {
    const Outcome outcome =
        cli.run("plan " + problem + "--frozen-layers 3 " + cached + "--output frozen.json");
    CAPTURE(outcome.error);
    REQUIRE(outcome.code == 0);
    const Plan plan = read_document<Plan>(cli.path("frozen.json"));
    CHECK(plan.frozen_layers == 3);
    CHECK(plan.profile_digest == document_digest(profile));
    CHECK(plan.predicted->minibatch_seconds <
          read_document<Plan>(cli.path("whole.json")).predicted->minibatch_seconds);
    const std::string known =
        "--plan frozen.json --profile layers.json --bandwidths 1GB/s --latency 10us " + cached;
    for (const std::string command : {"check ", "evaluate ", "simulate ", "show "}) {
      const Outcome read = cli.run(command + known);
      CAPTURE(command, read.error);
      CHECK(read.code == 0);
      CHECK(read.error.find("another profile") == std::string::npos);
    }
  }
  CHECK(cli.run("compare " + problem + "--frozen-layers 3").code == 0);
  CHECK(cli.run("plan " + problem + "--frozen-layers 3 --compat halving --output halved.json").code == 0);
  CHECK(read_document<Plan>(cli.path("halved.json")).schedule == "gpipe");
  const Outcome alone = cli.run("plan " + problem + "--cached");
  CHECK(alone.code == 2);
  CHECK_THAT(alone.error, Catch::Contains("--cached: only with --frozen-layers"));
  const Outcome many = cli.run("plan " + problem + "--frozen-layers 40");
  CHECK(many.code == 2);
  CHECK_THAT(many.error, Catch::Contains("--frozen-layers"));
  CHECK(cli.run("plan " + problem + "--compat thirds").code == 2);
}

TEST_CASE("print-config names every setting and its source") {
  const Cli cli;
  const Outcome outcome = cli.run(kProblem + "--print-config");
  CHECK(outcome.code == 0);
  for (const char* word : {"profile", "gpus", "bandwidths", "latency", "memory", "objective",
                           "optimizer-slots", "strategy", "default", "command line"}) {
    CHECK_THAT(outcome.out, Catch::Contains(word));
  }
}

TEST_CASE("validate: published runs as tables and JSON") {
  const Cli cli;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories(cli.path("sailor/" + name).parent_path());
    write_file(cli.path("sailor/" + name), text);
  };
  const auto plan = [](const std::string& stages, const std::string& nodes, const std::string& batch,
                       const std::string& seconds) {
    return R"({"zone": "z", "pipeline_list": [)" + stages + R"(], "mbs": 1, "gbs": )" + batch +
           R"(, "real": )" + seconds + R"(, "red_grads": 0, "max_mem": 0, "N": )" + nodes + "}";
  };
  const std::string node = R"([[[["A", 2, "z"]], 2]])";
  const std::string one =
      R"({"num_stages": 1, "layers_per_stage": [[0, 1]], "tmp_per_stage": [)" + node + R"(], "dp": [1]})";
  const std::string two = R"({"num_stages": 2, "layers_per_stage": [[0], [1]], "tmp_per_stage": [)" + node +
                          ", " + node + R"(], "dp": [1, 1]})";
  write("llm_info.json", R"({"OPT-350": {"2": {"0": {"params_bytes": 1, "act_output_bytes": 1048576},
    "1": {"params_bytes": 1, "act_output_bytes": 1}}}})");
  write("profiles.json", R"({"OPT-350": {"A": {"1": {"2": {"0": [1, 2, 0], "1": [1, 2, 0]}}}}})");
  // 1 MiB in half a second.
  write("network/multizone_bandwidths_het.json",
        R"({"z": {"A": {"2": {"z": {"A": {"2": [[0, 0, 0.002097152], 1]}}}}}})");
  write("plans/mit/N1/plan_config_one.json", plan(one, "1", "3", "20"));
  write("plans/mit/N2/plan_config_two.json", plan(two, "2", "2", "13"));
  write("plans/mit/N2/plan_config_again.json", plan(two, "2", "2", "14"));
  write("plans/mit/N2/plan_config_short.json", plan(two, "2", "1", "9"));

  // By hand: 9 s of computing and 4 transfers in a row (tests/optimizer/sailor_test.cc).
  const Outcome table = cli.run("validate --sailor sailor");
  CHECK(table.error.empty());
  // A row for each run, then for each group: stages, replicas, microbatches, measured, by links, left out.
  for (const std::string row : {"mit/one         1         1             3      20 s      18 s          "
                                "-10.0 %       -      18 s          -10.0 %",
                                "mit/two         2         1             2      13 s      11 s          "
                                "-15.4 %     2.5      14 s           +7.7 %",
                                "not used: mit/short, microbatches: 1 for 2 stages",
                                "mit      several stages     2    18.4 %     7.4 %   +7.7 %"})
    CHECK_THAT(table.out, Catch::Contains(row + "\n"));
  const Json json = parse_json(cli.run("validate --sailor sailor --json").out, "out");
  REQUIRE(json["runs"].size() == 4);
  CHECK(json["runs"][0]["left_out_factor"] == nullptr);
  CHECK(json["runs"][1]["left_out_seconds"].get<double>() == Approx(13));
  CHECK(json["runs"][2]["unusable"] == "microbatches: 1 for 2 stages");
  CHECK(json["errors"][0]["mean_error"].get<double>() == Approx((2.0 / 13 + 3.0 / 14) / 2));

  CHECK(cli.run("validate --sailor nowhere").code == 2);
  CHECK_THAT(cli.run("validate").error, Catch::Contains("--sailor"));
}

TEST_CASE("help of every command fits a screen") {
  const Cli cli;
  for (const std::string command :
       {"", "plan ", "compare ", "check ", "evaluate ", "simulate ", "show ", "convert ", "validate "}) {
    const Outcome outcome = cli.run(command + "--help");
    CHECK(outcome.code == 0);
    CHECK(std::count(outcome.out.begin(), outcome.out.end(), '\n') <= 24);
    const std::string all = cli.run(command + (command.empty() ? "--help" : "--help-all")).out;
    CHECK((all.find("--objective") != std::string::npos) == (command == "plan "));
  }
  // Every objective that there is, by the refusal of one that is not.
  for (const std::string objective : {"pipewright", "pipedream", "max-load", "piper", "dynpipe"}) {
    CHECK_THAT(cli.run("plan --help-all").out, Catch::Contains(objective));
    CHECK_THAT(cli.run(kProblem + "--objective " + objective + "x").error,
               Catch::Contains("did you mean '" + objective + "'"));
  }
}

TEST_CASE("plan --objective pipedream: as a table, JSON and a plan that can be evaluated") {
  const Cli cli;
  const std::string problem = "--profile profile.json --gpus 4 --bandwidths 1MB/s --objective pipedream ";
  const Outcome table = cli.run(problem + "--output theirs.json");
  CHECK(table.code == 0);
  CHECK_THAT(table.out, Catch::Contains("by PipeDream's formula; nothing is better"));
  const Json json = parse_json(cli.run(problem + "--json").out, "out");
  const Plan plan = read_document<Plan>(cli.path("theirs.json"));
  CHECK(json["stages"].size() == plan.stages.size());
  CHECK(json["devices"] == plan.world_size);
  CHECK(cli.run("evaluate --plan theirs.json --profile profile.json --bandwidths 1MB/s").code == 0);
  const Outcome limited = cli.run(problem + "--memory 1GB");
  CHECK(limited.code == 2);
  CHECK_THAT(limited.error, Catch::Contains("not together with --memory"));
}

TEST_CASE("plan --objective: refuses what its problem has not") {
  const Cli cli;
  const std::string problem = "--profile profile.json --gpus 4 --objective ";
  const auto refused = [&](const std::string& objective, const std::string& options) {
    const Outcome outcome = cli.run(problem + objective + " " + options);
    CAPTURE(objective, options, outcome.error);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.error, Catch::Contains("--objective " + objective + ": not together with " +
                                              options.substr(0, options.find(' ')) + ","));
  };
  for (const std::string objective : {"pipedream", "max-load", "dynpipe"}) {
    CHECK(cli.run(problem + objective).code == 0);
    for (const std::string options : {"--strategy straight",
                                      "--schedule gpipe",
                                      "--weights 2bw",
                                      "--microbatches 4",
                                      "--replicas 0:1",
                                      "--pin layer0=0",
                                      "--use-all-devices",
                                      "--frozen-layers 1",
                                      "--cached",
                                      "--for inference",
                                      "--period 1s",
                                      "--compat halving",
                                      "--optimizer adam",
                                      "--optimizer-slots 2",
                                      "--ignore-crowd",
                                      "--data-workers 4",
                                      "--class-profile a=b",
                                      "--convergence c.json",
                                      "--report x.html",
                                      "--time",
                                      "--print-config"})
      refused(objective, options);
  }
  refused("dynpipe", "--memory 1GiB");
  refused("dynpipe", "--latency 1ms");
  refused("dynpipe", "--cpus 1");
  refused("max-load", "--max-stages 2");
  refused("max-load", "--staleness-weight 1");
  for (const auto& [option, objective] :
       {std::pair<std::string, std::string>{"--cpus 1", "max-load"}, {"--staleness-weight 1", "dynpipe"}}) {
    const Outcome outcome = cli.run(kProblem + option);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.error, Catch::Contains(": only with --objective " + objective));
  }
}

}  // namespace
}  // namespace pipewright
