// A short run that goes on from a checkpoint, and something happens to one of its ranks right before one of
// its actions: a signal, a kill, an error. The points are counted, not timed (runtime/control/fault_points.h).
// PIPEWRIGHT_BOUNDARIES=1 tries every point of every rank.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "graph/summary.h"
#include "tests/end_to_end/jobs.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

namespace {

// Of what a run has trained, 10 minibatches in two epochs of 8 with an evaluation each, the first 4 are its
// past.
struct ShortRun {
  const TemporaryFolder& folder;
  std::vector<std::string> plan;
  int64_t ranks = 1;
  fs::path begun, expected;

  // `changes`: what the plan changes to, by minibatch.
  ShortRun(const TemporaryFolder& in, const std::vector<int64_t>& replicas,
           const std::map<int64_t, std::vector<int64_t>>& changes = {})
      : folder(in), begun(in / "begun"), expected(in / "expected") {
    fs::remove_all(begun);
    fs::remove_all(expected);
    if (!replicas.empty()) {
      const Plan of_model = even_plan(graph_of(kEndlessModel, 8, folder), replicas);
      ranks = of_model.world_size;
      write_document(folder / "plan.json", of_model);
      plan = {"--plan", (folder / "plan.json").string()};
    }
    Json list = Json::array();
    for (const auto& [minibatch, next] : changes) {
      const Plan of_model = even_plan(graph_of(kEndlessModel, 8, folder), next);
      const std::string name = "plan-" + std::to_string(minibatch) + ".json";
      ranks = std::max(ranks, of_model.world_size);
      write_document(folder / name, of_model);
      list.push_back({{"minibatch", minibatch}, {"plan", name}});
    }
    if (!changes.empty()) {
      write_file(folder / "changes.json", list.dump());
      plan = plan + std::vector<std::string>{"--adapt", "manual:file=" + (folder / "changes.json").string()};
    }
    const int code = code_of(expected, {"--minibatches", "10"});
    INFO(error);
    REQUIRE(code == 0);
    // As a run leaves it that is killed behind its first checkpoint.
    fs::copy(expected, begun, fs::copy_options::recursive);
    for (const char* later : {"checkpoints/minibatch-8", "checkpoints/minibatch-10", "summary.json"})
      REQUIRE(fs::remove_all(begun / later) > 0);
  }

  std::string error;
  int code_of(const fs::path& output, const std::vector<std::string>& more,
              const std::map<std::string, std::string>& variables = {}) {
    Process process(
        std::vector<std::string>{program("runtime"), ranks == 1 ? "train" : "launch", "--model",
                                 kEndlessModel, "--data", "synthetic-images:image=8,samples=64",
                                 "--evaluation-data", "synthetic-images:image=8,samples=20", "--batch-size",
                                 "8", "--momentum", "0.9", "--timeout", "20s",
                                 "--checkpoint-every-minibatches", "4", "--output", output.string()} +
            plan + more,
        folder / "out", folder / "err", variables);
    const int code = process.wait(120s);
    error = process.error();
    return code;
  }

  // Returns false if the run ended without its fault.
  bool fails_and_goes_on(int64_t rank, int64_t point, const std::string& fault) {
    const fs::path run = folder / "run";
    fs::remove_all(run);
    fs::copy(begun, run, fs::copy_options::recursive);
    const std::vector<std::string> resumed = {"--resume", "latest", "--minibatches", "10"};
    const int code = code_of(
        run, resumed,
        {{"PIPEWRIGHT_TEST_FAULT", std::to_string(rank) + ":" + std::to_string(point) + ":" + fault}});
    CAPTURE(ranks, rank, point, fault, error);
    const int of_fault = fault == "throw" ? 1 : fault == "9" ? (ranks == 1 ? 128 + SIGKILL : 5) : 143;
    CHECK((code == 0 || code == of_fault));
    if (ranks > 1 && code != 0) CHECK_THAT(error, Catch::Contains("go on with --resume latest"));
    // Whatever there is can be read: nobody stands in the summary twice, all checkpoints are whole.
    if (fs::exists(run / "summary.json")) {
      const auto summary = read_document<Summary>(run / "summary.json");
      CHECK(summary.status == (code == 0 ? "done" : fault == "15" ? "interrupted" : "failed"));
      std::set<int64_t> said;
      for (const RankSummary& of : summary.ranks) CHECK(said.insert(of.rank).second);
    } else {
      CHECK(fault == "9");
    }
    const bool happened = code != 0;
    CHECK(code_of(run, resumed) == 0);
    CAPTURE(error);
    CHECK(metrics(run) == metrics(expected));
    CHECK(tensor_files(run / "checkpoints" / "minibatch-10") ==
          tensor_files(expected / "checkpoints" / "minibatch-10"));
    return happened;
  }
};

const std::vector<std::string> kFaults = {"15", "9", "throw"};

}  // namespace

TEST_CASE(
    "whatever happens to a rank before whichever action of a run that goes on, it goes on once more, bit for "
    "bit") {
  const TemporaryFolder folder;
  const bool all = std::getenv("PIPEWRIGHT_BOUNDARIES") != nullptr;
  std::mt19937_64 random(17);
  int64_t tried = 0, happened = 0;
  for (const std::vector<int64_t>& replicas : {std::vector<int64_t>{}, {1, 1}, {2, 1}}) {
    if (replicas.size() == 2 && replicas[0] == 1 && !all) continue;
    ShortRun run(folder, replicas);
    for (int64_t rank = 0; rank < run.ranks; ++rank) {
      for (const std::string& fault : kFaults) {
        if (all) {
          // A signal at the very end comes too late to stop anything, and so does the point behind the last.
          for (int64_t point = 0, late = 0; late < 3; ++point, ++tried) {
            const bool did = run.fails_and_goes_on(rank, point, fault);
            late = did ? 0 : late + 1;
            happened += did;
          }
        } else if (fault == "15" || rank == run.ranks - 1) {
          // Before the first forward, and somewhere.
          const int64_t point = fault == "15" && rank == 0 ? 0 : static_cast<int64_t>(random() % 40);
          happened += run.fails_and_goes_on(rank, point, fault);
          ++tried;
        }
      }
    }
  }
  std::printf("%ld of %ld faults ended the run\n", happened, tried);
  CHECK(happened > tried / 3);
}

TEST_CASE(
    "whatever happens to a rank around a change of the plan, the run goes on from its last checkpoint, bit "
    "for bit") {
  const TemporaryFolder folder;
  const bool all = std::getenv("PIPEWRIGHT_BOUNDARIES") != nullptr;
  std::mt19937_64 random(18);
  // The second change is at the end of an epoch. Under the first plan, and the last, rank 2 waits.
  ShortRun run(folder, {1, 1}, {{6, {1, 2}}, {8, {1, 1}}});
  REQUIRE(run.ranks == 3);
  int64_t happened = 0;
  for (int64_t rank = 0; rank < run.ranks; ++rank) {
    for (const std::string& fault : kFaults) {
      if (all) {
        for (int64_t point = 0, late = 0; late < 3; ++point) {
          const bool did = run.fails_and_goes_on(rank, point, fault);
          late = did ? 0 : late + 1;
          happened += did;
        }
      } else if (fault == kFaults[static_cast<size_t>(rank)]) {
        happened += run.fails_and_goes_on(rank, static_cast<int64_t>(10 + random() % 12), fault);
      }
    }
  }
  CHECK(happened > 0);
}
