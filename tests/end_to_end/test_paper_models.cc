// The models of SDPipe's experiments, small, on data of their kind: BERT with a next-sentence loss on HDF5
// shards, ResNet-50 on a folder of images; with real processes, under every way to hold pipelines together.
// PIPEWRIGHT_LONG: all ways for both.
#include <catch2/catch.hpp>

#include "graph/json.h"
#include "graph/summary.h"
#include "graph/sync_rules.h"
#include "tests/end_to_end/commands.h"
#include "tests/runtime/data/pictures.h"
#include "tests/runtime/data/shards.h"
#include "tests/support/long.h"
#include "tests/support/skip.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace fs = std::filesystem;

namespace {

void run(const TemporaryFolder& folder, const Words& words) {
  Process process(Words{program("runtime")} + words, folder / "out", folder / "err");
  const int code = process.wait(std::chrono::seconds(240));
  INFO(process.error() << process.output());
  REQUIRE(code == 0);
}

/// Two pipelines of two stages train under each of the rules, and the serial reference says the same of it.
void check_trains(const TemporaryFolder& folder, const std::string& model, const std::string& data,
                  int64_t batch_size, int64_t minibatches, const std::vector<std::string>& syncs) {
  const fs::path plan = folder / "plan.json";
  write_document(plan, even_plan(graph_of(model, batch_size, folder), {2, 2}));
  for (const std::string& sync : syncs) {
    CAPTURE(model, sync);
    const fs::path output = folder / "run";
    fs::remove_all(output);
    run(folder, {"launch", "--model", model, "--plan", plan.string(), "--data", data, "--batch-size",
                 std::to_string(batch_size), "--minibatches", std::to_string(minibatches), "--learning-rate",
                 "0.01", "--checkpoint-every-epochs", "1", "--sync", sync, "--output", output.string()});
    const auto summary = read_document<Summary>(output / "summary.json");
    CHECK(summary.status == "done");
    CHECK(summary.minibatches == minibatches);
    REQUIRE(summary.train_loss == summary.train_loss);
    run(folder, {"verify", "--run", output.string()});
    // With waves they end equal, without anything they cannot; else it depends on the last group.
    for (const RankSummary& rank : summary.ranks) {
      CHECK(rank.largest_spread < 0.5);
      if (sync == "all-reduce" || sync == "hetpipe") {
        CHECK(rank.largest_spread == 0);
      }
      if (sync == "none") CHECK(rank.largest_spread > 0);
    }
  }
}

std::vector<std::string> all_or(const std::vector<std::string>& some) {
  if (!is_long()) return some;
  std::vector<std::string> all;
  for (const SyncFacts& row : sync_rules()) all.emplace_back(row.name);
  return all;
}

/// (seconds, mean loss of the last 40 minibatches), in the order of time.
std::vector<std::pair<double, double>> loss_curve(const fs::path& run) {
  std::vector<std::pair<double, double>> losses;
  for (const std::string& line : complete_lines(run / "metrics.jsonl")) {
    const Json json = Json::parse(line);
    if (json.contains("loss")) losses.emplace_back(json.at("elapsed_seconds"), json.at("loss"));
  }
  std::sort(losses.begin(), losses.end());
  constexpr size_t kWidth = 40;
  std::vector<std::pair<double, double>> curve;
  for (size_t i = kWidth; i <= losses.size(); ++i) {
    double sum = 0;
    for (size_t k = i - kWidth; k < i; ++k) sum += losses[k].second;
    curve.emplace_back(losses[i - 1].first, sum / kWidth);
  }
  return curve;
}

}  // namespace

TEST_CASE(
    "beside a pipeline that is 4 times as slow, partial reduce gets to all-reduce's loss sooner (a matter of "
    "time: one of three tries)") {
  const TemporaryFolder folder;
  const std::string model = "mlp:layers=3,width=32,image=8,channels=1";
  write_document(folder / "plan.json", even_plan(graph_of(model, 8, folder), {2, 2}));
  const auto train = [&](const std::string& sync, int64_t minibatches) {
    const fs::path output = folder / sync;
    fs::remove_all(output);
    run(folder, {"launch",
                 "--model",
                 model,
                 "--plan",
                 (folder / "plan.json").string(),
                 "--data",
                 "synthetic-images:image=8,channels=1,samples=4000,noise=2",
                 "--batch-size",
                 "8",
                 "--minibatches",
                 std::to_string(minibatches),
                 "--learning-rate",
                 "0.02",
                 "--sync",
                 sync,
                 "--disturb",
                 "compute:duration=3ms",
                 "--disturb",
                 "fixed:pipeline=0,factor=4",
                 "--output",
                 output.string()});
    for (const RankSummary& rank : read_document<Summary>(output / "summary.json").ranks)
      CHECK(rank.largest_spread < 0.5);
    return loss_curve(output);
  };
  bool sooner = false;
  for (int attempt = 0; attempt < 3 && !sooner; ++attempt) {
    const auto together = train("all-reduce", 160), loose = train("partial-reduce", 320);
    const auto there = std::find_if(loose.begin(), loose.end(), [&](const auto& point) {
      return point.second <= together.back().second;
    });
    sooner = there != loose.end() && there->first < together.back().first;
  }
  CHECK(sooner);
}

TEST_CASE("bert with a next-sentence loss trains on HDF5 shards, pipelines side by side") {
#ifdef PIPEWRIGHT_HDF5
  const TemporaryFolder folder;
  for (uint64_t i = 0; i < 3; ++i)
    write_shard(folder / "shards" / ("wiki_" + std::to_string(i) + ".hdf5"), random_shard(i, 20, 16));
  check_trains(
      folder,
      "bert:layers=2,width=16,heads=2,tokens=16,positions=16,vocabulary=50,head=separate,next_sentence=yes",
      "wiki-shards:vocabulary=50,root=" + (folder / "shards").string(), 4, 20,
      all_or({"partial-reduce", "none"}));
#else
  skip("built without HDF5 (package libhdf5-dev)");
#endif
}

TEST_CASE("resnet50 trains on a folder of images, pipelines side by side") {
  const TemporaryFolder folder;
  write_pictures(folder / "pictures");
  check_trains(folder, "resnet50:small=yes,classes=2",
               "image-folder:image=32,root=" + (folder / "pictures").string(), 2, 6,
               all_or({"partial-reduce"}));
}
