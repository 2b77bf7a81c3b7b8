// pipewright-optimizer compare as a process.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <sstream>

#include "graph/document.h"
#include "graph/plan.h"
#include "graph/topology.h"
#include "tests/optimizer/cli.h"

namespace pipewright {
namespace {

using testing::Cli;
using testing::kProblem;
using testing::Outcome;

Profile chain_of_six(std::mt19937& random) {
  Profile profile = testing::random_profile(random, 6, true, 40);
  for (ProfiledNode& node : profile.nodes) node.forward_seconds += 1e-3;
  return profile;
}

Profile with_large_weights(std::mt19937& random, Profile profile) {
  for (ProfiledNode& node : profile.nodes) {
    node.parameter_bytes = node.trainable_parameter_bytes = 500 * testing::pick(random, 1, 20);
    node.parameters = {node.name + ".weight"};
  }
  return profile;
}

TEST_CASE("compare --sync: for each way to hold pipelines together the fastest plan, and what to take") {
  const Cli cli;
  Topology topology;
  topology.levels = {{4, 1e9, 1e-6, false}};
  for (const double speed : {1.0, 1.0, 1.0, 0.25}) topology.devices.push_back({"host", speed, 0});
  write_document(cli.path("topology.json"), topology);
  const std::string even = "compare " + kProblem,
                    slow = "compare --profile profile.json --topology topology.json ";
  const Outcome table = cli.run(slow + "--sync all");
  INFO(table.error << table.out);
  REQUIRE(table.code == 0);
  for (const char* row : {"all-reduce", "partial-reduce", "adpsgd", "hetpipe", "none:minibatches=shared"})
    CHECK_THAT(table.out, Catch::Contains(row));
  for (const std::string& problem : {even, slow, even + "--disturb fixed:rank=3,factor=4 "}) {
    CAPTURE(problem);
    const Outcome outcome = cli.run(problem + "--sync all --json");
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    const Json json = parse_json(outcome.out, "out");
    REQUIRE(json["syncs"].size() == 7);
    std::map<std::string, double> seconds;
    for (const Json& row : json["syncs"]) {
      // On devices of several speeds data parallelism has uneven shares: no plan is one of pipelines side by
      // side.
      if (problem == slow && !row.contains("strategy")) continue;
      REQUIRE(row.contains("strategy"));
      seconds[row["sync"]] = row["minibatch_seconds"];
    }
    if (problem == slow) continue;
    // Nothing is faster than pipelines that nobody holds together.
    for (const char* sync : {"partial-reduce", "adpsgd", "adpsgd-lockstep", "hetpipe"})
      CHECK(seconds.at(sync) >= 0.999 * seconds.at("none:minibatches=shared"));
  }
  CHECK_THAT(cli.run(even + "--disturb fixed:rank=3,factor=4").error, Catch::Contains("goes with --sync"));
  CHECK_THAT(cli.run(even + "--sync adpsg").error, Catch::Contains("did you mean 'adpsgd'"));
  CHECK_THAT(cli.run(even + "--sync all --disturb fixed:rank=9,factor=4").error, Catch::Contains("rank"));
}

TEST_CASE("compare writes every strategy and says what to take") {
  const Cli cli;
  const Outcome outcome = cli.run("compare " + kProblem + "--output plans");
  INFO(outcome.error);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("Take "));
  for (const std::string file : {"gpus=1.json", "gpus=4.dp.json", "gpus=4.model-parallel.json",
                                 "gpus=4.straight.json", "gpus=4.hybrid.json"}) {
    INFO(file);
    REQUIRE(cli.has("plans/" + file));
    CHECK(cli.run("check --plan 'plans/" + file + "' --profile profile.json").code == 0);
  }
  const Json json = parse_json(cli.run("compare " + kProblem + "--json").out, "out");
  CHECK(json["strategies"].size() == 11);
  // Like with like: as many minibatches an update as data parallelism makes, unless said otherwise.
  for (const Json& row : json["strategies"]) {
    INFO(row.dump());
    if (!row.contains("shape")) continue;
    const auto name = row["strategy"].get<std::string>();
    const bool whole =
        name == "dp" || name == "flush" || name == "interleaved" || name == "zb-h1" || name == "2bw";
    if (whole) CHECK(row["minibatches_per_update"] == 4);
    if (name == "dp" || name == "flush" || name == "one device") CHECK(row["staleness"] == 0);
    // Of the fullest rank, of all stages that it has.
    const Plan plan = read_document<Plan>(
        cli.path(name == "one device" ? "plans/gpus=1.json" : "plans/gpus=4." + name + ".json"));
    std::map<int64_t, int64_t> by_rank;
    for (size_t s = 0; s < plan.stages.size(); ++s)
      for (const int64_t rank : plan.stages[s].ranks)
        by_rank[rank] += plan.predicted->stages[s].memory.total_bytes();
    int64_t most = 0;
    for (const auto& [rank, bytes] : by_rank) most = std::max(most, bytes);
    CHECK(row["memory_bytes"] == most);
  }
  const Json more =
      parse_json(cli.run("compare " + kProblem + "--samples-per-update 64 --json").out, "out")["strategies"];
  for (const Json& row : more) {
    if (row["strategy"] == "flush") CHECK(row["minibatches_per_update"] > 4);
  }
  CHECK(json["advice"].is_string());
  const std::string levels = "--profile profile.json --levels 2,2 --bandwidths 10MB/s,1MB/s ";
  CHECK(parse_json(cli.run("compare " + levels + "--json").out, "out")["strategies"].size() == 11);
  // Where one device wins, that is said.
  const std::string slow = "--profile profile.json --gpus 4 --bandwidths 1kB/s ";
  CHECK_THAT(cli.run("compare " + slow).out, Catch::Contains("distributing gains nothing"));
  CHECK(cli.run("plan " + levels + "--for inference --period 1s").code == 0);
  CHECK(cli.run("plan " + levels + "--schedule gpipe --max-stages 2").code == 0);
  // Reports, self-contained.
  REQUIRE(cli.run("compare " + kProblem + "--report r.html").code == 0);
  const std::string page = read_file(cli.path("r.html"));
  for (const char* part : {"<!DOCTYPE html>", "<svg", "prefers-color-scheme", "Take ", "hybrid", "as asked",
                           "With other links", "layer later", "</html>"})
    CHECK_THAT(page, Catch::Contains(part));
  for (const char* part : {"http://", "https://", "@import", "src="})
    CHECK_THAT(page, !Catch::Contains(part));
  // What the advice says of other bandwidths stands above the plans as they are, one device among them.
  const std::string links = page.substr(page.find("With other links"));
  const Json turns = parse_json(cli.run("compare " + kProblem + "--json").out, "out")["turns"];
  REQUIRE(!turns.empty());
  const size_t figure = links.find("<figure");
  for (const Json& turn : turns)
    CHECK_THAT(links.substr(0, figure), Catch::Contains(turn["side"] == "below" ? ": Below " : "Above ") &&
                                            Catch::Contains(turn["kind"].get<std::string>()));
  CHECK_THAT(links.substr(figure, links.find("The plan") - figure), Catch::Contains("one device"));
  REQUIRE(cli.run("compare " + kProblem + "--report r.md").code == 0);
  CHECK_THAT(read_file(cli.path("r.md")), Catch::Contains("| strategy |") && Catch::Contains("## The plan"));
  CHECK(cli.run("compare " + kProblem + "--report r.pdf").code == 2);
}

TEST_CASE("compare tells what does not fit from what there is not") {
  const Cli cli;
  const std::string two = "compare --profile profile.json --gpus 2 --bandwidths 1MB/s ";
  const Outcome pair = cli.run(two);
  CHECK_THAT(pair.out, Catch::Matches("(.|\n)*hybrid +- .* not possible\n(.|\n)*"));
  CHECK_THAT(pair.out, !Catch::Contains("does not fit"));
  const Outcome tight = cli.run(two + "--memory 60kB");
  INFO(tight.out << tight.error);
  CHECK_THAT(tight.out, Catch::Contains("does not fit") && Catch::Contains("not possible"));
}

TEST_CASE("compare: where it says that another way wins, it advises just that way") {
  int64_t turns = 0;
  std::mt19937 random(5);
  for (int round = 0; round < 6; ++round) {
    const Cli cli;
    write_document(cli.path("profile.json"), with_large_weights(random, chain_of_six(random)));
    const std::string problem = "compare --profile profile.json --gpus " + std::to_string(2 + round % 3) +
                                " --latency 10us --json --bandwidths ";
    for (const std::string rate : {"300kB/s", "2MB/s", "40MB/s"}) {
      const Json json = parse_json(cli.run(problem + rate).out, "out");
      for (const Json& turn : json["turns"]) {
        char there[64];
        std::snprintf(there, sizeof there, "%.17gB/s", turn["bandwidth_bytes_per_second"].get<double>());
        const Json other = parse_json(cli.run(problem + there).out, "out");
        CAPTURE(round, rate, turn.dump(), other["advice"]);
        CHECK(other["kind"] == turn["kind"]);
        CHECK(other["kind"] != json["kind"]);
        ++turns;
      }
      // One device is never said to be faster than data parallelism: distributing gains nothing.
      const auto advice = json["advice"].get<std::string>();
      if (json["kind"] != "one device") continue;
      CHECK_THAT(advice, Catch::Contains("distributing gains nothing") && !Catch::Contains("times as fast"));
      CHECK_THAT(advice, Catch::Contains(" wins (") || Catch::Contains("up to 64 times the bandwidth"));
    }
  }
  CHECK(turns > 6);
}

TEST_CASE("compare: a gain under a tenth comes with what it costs") {
  int64_t told = 0;
  std::mt19937 random(11);
  for (int round = 0; round < 12; ++round) {
    const Cli cli;
    write_document(cli.path("profile.json"), chain_of_six(random));
    const Json json = parse_json(
        cli.run("compare --profile profile.json --gpus 3 --latency 10us --json --bandwidths 3MB/s").out,
        "out");
    Json best;
    for (const Json& row : json["strategies"])
      if (row["strategy"] == json["best"]) best = row;
    const auto advice = json["advice"].get<std::string>();
    for (const Json& row : json["strategies"]) {
      if (!row.contains("shape") || row["strategy"] == json["best"]) continue;
      if (row["minibatch_seconds"].get<double>() >= 1.1 * best["minibatch_seconds"].get<double>()) continue;
      const bool fresh = best["staleness"] > 0 && row["staleness"] == 0;
      const bool small = row["staleness"] <= best["staleness"] &&
                         row["minibatches_per_update"] < best["minibatches_per_update"];
      if (!fresh && !small) continue;
      CAPTURE(round, advice, row.dump());
      CHECK_THAT(advice, Catch::Contains("% longer"));
      ++told;
    }
  }
  CHECK(told > 0);
}

/// The number before `words` in a sentence; nothing if the words are not there.
std::optional<double> number_before(const std::string& sentence, const std::string& words) {
  const size_t at = sentence.find(" " + words);
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = sentence.find_last_of(" (", at - 1) + 1;
  return std::stod(sentence.substr(begin, at - begin));
}

TEST_CASE("compare: every number in its sentences is that of its rows") {
  std::map<std::string, int> told;
  std::mt19937 random(17);
  for (int round = 0; round < 24; ++round) {
    const Cli cli;
    write_document(cli.path("profile.json"), chain_of_six(random));
    const char* rates[] = {"30kB/s", "300kB/s", "2MB/s", "10MB/s"};
    const std::string problem = "compare --profile profile.json --gpus " + std::to_string(2 + round % 4) +
                                " --latency 10us --json --bandwidths " + rates[round / 4 % 4] +
                                (round % 3 == 2 ? " --memory 200kB" : "");
    const Outcome outcome = cli.run(problem);
    if (outcome.code == 4) continue;
    const Json json = parse_json(outcome.out, "out");
    const auto advice = json["advice"].get<std::string>();
    CAPTURE(problem, outcome.out);
    std::map<std::string, Json> rows;
    for (const Json& row : json["strategies"])
      if (row.contains("shape")) rows[row["strategy"]] = row;
    const Json best = rows.at(json["best"]);
    const double seconds = best["minibatch_seconds"];
    CHECK_THAT(advice, Catch::StartsWith("Take " + json["best"].get<std::string>() + " (" +
                                         best["shape"].get<std::string>()));
    CHECK_THAT(advice, Catch::Contains("It is bound by " + best["bottleneck"].get<std::string>() + "."));
    const auto check = [&](const std::string& words, double expected) {
      const std::optional<double> said = number_before(advice, words);
      if (!said) return;
      ++told[words];
      CHECK(*said == Approx(expected).epsilon(0.01).margin(0.06));  // three digits
    };
    check("times as fast as one device", best["speed_up"]);
    check("% faster than one device", 100 * (best["speed_up"].get<double>() - 1));
    if (rows.count("dp") > 0) {
      const double parallel = rows["dp"]["minibatch_seconds"];
      check("times as fast as data parallelism", parallel / seconds);
      check("% faster than data parallelism", 100 * (parallel / seconds - 1));
      // Never how many times as fast as what is slower than one device.
      const bool slower = rows["dp"]["speed_up"].get<double>() <= 1;
      if (slower)
        CHECK_THAT(advice, !Catch::Contains("than data parallelism") &&
                               !Catch::Contains("as fast as data parallelism"));
      if (advice.find("is no faster than one device") != std::string::npos) CHECK(slower);
    }
    for (const auto& [name, row] : rows) {
      if (advice.find(name + " does not and takes") == std::string::npos &&
          advice.find(name + " makes one of") == std::string::npos)
        continue;
      check("% longer", 100 * (row["minibatch_seconds"].get<double>() / seconds - 1));
      if (advice.find("does not and takes") == std::string::npos) continue;
      check("updates old", best["staleness"]);
      check("update old", best["staleness"]);
      CHECK(row["staleness"] == 0);
    }
  }
  CHECK(told["times as fast as one device"] + told["% faster than one device"] > 0);
  CHECK(told["times as fast as data parallelism"] + told["% faster than data parallelism"] > 0);
  CHECK(told["% longer"] > 0);
}

TEST_CASE("compare: the reason that it states is never refuted by its rows") {
  int64_t dearer = 0, faster = 0;
  std::mt19937 random(23);
  for (int round = 0; round < 40; ++round) {
    const Cli cli;
    write_document(cli.path("profile.json"), chain_of_six(random));
    const char* rates[] = {"100kB/s", "3MB/s", "30MB/s", "1GB/s"};
    const Outcome outcome = cli.run("compare --profile profile.json --gpus " + std::to_string(2 + round % 3) +
                                    " --latency 10us --json --bandwidths " + rates[round % 4]);
    const Json json = parse_json(outcome.out, "out");
    const auto advice = json["advice"].get<std::string>();
    CAPTURE(round, outcome.out);
    double best = 0, pipeline = HUGE_VAL, distributed = HUGE_VAL;
    for (const Json& row : json["strategies"]) {
      if (!row.contains("shape")) continue;
      const double seconds = row["minibatch_seconds"];
      if (row["strategy"] == json["best"]) best = seconds;
      if (row["shape"].get<std::string>().size() > 1) pipeline = std::min(pipeline, seconds);
      if (row["world_size"] > 1) distributed = std::min(distributed, seconds);
    }
    constexpr double kShown = 0.999;  // three digits
    if (advice.find("the exchange of gradients costs less") != std::string::npos) {
      ++dearer;
      CHECK(pipeline >= kShown * best);
    }
    if (advice.find("distributing gains nothing") != std::string::npos) CHECK(distributed >= kShown * best);
    if (const auto gain = number_before(advice, "% at most")) {
      ++faster;
      CHECK(*gain == Approx(100 * (1 - std::min(pipeline, distributed) / best)).margin(0.01));
    }
  }
  CHECK(dearer > 0);
  CHECK(faster > 0);
}

TEST_CASE("compare: a turn is where it is from wherever it is asked, and what hardly gains wins nothing") {
  int64_t pairs = 0, equal = 0;
  std::mt19937 random(29);
  for (int round = 0; round < 8; ++round) {
    const Cli cli;
    write_document(cli.path("profile.json"), with_large_weights(random, chain_of_six(random)));
    const std::string problem = "compare --profile profile.json --gpus 3 --latency 10us --json --bandwidths ";
    std::map<std::string, double> above;  // by the kinds on both sides
    for (const std::string rate : {"230kB/s", "300kB/s", "410kB/s", "2MB/s", "2.7MB/s", "3.3MB/s"}) {
      const Json json = parse_json(cli.run(problem + rate).out, "out");
      const auto advice = json["advice"].get<std::string>();
      CAPTURE(round, rate, advice);
      for (const Json& turn : json["turns"]) {
        const bool wins = advice.find(turn["kind"].get<std::string>() + " wins (" +
                                      turn["shape"].get<std::string>() + ")") != std::string::npos;
        if (turn["gain"] < 0.01) CHECK_THAT(advice, Catch::Contains("is about equal, within 1 %"));
        if (turn["gain"] >= 0.01) CHECK(wins);
        equal += turn["gain"] < 0.01 ? 1 : 0;
        if (turn["side"] == "below") continue;
        const std::string kinds = json["kind"].get<std::string>() + " to " + turn["kind"].get<std::string>();
        const double there = turn["bandwidth_bytes_per_second"];
        const auto [known, fresh] = above.try_emplace(kinds, there);
        if (fresh) continue;
        CHECK(there == Approx(known->second).epsilon(1e-9));
        ++pairs;
      }
    }
  }
  CHECK(pairs > 0);
  CHECK(equal > 0);
}

/// What training beside one other takes, twice as long.
void write_crowded_profile(const Cli& cli) {
  Profile profile = read_document<Profile>(cli.path("profile.json"));
  profile.whole.crowd = ProfiledCrowd{2, 2, 2, 2, 2, 2};
  profile.whole.crowd->other_cores = 0.9;
  write_document(cli.path("crowded.json"), profile);
}

TEST_CASE("what ranks of a host take from each other is named where it is in a price, and can be left out") {
  const Cli cli;
  write_crowded_profile(cli);
  const std::string links = " --bandwidths 1MB/s --latency 10us ";
  const auto dp_seconds = [&](const std::string& problem) {
    const Json json = parse_json(cli.run("compare " + problem + links + "--json").out, "out");
    return json["strategies"][1]["minibatch_seconds"].get<double>();
  };
  const std::string crowded = "--profile crowded.json --gpus 2", quiet = "--profile profile.json --gpus 2";
  CHECK(dp_seconds(crowded) > 1.3 * dp_seconds(quiet));
  CHECK(dp_seconds(crowded + " --ignore-crowd") == dp_seconds(quiet));
  const std::string why = "(profile: beside 1 other; other programs used 0.9 cores meanwhile)";
  for (const std::string command : {"compare ", "plan --strategy dp "}) {
    CAPTURE(command);
    CHECK_THAT(cli.run(command + crowded + links).out,
               Catch::Contains("Ranks of a host slow each other 2 times, their updates 2 times " + why));
    CHECK_THAT(
        cli.run(command + crowded + links + "--ignore-crowd").out,
        Catch::Contains("taken not to slow each other (--ignore-crowd), against 2 times measured " + why));
    CHECK_THAT(cli.run(command + quiet + links).out, !Catch::Contains("slow each other"));
  }
  CHECK_THAT(cli.run("compare " + crowded + links).out, Catch::Contains("slowed") && Catch::Contains("2x"));
  CHECK_THAT(cli.run("compare " + quiet + links).out, !Catch::Contains("slowed"));
  cli.run("plan --strategy dp --output plans " + crowded + links);
  for (const std::string command :
       {"evaluate", "simulate", "simulate --sync all --disturb fixed:rank=1,factor=4"})
    CHECK_THAT(cli.run(command + " --plan plans/gpus=2.json --profile crowded.json" + links).out,
               Catch::Contains("Ranks of a host slow each other 2 times"));
}

TEST_CASE("what was measured beside one other says nothing of hosts with four devices") {
  const Cli cli;
  write_crowded_profile(cli);
  const std::string hosts = " --levels 4,2 --bandwidths 1MB/s,100kB/s --latency 10us ";
  const Outcome crowded = cli.run("compare --profile crowded.json" + hosts),
                quiet = cli.run("compare --profile profile.json" + hosts);
  REQUIRE(crowded.code == 0);
  const std::string words =
      "the profile was measured beside 1 other, which says nothing of hosts with 4 devices; "
      "pipewright-profiler --beside 3 measures it there";
  CHECK_THAT(crowded.out, Catch::Contains(words));
  CHECK(crowded.out.substr(0, crowded.out.find("Take ")) == quiet.out.substr(0, quiet.out.find("Take ")));
}

TEST_CASE("the stages that plan prints have all that its headline has") {
  const Cli cli;
  write_crowded_profile(cli);
  for (const std::string profile : {"profile.json", "crowded.json"}) {
    const Outcome plan =
        cli.run("plan --strategy dp --gpus 2 --bandwidths 1GB/s --latency 1us --profile " + profile);
    const double headline = number_before(plan.out, "ms per minibatch").value();
    CAPTURE(plan.out);
    std::istringstream lines(plan.out);
    std::string line;
    while (std::getline(lines, line) && line.rfind("stage ", 0) != 0) continue;
    REQUIRE(std::getline(lines, line));
    // stage ranks depth compute ms sync ms update ms transfer s minibatch ms
    std::vector<std::string> words;
    std::istringstream row(line);
    for (std::string word; row >> word;) words.push_back(word);
    REQUIRE(words.size() > 12);
    CHECK(std::stod(words[11]) == Approx(headline).epsilon(0.01));
  }
}

TEST_CASE("on several levels a turn names the links between hosts, and rows that come to less say so") {
  int64_t turns = 0, plainer = 0;
  std::mt19937 random(8);
  for (int round = 0; round < 4; ++round) {
    const Cli cli;
    write_document(cli.path("profile.json"), with_large_weights(random, chain_of_six(random)));
    const std::string problem = "compare --profile profile.json --levels 2,2 --latency 10us --bandwidths ";
    for (const std::string rates : {"2MB/s,300kB/s", "40MB/s,4MB/s"}) {
      const Json json = parse_json(cli.run(problem + rates + " --json").out, "out");
      const auto advice = json["advice"].get<std::string>();
      CAPTURE(round, rates, json.dump());
      int64_t told = 0;
      for (const Json& row : json["strategies"])
        told += row.value("kind", "") == "data parallelism" && row["strategy"] != "dp" ? 1 : 0;
      plainer += told;
      const std::string table = cli.run(problem + rates).out;
      for (size_t at = table.find("(data parallelism)"); at != std::string::npos; --told)
        at = table.find("(data parallelism)", at + 1);
      CHECK(told == 0);
      for (const Json& turn : json["turns"]) {
        const auto there = turn["bandwidths_bytes_per_second"].get<std::vector<double>>();
        REQUIRE(there.size() == 2);
        CHECK(there[0] == turn["bandwidth_bytes_per_second"]);
        CHECK_THAT(advice, Catch::Contains("bit/s between hosts, with "));
        char words[96];
        std::snprintf(words, sizeof words, "%.17gB/s,%.17gB/s", there[0], there[1]);
        const Json other = parse_json(cli.run(problem + words + " --json").out, "out");
        CHECK(other["kind"] == turn["kind"]);
        ++turns;
      }
    }
  }
  CHECK(turns > 0);
  CHECK(plainer > 0);
}

TEST_CASE("memory that nobody needs changes no plan") {
  const Cli cli;
  for (const std::string devices : {"--gpus 4 ", "--levels 2,2 "}) {
    for (const std::string strategy : {"best", "straight", "hybrid", "dp"}) {
      const std::string problem = "plan --profile profile.json --json --bandwidths 1MB/s --latency 10us " +
                                  devices + "--strategy " + strategy;
      Json free = parse_json(cli.run(problem).out, "out"),
           plenty = parse_json(cli.run(problem + " --memory 80GB").out, "out");
      free.erase("topology_digest");
      plenty.erase("topology_digest");
      CHECK(free == plenty);
    }
  }
}

TEST_CASE("sums over hosts are named as they are priced: between CPUs directly, between GPUs in rings") {
  const Cli cli;
  const std::string hosts =
      " --levels 4,2 --bandwidths 1GB/s,100kB/s --latency 10us --strategy dp --use-all-devices";
  const Outcome cpu = cli.run("plan --profile profile.json" + hosts);
  CHECK_THAT(cpu.out,
             Catch::Contains("directly from rank to rank: 4 times the gradients' bytes pass each host's "
                             "link each way (in rings, as NCCL makes them between GPUs, 1.75 times)"));
  Profile profile = read_document<Profile>(cli.path("profile.json"));
  profile.device = "cuda:0 (a GPU)";
  write_document(cli.path("gpu.json"), profile);
  const Outcome gpu = cli.run("plan --profile gpu.json" + hosts);
  CHECK_THAT(gpu.out, Catch::Contains("priced as NCCL's rings: 1.75 times the gradients' bytes"));
  const double direct = number_before(cpu.out, "ms per minibatch").value(),
               ring = number_before(gpu.out, "ms per minibatch").value();
  CHECK(ring < direct);
  CHECK_THAT(cli.run("plan --profile profile.json --gpus 8 --bandwidths 1GB/s --strategy dp").out,
             !Catch::Contains("Sums over replicas"));
}

TEST_CASE("compare: where nothing fits, the nearest is named, not data parallelism") {
  const Cli cli;
  const Outcome outcome = cli.run("compare " + kProblem + "--memory 1kB");
  CHECK(outcome.code == 4);
  CHECK_THAT(outcome.error, Catch::Contains("nearest is") && !Catch::Contains("nearest is dp"));
}

TEST_CASE("tied parameters: what plan, compare and check say of them") {
  const Cli cli;
  Profile profile = read_document<Profile>(cli.path("profile.json"));
  profile.nodes.front().parameters = profile.nodes.back().parameters = {"table"};
  write_document(cli.path("profile.json"), profile);
  const std::string problem = "--profile profile.json --gpus 4 --bandwidths 20MB/s --latency 10us ";
  const std::string forbidden = "cut between 'n0' and 'n5' would need a copy of parameter 'table'";
  const Outcome stash = cli.run("plan " + problem + "--output stash.json");
  CHECK_THAT(stash.out, Catch::Contains(forbidden) &&
                            Catch::Contains("--weights 2bw or --schedule 1f1b-flush allows it"));
  CHECK_THAT(cli.run("check --plan stash.json --profile profile.json").out, Catch::Contains(forbidden));
  CHECK_THAT(cli.run("compare " + problem).out, Catch::Contains(forbidden));
  CHECK(parse_json(cli.run("compare " + problem + "--json").out, "out").contains("tied_parameters"));
  const Outcome straight = cli.run("plan " + problem + "--strategy straight");
  CHECK(straight.code == 4);
  CHECK_THAT(straight.error, Catch::Contains(forbidden));
  for (const std::string rule : {"--weights 2bw", "--schedule 1f1b-flush", "--schedule zb-h1"}) {
    CAPTURE(rule);
    const Outcome cut = cli.run("plan " + problem + rule + " --strategy straight --output cut.json");
    INFO(cut.error);
    REQUIRE(cut.code == 0);
    CHECK_THAT(cut.out, Catch::Contains("Parameter 'table' has copies in stages 0"));
    const Plan plan = read_document<Plan>(cli.path("cut.json"));
    REQUIRE(plan.tied_parameters.size() == 1);
    const Outcome check = cli.run("check --plan cut.json --profile profile.json");
    CHECK(check.code == 0);
    CHECK_THAT(check.out, Catch::Contains("has copies in stages"));
    const Outcome evaluated = cli.run(
        "evaluate --plan cut.json --profile profile.json --bandwidths 20MB/s "
        "--latency 10us --json");
    CHECK(parse_document<Plan>(evaluated.out, "out").predicted->minibatch_seconds ==
          Approx(plan.predicted->minibatch_seconds).epsilon(2e-3));
    CHECK(cli.run("simulate --plan cut.json --profile profile.json --trace t.json").code == 0);
    CHECK(cli.run("show --plan cut.json").code == 0);
  }
}

TEST_CASE("plan takes the fastest of several weight rules") {
  const Cli cli;
  const std::string rules = "--weights flush,stash,paci,2bw,predict ";
  const Outcome all = cli.run("plan " + kProblem + rules + "--output all.json");
  INFO(all.error);
  REQUIRE(all.code == 0);
  const Plan taken = read_document<Plan>(cli.path("all.json"));
  double fastest = std::numeric_limits<double>::infinity();
  for (const std::string rule : {"--weights flush --schedule 1f1b-flush --microbatches 4", "--weights stash",
                                 "--weights paci", "--weights 2bw --microbatches 4", "--weights predict"}) {
    CAPTURE(rule);
    REQUIRE(cli.run("plan " + kProblem + rule + " --output one.json").code == 0);
    const Plan one = read_document<Plan>(cli.path("one.json"));
    CHECK_THAT(all.out, Catch::Contains(one.weights));
    fastest = std::min(fastest, one.predicted->minibatch_seconds);
  }
  CHECK(taken.predicted->minibatch_seconds <= fastest / 0.99);
  const Json json = parse_json(cli.run("plan " + kProblem + rules + "--json").out, "out");
  CHECK(json["strategies"].size() == 5);
  CHECK(json["best"] == taken.weights);
  CHECK(json["plan"] == parse_json(read_file(cli.path("all.json")), "all.json"));
  // What a rule needs, and what it is not given.
  const auto refused = [&](const std::string& options) {
    const Outcome outcome = cli.run("plan " + kProblem + options);
    CAPTURE(options, outcome.out);
    CHECK(outcome.code != 0);
    return outcome.error;
  };
  CHECK_THAT(refused("--weights stash,pacy"), Catch::Contains("did you mean 'paci'?"));
  CHECK_THAT(refused("--weights stash,stash"), Catch::Contains("stash is there twice"));
  for (const std::string slip : {"--strategy straigt", "--recompute nevr"}) {
    const Outcome outcome = cli.run("plan " + kProblem + "--weights stash,2bw " + slip);
    CAPTURE(slip, outcome.error);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.error,
               Catch::Contains(" is not known; did you mean '") && !Catch::Contains("no strategy fits"));
  }
  CHECK_THAT(refused("--weights predict --optimizer muon"), Catch::Contains("Take one of sgd, adam, adamw"));
  CHECK_THAT(refused("--weights predict --optimizer-slots 0"), Catch::Contains("without momentum"));
  // Whoever wins, and whatever does not go with some of them.
  for (const std::string list :
       {"--weights stash,flush --microbatches 4", "--weights paci,stash --recompute always",
        "--weights stash,paci --optimizer adamw --delay-correction dc"}) {
    CAPTURE(list);
    CHECK(cli.run("plan " + kProblem + list).code == 0);
  }
  CHECK_THAT(cli.run("plan " + kProblem + "--weights paci,stash --optimizer adamw --delay-correction dc").out,
             Catch::Contains("paci: ") && Catch::Contains("is for gradients of one version"));
  const Outcome muon = cli.run("plan " + kProblem + "--weights stash,predict --optimizer muon");
  CHECK(muon.code == 0);
  CHECK_THAT(muon.out, Catch::Contains("predict: ") && Catch::Contains("'muon' has no form of it"));
}

