// Runs that keep what frozen layers make of samples (--cache), with real processes.
#include <catch2/catch.hpp>
#include <functional>
#include <random>

#include "graph/summary.h"
#include "tests/end_to_end/changing_runs.h"
#include "tests/support/long.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace fs = std::filesystem;

namespace {

// 64 samples of kEndlessModel, which training takes as they stand: the same minibatches in every epoch.
std::string tensors_in_order(const TemporaryFolder& folder) {
  constexpr size_t kSamples = 64, kPixels = 64;
  Json header;
  header["images"] = {{"dtype", "F32"},
                      {"shape", {kSamples, 1, 8, 8}},
                      {"data_offsets", {0, kSamples * kPixels * sizeof(float)}}};
  const size_t end = kSamples * kPixels * sizeof(float);
  header["labels"] = {
      {"dtype", "I64"}, {"shape", {kSamples}}, {"data_offsets", {end, end + kSamples * sizeof(int64_t)}}};
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += text;
  std::mt19937_64 random(5);
  std::vector<int64_t> labels;
  for (size_t i = 0; i < kSamples; ++i) {
    labels.push_back(static_cast<int64_t>(random() % 10));
    for (size_t pixel = 0; pixel < kPixels; ++pixel) {
      const float value =
          static_cast<float>(random() % 1000) / 1000 - 0.1F * static_cast<float>(labels.back());
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  bytes.append(reinterpret_cast<const char*>(labels.data()), labels.size() * sizeof(int64_t));
  write_file(folder / "samples.safetensors", bytes);
  return "tensors:file=" + (folder / "samples.safetensors").string();
}

std::vector<std::string> launch_of(const fs::path& output, const std::vector<std::string>& more,
                                   const std::string& model = kEndlessModel) {
  return std::vector<std::string>{"launch",    "--model", model,      "--batch-size", "8",
                                  "--timeout", "20s",     "--output", output.string()} +
         more;
}

void run_to_end(const TemporaryFolder& folder, const fs::path& output, const std::vector<std::string>& more) {
  const Outcome outcome = runtime(folder, launch_of(output, more));
  INFO(outcome.error);
  REQUIRE(outcome.code == 0);
}

std::vector<CacheSummary> caches_of(const fs::path& run) {
  std::vector<CacheSummary> caches;
  for (const RankSummary& rank : read_document<Summary>(run / "summary.json").ranks)
    if (rank.cache) caches.push_back(*rank.cache);
  return caches;
}

}  // namespace

TEST_CASE("kept values change no bit: losses, weights, and what the serial reference makes of it") {
  const TemporaryFolder folder;
  const std::string memory = "memory:memory=8MiB";
  struct Case {
    std::function<std::string()> plan;
    std::vector<std::string> more;
    std::string cache;
  };
  const std::vector<Case> cases = {
      {[] { return ""; }, {"--ranks", "2"}, memory},
      {[&] {
         return write_plan(folder, "a.json", {2, 1});
       },
       {"--optimizer", "adam"},
       memory},
      {[&] {
         return write_plan(folder, "b.json", {1, 1, 1});
       },
       {},
       "disk:memory=80kB,disk=8MiB"},
      {[&] {
         return write_flush_plan(folder, "c.json", {1, 1}, "zb-h1");
       },
       {},
       memory},
      {[&] { return write_interleaved_plan(folder); }, {}, memory},
      {[&] {
         return write_plan(folder, "d.json", {2, 2});
       },
       {"--sync", "none"},
       memory},
  };
  const auto number = static_cast<size_t>(GENERATE(range(0, 6)));
  if (number % 2 == 0 && !is_long()) return;
  const Case& chosen = cases[number];
  const std::string plan = chosen.plan(), cache = chosen.cache;
  INFO(plan << " " << cache);
  const std::string data = tensors_in_order(folder);
  std::vector<std::string> words = {
      "--data", data, "--evaluation-data", data, "--epochs", "8", "--checkpoint-every-minibatches", "32"};
  if (!plan.empty()) words = words + std::vector<std::string>{"--plan", plan};
  words = words + chosen.more;
  words = words + std::vector<std::string>{"--adapt", "freeze:rule=alpha,alpha=0.3,every=16"};
  const fs::path whole = folder / "whole", kept = folder / "kept";
  run_to_end(folder, whole, words);
  run_to_end(folder, kept, words + std::vector<std::string>{"--cache", cache + ",use=always"});
  CHECK(losses(kept) == losses(whole));
  CHECK(tensor_files(kept) == tensor_files(whole));
  const Outcome verified = runtime(folder, {"verify", "--run", kept.string()});
  INFO(verified.error << verified.output);
  CHECK(verified.code == 0);
  int64_t fetched = 0, deepened = 0;
  for (const CacheSummary& rank : caches_of(kept)) {
    INFO(rank.to_json().dump());
    CHECK(rank.refused.empty());
    fetched += rank.fetched;
    deepened += rank.deepened;
    CHECK(rank.memory_bytes + rank.disk_bytes > 0);
  }
  CHECK(fetched > 0);
  if (plan.empty()) CHECK(deepened > 0);
  CHECK(caches_of(whole).empty());
  const Outcome report = runtime(folder, {"report", kept.string()});
  CHECK_THAT(report.output, Catch::Contains("hit rate"));
}

TEST_CASE("what cannot be kept is refused before the start, with the reason") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::vector<std::string>& more, const std::string& model = kEndlessModel) {
    const Outcome outcome = runtime(folder, launch_of(folder / "run", more, model));
    CHECK(outcome.code == 2);
    CHECK_FALSE(fs::exists(folder / "run" / "metrics.jsonl"));
    return outcome.error;
  };
  const std::vector<std::string> images = {"--data", "synthetic-images:image=8,samples=256"};
  const std::vector<std::string> freeze = images + std::vector<std::string>{"--adapt", "freeze:rule=alpha"};
  CHECK_THAT(refused(images + std::vector<std::string>{"--cache", "memory"}),
             Catch::Contains("no layer of this run is ever frozen"));
  CHECK_THAT(refused(freeze + std::vector<std::string>{"--cache", "memry"}), Catch::Contains("memory"));
  CHECK_THAT(refused(freeze + std::vector<std::string>{"--cache", "memory", "--cuda-graphs", "on"}),
             Catch::Contains("cuda_graphs does not go with cache"));
  CHECK_THAT(refused({"--data", "masked-text:file=" PIPEWRIGHT_SOURCE_DIR "/README.md,tokens=8", "--adapt",
                      "freeze:rule=alpha", "--cache", "memory"},
                     "bert:layers=2,width=16,heads=2,tokens=8,positions=8,vocabulary=257"),
             Catch::Contains("differs from epoch to epoch") && Catch::Contains("masked"));
}

