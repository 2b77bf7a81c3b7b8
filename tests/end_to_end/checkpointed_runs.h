// Runs of three epochs that leave checkpoints and final weights, under several plans.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/end_to_end/jobs.h"

namespace pipewright::testing {

// 96 minibatches in three epochs, each of which ends with an evaluation.
inline constexpr int64_t kMinibatches = 96;
inline std::vector<std::string> job(const std::filesystem::path& output,
                                    const std::vector<std::string>& more) {
  return std::vector<std::string>{"--model",
                                  kEndlessModel,
                                  "--data",
                                  "synthetic-images:image=8,samples=256",
                                  "--evaluation-data",
                                  "synthetic-images:image=8,samples=50",
                                  "--batch-size",
                                  "8",
                                  "--epochs",
                                  "3",
                                  "--timeout",
                                  "20s",
                                  "--output",
                                  output.string()} +
         more;
}

struct Launch {
  Process process;
  Launch(const TemporaryFolder& folder, const std::filesystem::path& output,
         const std::vector<std::string>& more)
      : process(std::vector<std::string>{program("runtime"), "launch"} + job(output, more), folder / "out",
                folder / "err") {}
  // To its end.
  int code() { return process.wait(std::chrono::seconds(120)); }
};

inline void finish(const TemporaryFolder& folder, const std::filesystem::path& output,
                   const std::vector<std::string>& more) {
  Launch launch(folder, output, more);
  const int code = launch.code();
  INFO(launch.process.error());
  REQUIRE(code == 0);
}

inline std::string write_plan(const TemporaryFolder& folder, const std::string& name,
                              const std::vector<int64_t>& replicas, const std::string& schedule = "1f1b") {
  Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), replicas);
  plan.schedule = schedule;
  write_document(folder / name, plan);
  return (folder / name).string();
}

// Two ranks with two stages each.
inline std::string write_interleaved_plan(const TemporaryFolder& folder) {
  Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), {1, 1, 1, 1});
  plan.schedule = "interleaved";
  plan.weights = "flush";
  plan.microbatches = 4;
  plan.world_size = 2;
  for (size_t s = 0; s < 4; ++s) {
    plan.stages[s].ranks = {static_cast<int64_t>(s % 2)};
    plan.stages[s].in_flight = 4;
  }
  write_document(folder / "interleaved.json", plan);
  return (folder / "interleaved.json").string();
}

// Losses by minibatch.
inline std::vector<double> losses(const std::filesystem::path& output) {
  std::vector<double> values;
  for (const Json& line : metrics(output)) {
    if (line.contains("loss")) values.push_back(line["loss"].get<double>());
  }
  return values;
}

}  // namespace pipewright::testing
