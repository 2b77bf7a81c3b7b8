// A run needs the memory that its plan says, and no more if it is longer.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "graph/plan.h"
#include "graph/summary.h"
#include "graph/topology.h"
#include "tests/end_to_end/commands.h"
#include "tests/support/long.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

// The most that the process of each rank had resident.
std::vector<int64_t> peaks(const TemporaryFolder& folder, int64_t minibatches) {
  const std::string run = (folder / "run").string();
  Process job({program("runtime"), "launch", "--model", kEndlessModel, "--data",
               "synthetic-images:image=8,samples=256", "--batch-size", "2", "--minibatches",
               std::to_string(minibatches), "--plan", (folder / "plan.json").string(), "--output", run,
               "--overwrite"},
              folder / "out", folder / "err");
  const int code = job.wait(500s);
  INFO(job.error());
  REQUIRE(code == 0);
  std::vector<int64_t> bytes;
  for (const auto& rank : read_document<Summary>(folder / "run" / "summary.json").ranks)
    bytes.push_back(rank.peak_resident_bytes);
  return bytes;
}

void call(const TemporaryFolder& folder, const Words& words) {
  const Outcome said = run_command(folder, words);
  INFO(said.error);
  REQUIRE(said.code == 0);
}

}  // namespace

// Under-prediction is a plan that passes `check` and dies.
TEST_CASE("memory: ranks need what their plans say") {
  struct Kind {
    std::string model, batch, data;
  };
  const std::vector<Kind> kinds = {
      {"convnet:width=8", "16", "synthetic-images:image=28,channels=1,samples=1024"},
      {"vgg11:small=yes", "4", "synthetic-images:image=32,channels=3,samples=1024"},
      {"resnet18:small=yes", "4", "synthetic-images:image=32,channels=3,samples=1024"},
      {"squeezenet1_0:image=63,classes=10", "4", "synthetic-images:image=63,channels=3,samples=1024"},
      {"gpt:layers=2,width=96,dropout=0.1", "4", "synthetic-text"}};
  const std::vector<Words> rules = {{"--schedule", "1f1b"},
                                    {"--schedule", "1f1b", "--weights", "2bw"},
                                    {"--schedule", "1f1b", "--recompute", "always"},
                                    {"--schedule", "1f1b-flush", "--weights", "flush", "--microbatches", "4"},
                                    {"--schedule", "gpipe", "--weights", "flush", "--microbatches", "4"},
                                    {"--schedule", "zb-h1", "--weights", "flush", "--microbatches", "4"}};
  const TemporaryFolder folder;
  std::mt19937 random(20261126);
  const auto draw = [&](size_t count) { return static_cast<size_t>(random()) % count; };
  for (size_t c = 0; c < (is_long() ? 150 : 6); ++c) {
    const Kind& kind = kinds[c % kinds.size()];
    const Words& rule = rules[draw(rules.size())];
    const size_t ranks = 1 + draw(3);
    const bool replicated = ranks > 1 && draw(2) == 0, momentum = draw(2) == 0, shared = draw(2) == 0;
    const Words correction = {"--delay-correction",
                              rule.back() == "2bw" && draw(2) == 0 ? "error-feedback" : "none"};
    const std::string strategy = ranks == 1 ? "best" : replicated ? "dp" : "straight";
    const std::string profile = (folder / ("profile" + std::to_string(c % kinds.size()) + ".json")).string();
    const std::string plan = (folder / "plan.json").string(), topology = (folder / "topology.json").string();
    if (c < kinds.size()) {
      call(folder, {program("profiler"), "--model", kind.model, "--batch-size", kind.batch, "--warmup", "1",
                    "--repeats", "1", "--beside", "0", "--output", profile});
    }
    // Shared memory holds what was sent, TCP leaves it to the sender.
    Topology links = flat_topology(static_cast<int64_t>(ranks), 2e9, 1e-5, 0);
    if (shared) links.levels[0].buffered_bytes = int64_t{8} << 20;
    write_document(topology, links);
    Words words = {program("optimizer"), "plan",
                   "--profile",          profile,
                   "--topology",         topology,
                   "--strategy",         strategy,
                   "--optimizer-slots",  momentum ? "1" : "0",
                   "--output",           plan};
    words.insert(words.end(), rule.begin(), rule.end());
    call(folder, words + correction);
    call(folder, Words{program("runtime"), "launch",
                       "--model",          kind.model,
                       "--plan",           plan,
                       "--data",           kind.data,
                       "--batch-size",     kind.batch,
                       "--minibatches",    "36",
                       "--learning-rate",  "0.0001",
                       "--momentum",       momentum ? "0.9" : "0",
                       "--transport",      shared ? "shm" : "gloo",
                       "--no-save",        "--overwrite",
                       "--output",         (folder / "run").string()} +
                     correction);
    const Plan planned = read_document<Plan>(plan);
    for (const auto& rank : read_document<Summary>(folder / "run" / "summary.json").ranks) {
      int64_t said = 0;
      for (size_t s = 0; s < planned.stages.size(); ++s) {
        const std::vector<int64_t>& there = planned.stages[s].ranks;
        if (std::count(there.begin(), there.end(), rank.rank) > 0)
          said += planned.predicted->stages[s].memory.total_bytes();
      }
      INFO(kind.model << ", " << rule[1] << " " << rule.back() << ", " << ranks << " ranks, " << strategy
                      << ", rank " << rank.rank << ": planned " << said << " B, needed "
                      << rank.peak_memory_bytes << " B");
      CHECK(static_cast<double>(said) >= 0.965 * static_cast<double>(rank.peak_memory_bytes));
      CHECK(static_cast<double>(said) <= 1.2 * static_cast<double>(rank.peak_memory_bytes));
    }
  }
}