TEST_CASE("What trains slower by samples is slower to the same loss") {
  const Cli cli;
  const auto write_table = [&](const std::string& rows) {
    write_file(cli.path("c.json"),
               R"({"schema": "pipewright.convergence/1", "model": "a small GPT", "rows": [)" + rows + "]}");
  };
  const auto row = [](const std::string& weights, int stages, const std::string& ratio) {
    return R"({"weights": ")" + weights +
           R"(", "optimizer": "adamw", "delay_correction": "none", "seeds": 3, "rate": 1e-3, "final_loss": 2.5, "final_loss_spread": 0.1, "stages": )" +
           std::to_string(stages) + R"(, "samples_ratio": )" + ratio + "}";
  };
  const std::string devices = "--profile profile.json --gpus 4 --bandwidths 3MB/s --latency 10us ";
  const std::string problem = devices + "--optimizer adamw ";
  const std::string with_table = problem + "--convergence c.json ";
  write_table(row("stash", 1, "1") + "," + row("stash", 64, "7.5") + "," + row("stash", 256, "9") + "," +
              row("2bw", 64, "null"));
  const Outcome compared = cli.run("compare " + with_table + "--json");
  INFO(compared.error);
  REQUIRE(compared.code == 0);
  int stale = 0;
  const Json rows = parse_json(compared.out, "out")["strategies"];
  for (const Json& each : rows) {
    CAPTURE(each.dump());
    if (!each.contains("shape")) continue;
    if (each["staleness"] == 0) {
      CHECK(each["samples_ratio"] == 1);
    } else if (each["strategy"] == "straight" || each["strategy"] == "hybrid") {
      ++stale;
      CHECK(each["samples_ratio"] == 7.5);
    } else if (each["strategy"] == "2bw") {
      CHECK(each["samples_ratio"].is_null());
    } else {
      CHECK_FALSE(each.contains("samples_ratio"));
    }
  }
  CHECK(stale > 0);
  const std::string table = cli.run("compare " + with_table).out;
  CHECK_THAT(table, Catch::Contains("to same loss") &&
                        Catch::Contains("by what a small GPT took with adamw") &&
                        Catch::Contains("Nobody has measured the samples that"));
  // The rule that is slower by more than it trains faster is not taken.
  const std::string rules = "--weights stash,flush --output taken.json ";
  REQUIRE(cli.run("plan " + problem + rules).code == 0);
  const std::string by_time = read_document<Plan>(cli.path("taken.json")).weights;
  REQUIRE(cli.run("plan " + with_table + rules).code == 0);
  CHECK(by_time == "stash");
  CHECK(read_document<Plan>(cli.path("taken.json")).weights == "flush");
  const auto refused = [&](const std::string& command) {
    const Outcome outcome = cli.run(command);
    CHECK(outcome.code == 2);
    return outcome.error;
  };
  CHECK_THAT(refused("compare " + devices + "--convergence c.json"),
             Catch::Contains("goes with --optimizer"));
  CHECK_THAT(refused("plan " + with_table), Catch::Contains("with plan it goes with several rules"));
  write_table("");
  CHECK_THAT(refused("compare " + with_table), Catch::Contains("c.json: rows: there is none"));
  write_table(row("stash", 4, "1") + "," + row("stash", 4, "2"));
  CHECK_THAT(refused("compare " + with_table), Catch::Contains("rows[1]: the same way to train"));
  write_table(row("stach", 4, "1"));
  CHECK_THAT(refused("compare " + with_table), Catch::Contains("rows[0].weights"));
}

