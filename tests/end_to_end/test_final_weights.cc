// What a run leaves at its end, with and without checkpoints.
#include <catch2/catch.hpp>

#include "tests/end_to_end/checkpointed_runs.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

TEST_CASE(
    "a run leaves its final weights: what export writes, under any plan, and a run starts and evaluates from "
    "them") {
  const TemporaryFolder folder;
  const std::vector<std::vector<std::string>> plans = {{},
                                                       {"--plan", write_plan(folder, "2.json", {2})},
                                                       {"--plan", write_plan(folder, "121.json", {1, 2, 1})},
                                                       {"--plan", write_interleaved_plan(folder)}};
  const auto runtime = [&](const std::vector<std::string>& words) {
    Process process(std::vector<std::string>{program("runtime")} + words, folder / "out", folder / "err");
    const int code = process.wait(60s);
    INFO(process.error());
    REQUIRE(code == 0);
    return process.output();
  };
  const fs::path output = folder / "run", file = output / "model.safetensors",
                 exported = folder / "x.safetensors";
  for (const auto& plan : plans) {
    CAPTURE(plan);
    fs::remove_all(output);
    finish(folder, output, plan + std::vector<std::string>{"--checkpoint-every-epochs", "3"});
    runtime({"checkpoint", "export", output.string(), "--output", exported.string()});
    const std::string weights = read_file(file);
    CHECK(weights == read_file(exported));
    CHECK_FALSE(fs::exists(output / ".model.partial"));
    // Resumed where there is nothing left to do, it is written again; switched off, it is not.
    finish(folder, output, plan + std::vector<std::string>{"--resume", "latest"});
    CHECK(read_file(file) == weights);
    finish(folder, output, plan + std::vector<std::string>{"--resume", "latest", "--no-save"});
    CHECK_FALSE(fs::exists(file));
  }
  // Without any checkpoint: evaluated as the run's own last evaluation was, and gone on from.
  fs::remove_all(output);
  finish(folder, output, plans[2]);
  const Json last =
      parse_json(complete_lines(output / "metrics.jsonl").back(), "metrics.jsonl").at("evaluation");
  const auto evaluated = [&](const std::vector<std::string>& weights) {
    return parse_json(
        runtime(std::vector<std::string>{"evaluate", "--config", (output / "run.json").string(), "--json"} +
                weights),
        "evaluate");
  };
  CHECK(evaluated({"--resume", "latest"}).at("loss") == last.at("loss"));
  CHECK(evaluated({"--initial-weights", file.string()}).at("top1") == last.at("top1"));
  runtime({"checkpoint", "export", output.string(), "--output", exported.string()});
  CHECK(read_file(exported) == read_file(file));
  // In the very folder: they are read before they are set aside and replaced.
  const std::string before = read_file(file);
  finish(folder, output, plans[2] + std::vector<std::string>{"--initial-weights", file.string()});
  CHECK(read_file(output / "earlier-1" / "model.safetensors") == before);
  CHECK(read_file(file) != before);
  CHECK(losses(output).front() != losses(output / "earlier-1").front());
}
