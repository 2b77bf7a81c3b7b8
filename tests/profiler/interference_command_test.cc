// pipewright-profiler interference, train-predictor and hog as a process: what scripts see of them.
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "graph/document.h"
#include "interference/core_features.h"
#include "interference/data_set.h"
#include "interference/predictor.h"
#include "test_paths.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

using Catch::Contains;
using namespace std::chrono_literals;

struct Ended {
  int code = 0;
  std::string out, error;
};

Ended profiler(const TemporaryFolder& folder, std::vector<std::string> words) {
  words.insert(words.begin(), std::string(PIPEWRIGHT_BINARY_DIR) + "/pipewright-profiler");
  Process process(words, folder / "out", folder / "error");
  const int code = process.wait(100s);
  return {code, process.output(), process.error()};
}

}  // namespace

TEST_CASE("the data set of a model beside hogs, then a predictor of it: two commands") {
  const TemporaryFolder folder;
  const std::string data = folder / "data.jsonl", file = folder / "predictor.json";
  const Ended made = profiler(folder, {"interference", "--model", "mlp:layers=3,width=32", "--batch-size",
                                       "4", "--hogs", "matrix,copy", "--most", "2", "--repeats", "2",
                                       "--window", "50ms", "--segments", "2", "--output", data});
  CAPTURE(made.error);
  REQUIRE(made.code == 0);
  CHECK_THAT(made.out, Contains("written: " + data));
  const InterferenceData read = read_interference_data(data);
  CHECK(read.features == core_feature_names());
  // Two quiet windows and one before each of four orders of hogs; two windows of each; two segments.
  CHECK(read.rows.size() == 2 * (2 + 4 + 4 * 2));
  std::set<std::pair<std::string, int64_t>> orders;
  std::set<std::string> works;
  for (const InterferenceRow& row : read.rows) {
    orders.insert({row.group, row.processes});
    works.insert(row.work);
    CHECK(row.slowdown > 0);
  }
  CHECK(orders == std::set<std::pair<std::string, int64_t>>{
                      {"quiet", 0}, {"matrix", 1}, {"matrix", 2}, {"copy", 1}, {"copy", 2}});
  CHECK(works.size() == 2);

  const Ended trained =
      profiler(folder, {"train-predictor", "--data", data, "--trees", "20", "--output", file});
  CAPTURE(trained.error);
  REQUIRE(trained.code == 0);
  CHECK_THAT(trained.out, Contains("trained on 28 rows") && Contains("error of the mean") &&
                              Contains("R2 on what was held out") && Contains("matrix") &&
                              Contains("waiting") && Contains("written: " + file));
  const Predictor predictor = read_document<Predictor>(file);
  REQUIRE(predictor.report());
  CHECK(predictor.report()->groups.size() == 2);
  const std::vector<std::string> not_read = features_of_ranks_too(read.features);
  CHECK(not_read == std::vector<std::string>{"runnable", "taken", "switches", "cpu_pressure", "cache_misses",
                                             "gpu_busy", "gpu_memory_busy"});
  CHECK(predictor.features().size() == read.features.size() - not_read.size());
}

TEST_CASE("a predictor is trained on several data sets, and on DynPipe's, and doubts are said") {
  const TemporaryFolder folder;
  const std::string ours = folder / "ours.jsonl", theirs = folder / "out.json", file = folder / "p.json";
  InterferenceData data;
  data.features = {"waiting"};
  for (int i = 0; i < 20; ++i) data.rows.push_back({"matrix", 1, "w", {0.01 * i}, 1 + 0.01 * i});
  write_file(ours, data.text());
  std::string lines;
  for (int i = 0; i < 60; ++i)
    lines += R"({"profile": {"SM Active": ")" + std::to_string(i % 7) +
             R"("}, "output": {"mac": 1.0, "time": )" + std::to_string(1.01 + 0.05 * (i % 7)) + "}}\n";
  write_file(theirs, lines);

  const Ended one = profiler(folder, {"train-predictor", "--data", ours, "--data", ours, "--output", file});
  REQUIRE(one.code == 0);
  CHECK_THAT(one.out, Contains("trained on 40 rows"));
  CHECK_THAT(one.error,
             Contains("not two kinds of hogs") && Contains("largest slowdown in the data is 1.19"));

  const Ended dynpipe = profiler(folder, {"train-predictor", "--data", theirs, "--output", file});
  REQUIRE(dynpipe.code == 0);
  CHECK_THAT(dynpipe.out, Contains("stretch 1") && Contains("SM Active"));

  const Ended both =
      profiler(folder, {"train-predictor", "--data", ours, "--data", theirs, "--output", file});
  CHECK(both.code == 2);
  CHECK_THAT(both.error, Contains(theirs) && Contains("SM Active") && Contains("expected waiting"));
}