TEST_CASE("a run with kept values that is killed leaves no file, and goes on from its checkpoint") {
  const TemporaryFolder folder;
  const std::string data = tensors_in_order(folder);
  const fs::path run = folder / "run", kept = folder / "kept";
  fs::create_directory(kept);
  const std::vector<std::string> words = {"--data",
                                          data,
                                          "--plan",
                                          write_plan(folder, "a.json", {2, 1}),
                                          "--adapt",
                                          "freeze:rule=alpha,alpha=0.5,every=16",
                                          "--checkpoint-every-minibatches",
                                          "24",
                                          "--checkpoint-keep",
                                          "1000",
                                          "--cache",
                                          "disk:memory=64kB,disk=8MiB,use=always,root=" + kept.string()};
  const auto epochs = [&](const std::string& count) {
    return words + std::vector<std::string>{"--epochs", count};
  };
  run_to_end(folder, folder / "whole", epochs("12"));
  {
    Process launcher(std::vector<std::string>{program("runtime")} + launch_of(run, epochs("100000")),
                     folder / "out", folder / "err");
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (complete_lines(run / "metrics.jsonl").size() < 60 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    REQUIRE_FALSE(launcher.children().empty());
    ::kill(launcher.children().front(), SIGKILL);
    CHECK(launcher.wait(std::chrono::seconds(60)) != 0);
  }
  CHECK(fs::is_empty(kept));
  const fs::path resumed = folder / "resumed";
  run_to_end(
      folder, resumed,
      epochs("12") + std::vector<std::string>{"--resume", (run / "checkpoints" / "minibatch-24").string()});
  CHECK(fs::is_empty(kept));
  CHECK(tensor_files(resumed) == tensor_files(folder / "whole"));
}
