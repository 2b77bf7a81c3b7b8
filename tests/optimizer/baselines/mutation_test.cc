// Input files of published planners, damaged at random: refused with a reason in one line, or read.
// PIPEWRIGHT_MUTATIONS sets how many.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <random>

#include "graph/error.h"
#include "graph/json.h"
#include "optimizer/baselines/dnn_partitioning.h"
#include "optimizer/baselines/piper.h"
#include "optimizer/baselines/sailor.h"

namespace pipewright {
namespace {

const std::string kMaxLoad =
    R"({"maxSizePerFPGA": 100, "maxFPGAs": 2, "maxCPUs": 1, "nodes": [
  {"id": 1, "supportedOnFpga": 1, "cpuLatency": 2, "fpgaLatency": 1.5, "isBackwardNode": false, "size": 3},
  {"id": 2, "supportedOnFpga": 0, "cpuLatency": 2, "fpgaLatency": 1.5, "isBackwardNode": true, "size": 4}],
  "edges": [{"sourceId": 1, "destId": 2, "cost": 3, "size": 7}]})";

const std::string kPiper =
    R"({"maxDevices": 4, "maxMemoryPerDevice": 100, "bandwidth": 10, "mbsInBatch": 8, "nodes": [
  {"id": 5, "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 1, "parameterSize": 2, "memoryUsageA": 3,
    "memoryUsageB": 4, "syncTimeFw": {}, "syncTimeBw": {}}]}}], "edges": []})";

const std::string kSailorPlan =
    R"({"zone": "z", "pipeline_list": [{"num_stages": 2, "layers_per_stage": [[0], [1]],
  "tmp_per_stage": [[[[["A", 4, "z"]], 4], [[["A", 4, "z"]], 4]], [[[["A", 4, "z"]], 4], [[["A", 4, "z"]], 4]]],
  "dp": [2, 2]}], "mbs": 2, "gbs": 16, "real": 7.5, "red_grads": 0.5, "max_mem": 1000, "N": 4})";
const std::string kSailorLayers = R"({"OPT-350": {"4": {"0": {"params_bytes": 100, "act_output_bytes": 30},
  "1": {"params_bytes": 200, "act_output_bytes": 40}}}})";
const std::string kSailorProfiles =
    R"({"OPT-350": {"A": {"2": {"4": {"0": [1, 2, 0.1], "1": [3, 4, 0.2]}}}}})";
const std::string kSailorNetwork =
    R"({"z": {"A": {"4": {"z": {"A": {"4": [[-0.0024, 0.14, 5.1], 2420367713.5]}}}}}})";

std::string damaged(std::string text, std::mt19937_64& random) {
  for (size_t i = 1 + random() % 3; i > 0 && !text.empty(); --i) {
    const size_t at = random() % text.size();
    switch (random() % 4) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text[at] = "0123456789.-+eE\"{}[]:, \n\t"[random() % 25];
        break;
      case 2:
        text.erase(at, 1 + random() % 20);
        break;
      default:
        text.insert(at, text.substr(random() % text.size(), random() % 40));
        break;
    }
  }
  return text;
}

void check_reader(const std::string& sample,
                  const std::function<void(const std::string&, const std::string&)>& read, uint64_t seed) {
  const char* const asked = std::getenv("PIPEWRIGHT_MUTATIONS");
  const int64_t count = asked == nullptr ? 3000 : std::max<int64_t>(std::atoll(asked) / 8, 100);
  std::mt19937_64 random(seed);
  int64_t refused = 0;
  int64_t read_whole = 0;
  for (int64_t i = 0; i < count; ++i) {
    const std::string text = damaged(sample, random);
    try {
      read(text, "in.json");
      ++read_whole;
    } catch (const InputError& error) {
      ++refused;
      const std::string what = error.what();
      if (what.find('\n') != std::string::npos || what.size() > 1000)
        FAIL("message: " << what << "\ninput: " << text);
    } catch (const std::exception& error) {
      FAIL("another exception: " << error.what() << "\ninput: " << text);
    }
  }
  CHECK(refused > count / 4);
  CHECK(read_whole > 0);
}

TEST_CASE("damaged inputs of published planners are refused in words") {
  check_reader(
      kMaxLoad,
      [](const std::string& text, const std::string& where) { parse_dnn_partitioning(text, where); }, 1);
  check_reader(
      kMaxLoad,
      [](const std::string& text, const std::string& where) { dnn_partitioning_profile(text, where); }, 2);
  check_reader(
      kPiper, [](const std::string& text, const std::string& where) { parse_piper(text, where); }, 3);
  check_reader(
      kPiper, [](const std::string& text, const std::string& where) { piper_profile(text, where); }, 4);
  const SailorTables sound{parse_json(kSailorProfiles, ""), parse_json(kSailorLayers, ""),
                           parse_json(kSailorNetwork, "")};
  // What can be read can be predicted, if it is not large.
  const auto predict = [](const std::string& plan, const std::string& where, const SailorTables& tables) {
    const PublishedRun run = parse_sailor_run(plan, where, "mit", tables).run;
    if (run.unusable.empty() && run.shape.microbatches <= 1000) predicted_seconds(run, 2);
  };
  check_reader(
      kSailorPlan, [&](const std::string& text, const std::string& where) { predict(text, where, sound); },
      5);
  const auto with_damaged = [&](Json SailorTables::*table) {
    return [&sound, &predict, table](const std::string& text, const std::string& where) {
      SailorTables tables = sound;
      tables.*table = parse_json(text, where);
      predict(kSailorPlan, "plan.json", tables);
    };
  };
  check_reader(kSailorProfiles, with_damaged(&SailorTables::profiles), 6);
  check_reader(kSailorLayers, with_damaged(&SailorTables::layers), 7);
  check_reader(kSailorNetwork, with_damaged(&SailorTables::network), 8);
}

}  // namespace
}  // namespace pipewright
