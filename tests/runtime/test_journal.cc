#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "graph/document.h"
#include "graph/error.h"
#include "runtime/journal.h"
#include "runtime/run_folder.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using pipewright::testing::TemporaryFolder;

namespace {
JournalSettings settings_in(const TemporaryFolder& folder) {
  JournalSettings settings;
  settings.folder = folder.path();
  settings.batch_size = 10;
  settings.minibatches_per_epoch = 8;
  settings.total_minibatches = 16;
  settings.evaluation_minibatches = 3;
  settings.period_minibatches = 2;
  return settings;
}

std::vector<Json> lines_of(const TemporaryFolder& folder) {
  std::vector<Json> lines;
  const std::string text = read_file(folder / "metrics.jsonl");
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(parse_json(text.substr(begin, end - begin), "metrics.jsonl"));
  }
  return lines;
}
}  // namespace

TEST_CASE("journal: minibatches are written in order whatever order they come in, losses keep all digits") {
  const TemporaryFolder folder;
  Journal journal(settings_in(folder));
  for (const int64_t k : {1, 0, 3, 2, 7, 6, 5, 4})
    journal.take(0, minibatch_line(k, 1.0 / (3 + k), 0.25 * (k + 1)));
  const auto lines = lines_of(folder);
  REQUIRE(lines.size() == 8);
  for (int64_t k = 0; k < 8; ++k) {
    CHECK(lines[k]["minibatch"] == k);
    CHECK(lines[k]["epoch"] == 0);
    CHECK(lines[k]["samples"] == 10);
    CHECK(lines[k]["loss"].get<double>() == 1.0 / (3 + k));
  }
  journal.close();
  const Summary summary = journal.summary();
  CHECK(summary.minibatches == 8);
  CHECK(summary.samples == 80);
  CHECK(summary.minibatch_seconds == Approx(0.25));
  CHECK(summary.samples_per_second == Approx(40));
}

TEST_CASE("journal: bursts of replicas do not distort the steady state") {
  const TemporaryFolder folder;
  Journal journal(settings_in(folder));
  // Two replicas complete together every second: half a second a minibatch.
  for (int64_t k = 0; k < 8; ++k) journal.take(0, minibatch_line(k, 1, static_cast<double>(k / 2 + 1)));
  journal.close();
  CHECK(journal.summary().minibatch_seconds == Approx(0.5));
}

TEST_CASE("journal: an evaluation is summed when its last minibatch has come, short one included") {
  const TemporaryFolder folder;
  Journal journal(settings_in(folder));
  journal.take(0, evaluation_line(0, {2, 4.0, 1, 5, 5}));
  journal.take(0, evaluation_line(0, {0, 1.0, 7, 10, 10}));
  CHECK(lines_of(folder).empty());
  journal.take(0, evaluation_line(0, {1, 2.0, 2, 10, 10}));
  const auto lines = lines_of(folder);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["evaluation"]["samples"] == 25);
  CHECK(lines[0]["evaluation"]["loss"].get<double>() == Approx((10 + 20 + 20) / 25.0));
  CHECK(lines[0]["evaluation"]["top1"].get<double>() == Approx(10 / 25.0));
  journal.close();
  CHECK(journal.summary().evaluation->samples == 25);
}

TEST_CASE("journal: a full disk is an error that says so, not silence") {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "metrics.jsonl");
  Journal journal(settings_in(folder));
  CHECK_THROWS_AS(journal.take(0, minibatch_line(0, 1, 1)), RunError);
}

TEST_CASE("journal: a loss that is not a number is written as null") {
  const TemporaryFolder folder;
  Journal journal(settings_in(folder));
  journal.take(0, minibatch_line(0, std::nan(""), 1));
  CHECK(lines_of(folder).at(0)["loss"].is_null());
  journal.close();
}

TEST_CASE("run folder: what an earlier run left is removed, other files stay") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "flight");
  for (const char* name : {"summary.json", "trace.json", "rank-0.log", "rank-1.log", "notes.txt"}) {
    write_file(folder / name, "x");
  }
  write_file(folder / "flight" / "rank-0.json", "x");
  make_run_folder(folder.path(), {});
  CHECK_FALSE(std::filesystem::exists(folder / "summary.json"));
  CHECK_FALSE(std::filesystem::exists(folder / "flight"));
  CHECK_FALSE(std::filesystem::exists(folder / "rank-1.log"));
  CHECK(std::filesystem::exists(folder / "notes.txt"));
  write_file(folder / "file", "x");
  CHECK_THROWS_AS(make_run_folder(folder / "file", {}), RunError);
}

TEST_CASE("journal: a run that goes on keeps its past up to the checkpoint, without a torn line or a gap") {
  const TemporaryFolder folder;
  {
    Journal journal(settings_in(folder));
    for (int64_t k = 0; k < 11; ++k) {
      journal.take(0, minibatch_line(k, 1.0 / (3 + k), 0.25 * (k + 1)));
      for (int64_t i = 0; k == 9 && i < 3; ++i) journal.take(0, evaluation_line(0, {i, 0.5, 1, 2, 10}));
    }
  }
  const auto file = folder / "metrics.jsonl";
  const auto before = lines_of(folder);
  write_file(file, read_file(file) + R"({"minibatch":11,"epo)");
  CHECK(metrics_history(file, 12, 1).empty());  // minibatch 11 is torn
  CHECK(metrics_history(file, 9, 0).size() == 9);
  const auto history = metrics_history(file, 9, 1);
  REQUIRE(history.size() == 10);  // the evaluation stands behind minibatch 9's line
  CHECK(metrics_history(folder / "absent", 9, 1).empty());

  JournalSettings settings = settings_in(folder);
  settings.next_minibatch = 9;
  settings.history = history;
  Journal journal(settings);
  for (int64_t k = 9; k < 16; ++k) journal.take(0, minibatch_line(k, 1.0 / (3 + k), 0.25 * (k - 8)));
  journal.close();
  const auto after = lines_of(folder);
  REQUIRE(after.size() == 17);
  for (size_t i = 0; i < 9; ++i) CHECK(after[i] == before[i]);
  CHECK(after[9].contains("evaluation"));
  CHECK(after[10]["minibatch"] == 9);
  CHECK(after[10]["elapsed_seconds"] == 9 * 0.25 + 0.25);
  const Summary summary = journal.summary();
  CHECK(summary.minibatches == 16);
  CHECK(summary.evaluation->loss == 0.5);
  double mean = 0;
  for (int64_t k = 8; k < 16; ++k) mean += 1.0 / (3 + k) / 8;
  CHECK(summary.train_loss == Approx(mean));
}