TEST_CASE(
    "memory: of a rank with two stages in a V what both need together is planned, nothing sent between") {
  const TemporaryFolder folder;
  const auto at = [&](const char* name) { return (folder / name).string(); };
  const std::string model = "mlp:layers=12,width=96,image=16,channels=1", size = "32";
  call(folder, {program("profiler"), "--model", model, "--batch-size", size, "--warmup", "1", "--repeats",
                "1", "--beside", "0", "--output", at("profile.json")});
  for (const std::string schedule : {"zbv", "dualpipev"})
    for (const bool shared : {true, false}) {
      Topology links = flat_topology(2, 2e9, 1e-5, 0);
      if (shared) links.levels[0].buffered_bytes = int64_t{8} << 20;
      write_document(folder / "topology.json", links);
      call(folder, {program("optimizer"), "plan", "--profile", at("profile.json"), "--topology",
                    at("topology.json"), "--schedule", schedule, "--weights", "flush", "--microbatches", "6",
                    "--optimizer-slots", "0", "--output", at("plan.json")});
      call(folder, {program("runtime"), "launch", "--model", model, "--plan", at("plan.json"), "--data",
                    "synthetic-images:image=16,channels=1,samples=1024",
                    // Of an evaluation no more messages are kept than of training, however long it is.
                    "--evaluation-data", "synthetic-images:image=16,channels=1,samples=4096", "--batch-size",
                    size, "--minibatches", "30", "--learning-rate", "0.0001", "--transport",
                    shared ? "shm" : "gloo", "--no-save", "--overwrite", "--output", at("run")});
      for (const auto& rank : read_document<Summary>(folder / "run" / "summary.json").ranks) {
        // Minibatches of input, which are no part of a plan on a host, are a lot of so small a model.
        const auto needed = static_cast<double>(rank.peak_memory_bytes - rank.memory.other_bytes);
        const auto said = static_cast<double>(rank.predicted_memory_bytes);
        INFO(schedule << ", " << (shared ? "shm" : "gloo") << ", rank " << rank.rank << ": planned " << said
                      << " B, needed " << needed << " B");
        CHECK(said >= needed);
        CHECK(said <= 1.6 * needed);
      }
    }
}