TEST_CASE("compare has what plan finds among its rows") {
  const Cli cli;
  std::mt19937 random(7);
  for (int round = 0; round < 12; ++round) {
    const std::string problem = "--profile profile.json --gpus " + std::to_string(2 + random() % 7) +
                                " --bandwidths " + std::to_string(1 + random() % 200) + "MB/s --json";
    CAPTURE(problem);
    const Outcome planned = cli.run("plan " + problem), compared = cli.run("compare " + problem);
    REQUIRE(planned.code == 0);
    REQUIRE(compared.code == 0);
    double fastest = std::numeric_limits<double>::infinity();
    const Json solution = parse_json(compared.out, "out");
    for (const Json& row : solution.at("strategies"))
      if (row.contains("minibatch_seconds"))
        fastest = std::min(fastest, row["minibatch_seconds"].get<double>());
    CHECK(fastest <= 1.001 * parse_document<Plan>(planned.out, "out").predicted->minibatch_seconds);
  }
}

TEST_CASE("show and simulate name ranks as the plan does") {
  const Cli cli;
  std::mt19937 random(9);
  for (int round = 0; round < 4; ++round) {
    CHECK(cli.run("plan " + kProblem + "--strategy hybrid --output p.json").code == 0);
    Plan plan = read_document<Plan>(cli.path("p.json"));
    std::vector<int64_t> number(static_cast<size_t>(plan.world_size));
    for (size_t r = 0; r < number.size(); ++r) number[r] = static_cast<int64_t>(r);
    std::shuffle(number.begin(), number.end(), random);
    for (Stage& stage : plan.stages)
      for (int64_t& rank : stage.ranks) rank = number[static_cast<size_t>(rank)];
    write_document(cli.path("p.json"), plan);
    const std::string files = " --output t.svg --trace t.json --slot 1ms --memory-over-time m.csv";
    const Outcome run = cli.run("simulate --plan p.json --profile profile.json --minibatches 6" + files);
    REQUIRE(run.code == 0);
    for (const std::string& text : {cli.run("show --plan p.json").out, run.out, read_file(cli.path("t.svg")),
                                    read_file(cli.path("t.json"))}) {
      for (size_t s = 0; s < plan.stages.size(); ++s) {
        for (size_t q = 0; q < plan.stages[s].ranks.size(); ++q) {
          const std::string label = "rank " + std::to_string(plan.stages[s].ranks[q]) + "  stage " +
                                    std::to_string(s) + " replica " + std::to_string(q);
          CHECK_THAT(text, Catch::Contains(label));
        }
      }
    }
  }
}

}  // namespace
}  // namespace pipewright