TEST_CASE("hog burns a core until it is ended") {
  const TemporaryFolder folder;
  Process hog({std::string(PIPEWRIGHT_BINARY_DIR) + "/pipewright-profiler", "hog", "--kind", "loopback"},
              folder / "out", folder / "error");
  REQUIRE(eventually(60s, [&] { return hog.output() == "running\n"; }));
  hog.signal(SIGTERM);
  CHECK(hog.wait(60s) == 0);
  CHECK_THAT(hog.output(), Contains("\"kind\":\"loopback\"") && Contains("cpu_seconds"));
}

TEST_CASE("without a GPU the commands that want one end with 2, as all programs do, and hogs leave nothing") {
  const TemporaryFolder folder;
  // No plug-in there, on a machine with a GPU too.
  const std::string variable = "PIPEWRIGHT_CUDA_PLUGIN";
  const auto refused = [&](std::vector<std::string> words) {
    words.insert(words.begin(), std::string(PIPEWRIGHT_BINARY_DIR) + "/pipewright-profiler");
    Process process(words, folder / "out", folder / "error", {{variable, folder / "none.so"}});
    CHECK(process.wait(100s) == 2);
    CHECK(process.output().empty());
    CHECK_THAT(process.error(),
               Catch::StartsWith("pipewright-profiler: error: --device: the plug-in for CUDA "
                                 "is missing: no ") &&
                   Contains("--device cpu"));
  };
  refused({"hog", "--device", "cuda:0", "--processes", "3"});
  refused({"interference", "--model", "mlp:layers=1,width=4", "--batch-size", "2", "--device", "cuda:0"});
}

TEST_CASE("a data set of before the GPU's features trains a predictor as it did") {
  const TemporaryFolder folder;
  const std::string file = folder / "old.jsonl";
  InterferenceData old;
  for (const std::string& name : core_feature_names())
    if (name != "cache_misses" && name.rfind("gpu_", 0) != 0) old.features.push_back(name);
  for (int i = 0; i < 20; ++i) {
    std::vector<double> row(old.features.size(), 0.01 * i);
    old.rows.push_back({i % 2 ? "matrix" : "copy", 1, "w", row, 1 + 0.01 * i});
  }
  write_file(file, old.text());
  const Ended trained =
      profiler(folder, {"train-predictor", "--data", file, "--output", folder / "predictor.json"});
  CAPTURE(trained.error);
  REQUIRE(trained.code == 0);
  CHECK(read_document<Predictor>(folder / "predictor.json").features().size() == old.features.size() - 4);
}

TEST_CASE("wrong use of the commands of interference ends with 2 and says what to do") {
  const TemporaryFolder folder;
  const auto fails = [&](const std::vector<std::string>& words, const std::string& part) {
    const Ended ended = profiler(folder, words);
    CAPTURE(words, ended.error);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.error, Contains(part));
    CHECK_THAT(ended.error, Catch::StartsWith("pipewright-profiler: error: "));
  };
  const std::vector<std::string> good = {"interference", "--model", "mlp:layers=1,width=4", "--batch-size",
                                         "2"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = good;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  fails({"interference", "--batch-size", "2"}, "--model is missing");
  fails({"interference", "--model", "mlp"}, "--batch-size is missing");
  fails(with({"--hogs", "matrix,cpoy"}), "did you mean 'copy'?");
  fails(with({"--core", "1000"}), "--core: this process may not run on core 1000; it may on ");
  fails(with({"--window", "1ms"}), "--window: got 1ms, expected 50ms or more");
  fails(with({"--most", "17"}), "--most: 17 is not in 1..16");
  fails(with({"--output", "/no/such/folder/x"}), "there is no folder");
  fails({"train-predictor"}, "--data is missing");
  fails({"train-predictor", "--data", "/no/such/file"}, "/no/such/file");
  fails({"train-predictor", "--data", "/dev/null"}, "/dev/null");
  fails({"train-predictor", "--data", "x", "--trees", "0"}, "--trees: 0 is not in 1..");
  fails({"hog", "--kind", "matrx"}, "did you mean 'matrix'?");
  fails({"hog", "--device", "gpu"}, "--device");
  fails({"hog", "--device", "cuda:0", "--kind", "matrx"}, "did you mean 'matrix'?");
  fails({"hog", "--device", "cuda:0", "--kind", "loopback"},
        "--kind: \"loopback\" takes no GPU: it is TCP through the host to itself");
  fails({"hog", "--device", "cuda:0", "--core", "0"}, "--core: with --device cuda:0");
  fails(with({"--device", "cuda:0", "--hogs", "copy,loopback"}), "--hogs: \"loopback\" takes no GPU");
  const Ended printed = profiler(folder, with({"--print-config"}));
  CHECK(printed.code == 0);
  CHECK_THAT(printed.out, Contains("window") && Contains("250ms") && Contains("mlp:layers=1,width=4"));
}

}  // namespace pipewright::testing