TEST_CASE("memory: gradients that a listed order has nobody take yet are planned, too") {
  const TemporaryFolder folder;
  const auto at = [&](const char* name) { return (folder / name).string(); };
  constexpr int kMicrobatches = 16;
  // All forwards of the first rank before its backwards; each backward of the second at once.
  std::string first, second;
  for (int k = 0; k < kMicrobatches; ++k) {
    first += "0F" + std::to_string(k) + ",";
    second += "1F" + std::to_string(k) + ",1B" + std::to_string(k) + ",";
  }
  for (int k = 0; k < kMicrobatches; ++k) first += "0B" + std::to_string(k) + ",";
  first.back() = second.back() = '\n';
  write_file(folder / "order.csv", first + second);
  const std::string model = "convnet:width=8", size = "16";
  call(folder, {program("profiler"), "--model", model, "--batch-size", size, "--warmup", "1", "--repeats",
                "1", "--beside", "0", "--output", at("profile.json")});
  const Words problem = {"--profile", at("profile.json"),  "--gpus", "2", "--bandwidths",
                         "2GB/s",     "--optimizer-slots", "0"};
  call(folder,
       Words{program("optimizer"), "plan", "--strategy", "straight", "--schedule", "gpipe", "--weights",
             "flush", "--microbatches", std::to_string(kMicrobatches), "--output", at("cut.json")} +
           problem);
  call(folder, {program("optimizer"), "convert", "--input", at("order.csv"), "--plan", at("cut.json"),
                "--output", at("plan.json")});
  call(folder,
       Words{program("optimizer"), "evaluate", "--plan", at("plan.json"), "--output", at("plan.json")} +
           problem);
  call(folder,
       {program("runtime"), "launch", "--model", model, "--plan", at("plan.json"), "--data",
        "synthetic-images:image=28,channels=1,samples=1024", "--batch-size", size, "--minibatches", "32",
        "--learning-rate", "0.0001", "--transport", "gloo", "--no-save", "--output", at("run")});
  const Plan planned = read_document<Plan>(folder / "plan.json");
  CHECK(planned.stages[0].in_flight == kMicrobatches);
  CHECK(planned.stages[1].in_flight == 1);
  for (const auto& rank : read_document<Summary>(folder / "run" / "summary.json").ranks) {
    const int64_t said = planned.predicted->stages[static_cast<size_t>(rank.rank)].memory.total_bytes();
    INFO("rank " << rank.rank << ": planned " << said << " B, needed " << rank.peak_memory_bytes << " B");
    CHECK(static_cast<double>(said) >= 0.965 * static_cast<double>(rank.peak_memory_bytes));
  }
}

TEST_CASE("memory: a run of many more minibatches needs no more") {
  // In the first thousands what allocators keep still grows, by 3 MiB.
  const int64_t first = is_long() ? 10'000 : 5'000;
  const int64_t many = is_long() ? 100'000 : 15'000;
  for (const std::vector<int64_t>& replicas : {std::vector<int64_t>{1, 1}, {2, 1}}) {
    if (replicas[0] == 1 && !is_long()) continue;
    const TemporaryFolder folder;
    write_document(folder / "plan.json", even_plan(graph_of(kEndlessModel, 2, folder), replicas));
    std::vector<int64_t> few = peaks(folder, first), all = peaks(folder, many);
    // Runs differ by less than this, but for one in some dozens. Memory that grows with the minibatches does
    // so again, by three times as much over three times as many. With PIPEWRIGHT_LONG 35 B a minibatch is
    // more.
    constexpr int64_t kApart = 3 << 20;
    int64_t minibatches = many;
    if (!std::equal(all.begin(), all.end(), few.begin(), few.end(),
                    [](int64_t one, int64_t other) { return one - other < kApart; })) {
      few = all;
      minibatches = many + 3 * (many - first);
      all = peaks(folder, minibatches);
    }
    REQUIRE(few.size() == all.size());
    for (size_t rank = 0; rank < few.size(); ++rank) {
      INFO("rank " << rank << ": " << few[rank] << " B, then " << all[rank] << " B after " << minibatches
                   << " minibatches");
      CHECK(all[rank] - few[rank] < kApart);
    }
  }
}
