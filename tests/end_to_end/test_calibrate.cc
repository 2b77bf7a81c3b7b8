// Profile, plan, train, and plan again with what the runs showed: `calibrate` as its user has it.
#include "graph/profile.h"
#include "graph/topology.h"
#include "tests/end_to_end/commands.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

TEST_CASE("calibrate: runs of two plans into a topology, by which the next plan is priced") {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& name) { return (folder / name).string(); };
  const auto step = [&](const std::vector<std::string>& words, int expected = 0) {
    Process process(words, folder / "out", folder / "err", {{"TMPDIR", folder.path().string()}});
    const int code = process.wait(240s);
    CAPTURE(words, process.error(), process.output());
    REQUIRE(code == expected);
    return process.output() + process.error();
  };
  const std::string model = "mlp:layers=6,width=256,image=8,channels=1";
  step({program("profiler"), "--model", model, "--batch-size", "32", "--repeats", "3", "--output",
        file("profile.json")});
  write_document(folder / "topology.json", flat_topology(2, 5e9, 2e-5, 0));
  write_document(folder / "other.json", flat_topology(2, 1e9, 2e-5, 0));
  std::vector<std::string> calibrate = {program("optimizer"), "calibrate",  "--profile",
                                        file("profile.json"), "--topology", file("topology.json")};
  const std::vector<std::vector<std::string>> plans = {
      {"--gpus", "1"}, {"--topology", file("topology.json"), "--strategy", "straight"}};
  calibrate.emplace_back("--runs");
  for (size_t i = 0; i < plans.size(); ++i) {
    const std::string plan = file("plan" + std::to_string(i) + ".json"),
                      run = file("run" + std::to_string(i));
    step(std::vector<std::string>{program("optimizer"), "plan", "--profile", file("profile.json"), "--output",
                                  plan} +
         plans[i]);
    step({program("runtime"), "launch", "--model", model, "--plan", plan, "--data",
          "synthetic-images:image=8,samples=320", "--batch-size", "32", "--minibatches", "60", "--epochs",
          "100", "--no-save", "--output", run});
    calibrate.push_back(run);
  }
  const std::string text = step(calibrate + std::vector<std::string>{"--output", file("calibrated.json")});
  CHECK_THAT(text, Catch::Contains("Mean error ") && Catch::Contains("one rank alone") &&
                       Catch::Contains("Prices are calibrated by 2 runs: "));
  const auto topology = read_document<Topology>(folder / "calibrated.json");
  CHECK(topology.factors.runs == 2);
  CHECK(topology.levels.size() == 1);
  const std::string planned = step({program("optimizer"), "plan", "--profile", file("profile.json"),
                                    "--topology", file("calibrated.json"), "--output", file("again.json")});
  CHECK_THAT(planned, Catch::Contains("Prices are calibrated by 2 runs: "));
  // Runs of plans that were made with the calibrated topology calibrate it anew.
  const Json json = parse_json(step(calibrate + std::vector<std::string>{"--json"}), "calibrate");
  CHECK(json["runs"].size() == 2);
  CHECK(json["calibration"]["runs"] == 2);

  auto others = calibrate;
  *(std::find(others.begin(), others.end(), "--topology") + 1) = file("other.json");
  CHECK_THAT(step(others, 2), Catch::Contains("its plan was made for other links than --topology has"));
  step({program("profiler"), "--model", "mlp:layers=2,width=16,image=8,channels=1", "--batch-size", "32",
        "--repeats", "3", "--output", file("small.json")});
  // Of a combined profile all its parts count as itself.
  step({program("profiler"), "--model", model, "--batch-size", "32", "--repeats", "3", "--output",
        file("later.json")});
  step({program("profiler"), "combine", "--profile", file("later.json"), "--profile", file("profile.json"),
        "--output", file("combined.json")});
  others = calibrate;
  *(std::find(others.begin(), others.end(), "--profile") + 1) = file("combined.json");
  CHECK_THAT(step(others), Catch::Contains("Mean error "));
  others = calibrate;
  others.push_back(file("no run"));
  CHECK_THAT(step(others, 2), Catch::Contains("no run/plan.json"));
  CHECK_THAT(step(calibrate + std::vector<std::string>{"--output", file("nowhere/t.json")}, 1),
             Catch::Contains("The folder does not exist: mkdir -p"));
  others = calibrate;
  *(std::find(others.begin(), others.end(), "--profile") + 1) = file("small.json");
  CHECK_THAT(step(others, 2), Catch::Contains("none of --profile is the one that its plan was made from"));
  CHECK_THAT(
      step({program("optimizer"), "calibrate", "--runs", file("run0"), "--topology", file("topology.json")},
           2),
      Catch::Contains("option --profile is missing"));
}
