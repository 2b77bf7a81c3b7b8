// A run folder: one run at a time, and nothing of an earlier one is lost.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <random>
#include <set>
#include <thread>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/summary.h"
#include "runtime/checkpoint/run_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using pipewright::testing::error_of;
using pipewright::testing::TemporaryFolder;

namespace fs = std::filesystem;

namespace {

// The contents of all files under the folder, by name.
std::map<std::string, std::string> files_under(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().lexically_relative(folder)] = read_file(entry.path());
  }
  return files;
}

void write_checkpoint(const fs::path& run, int64_t n, const std::string& mark) {
  const fs::path folder = checkpoints_of(run) / checkpoint_name(n);
  fs::create_directories(folder);
  write_file(folder / "stage-0.safetensors", mark + " weights " + std::to_string(n));
  write_file(folder / kManifestName, mark + " manifest " + std::to_string(n));
}

Checkpoint checkpoint_at(const fs::path& run, int64_t n) {
  Checkpoint checkpoint;
  checkpoint.folder = checkpoints_of(run) / checkpoint_name(n);
  checkpoint.manifest.next_minibatch = n;
  return checkpoint;
}

Summary summary_of_run(const std::string& status, int64_t minibatches) {
  Summary summary;
  summary.status = status;
  summary.minibatches = minibatches;
  summary.world_size = 1;
  return summary;
}

}  // namespace

TEST_CASE("run folder: what an earlier run left is set aside, other files and half-written ones apart") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "flight");
  const std::vector<std::string> left = {"run.json",     "plan.json",          "metrics.jsonl",
                                         "summary.json", "trace.json",         "rank-0.log",
                                         "rank-1.log",   "flight/rank-0.json", "model.safetensors"};
  for (const std::string& name : left) write_file(folder / name, "old " + name);
  write_file(folder / "notes.txt", "mine");
  write_file(folder / ".summary.json.tmp-17-3", "half");
  write_checkpoint(folder.path(), 5, "old");
  fs::create_directories(checkpoints_of(folder.path()) / ".minibatch-9.partial");
  prepare_run_folder(folder.path(), {});
  const auto files = files_under(folder.path());
  for (const std::string& name : left) {
    CAPTURE(name);
    CHECK(files.at("earlier-1/" + name) == "old " + name);
    // What the run that begins may read is still there.
    const bool read = name == "run.json" || name == "plan.json" || name == "model.safetensors";
    CHECK((files.count(name) == 1) == read);
  }
  CHECK(files.at("earlier-1/checkpoints/minibatch-5/manifest.json") == "old manifest 5");
  CHECK(files.at("notes.txt") == "mine");
  CHECK(files.size() == left.size() + 3 + 2 + 1);
  CHECK_FALSE(fs::exists(checkpoints_of(folder.path())));

  // Nothing was trained since: nothing to set aside.
  for (const char* name : {"model.safetensors"}) fs::remove(folder / name);
  write_file(folder / "rank-0.log", "it did not start");
  prepare_run_folder(folder.path(), {});
  CHECK_FALSE(fs::exists(folder / "earlier-2"));
  CHECK_FALSE(fs::exists(folder / "rank-0.log"));

  write_file(folder / "metrics.jsonl", "newer");
  prepare_run_folder(folder.path(), {}, /*overwrite=*/true);
  CHECK_FALSE(fs::exists(folder / "earlier-2"));
  CHECK_FALSE(fs::exists(folder / "metrics.jsonl"));
  CHECK(read_file(folder / "earlier-1" / "metrics.jsonl") == "old metrics.jsonl");

  write_file(folder / "file", "x");
  CHECK_THROWS_AS(make_run_folder(folder / "file"), RunError);
  CHECK_THROWS_AS(RunFolderLock(folder / "file" / "run"), RunError);
}

TEST_CASE("run folder: links and pipes in the place of metrics.jsonl stay where they are") {
  const TemporaryFolder folder;
  const fs::path run = folder / "run", metrics = run / "metrics.jsonl";
  fs::create_directory(run);
  write_file(folder / "elsewhere.jsonl", "old");
  fs::create_symlink(folder / "elsewhere.jsonl", metrics);
  prepare_run_folder(run, {});
  CHECK(fs::is_symlink(metrics));
  CHECK(read_file(run / "earlier-1" / "metrics.jsonl") == "old");
  fs::remove(metrics);
  REQUIRE(::mkfifo(metrics.c_str(), 0600) == 0);
  prepare_run_folder(run, {});
  CHECK(fs::is_fifo(metrics));
}

TEST_CASE(
    "run folder: in random folders a run finds its past, and every byte of what is not its own is kept") {
  std::mt19937_64 random(23);
  for (int round = 0; round < 300; ++round) {
    const TemporaryFolder folder;
    const fs::path run = folder / "run", other = folder / "other";
    fs::create_directory(run);
    const auto maybe = [&] { return random() % 2 == 0; };
    for (int earlier = 0; earlier < 2; ++earlier) {  // of one run after the other
      const std::string mark = "run " + std::to_string(earlier);
      for (const char* name :
           {"run.json", "plan.json", "metrics.jsonl", "trace.json", "model.safetensors", "mine"})
        if (maybe()) write_file(run / name, mark + " " + name);
      const int64_t trained = 1 + static_cast<int64_t>(random() % 30);
      const std::string status = maybe() ? "done" : "interrupted";
      if (maybe()) write_document(run / "summary.json", summary_of_run(status, trained));
      std::vector<int64_t> checkpoints;
      for (int64_t n = 1; n <= trained; ++n)
        if (random() % 8 == 0) checkpoints.push_back(n);
      for (const int64_t n : checkpoints) write_checkpoint(run, n, mark);
      checkpoints.clear();  // with those that the run before left, if it was gone on from
      for (const fs::path& checkpoint : list_checkpoints(run))
        checkpoints.insert(checkpoints.begin(), std::stoll(checkpoint.filename().string().substr(10)));
      write_checkpoint(other, 7, "other");

      std::optional<Checkpoint> resume;
      if (maybe()) resume = checkpoint_at(other, 7);
      const bool own = !checkpoints.empty() && maybe();
      if (own) resume = checkpoint_at(run, checkpoints[random() % checkpoints.size()]);
      const bool ended_behind = fs::exists(run / "summary.json") && status == "done" && own &&
                                trained > resume->manifest.next_minibatch;
      const bool overwrite = random() % 4 == 0;
      const auto before = files_under(run);
      CAPTURE(round, earlier, checkpoints, own, ended_behind, overwrite, before.size());
      prepare_run_folder(run, resume, overwrite);
      const auto after = files_under(run);

      // The run's own past, and nobody else's.
      std::vector<fs::path> past;
      for (const int64_t n : checkpoints)
        if (own && n <= resume->manifest.next_minibatch)
          past.push_back(checkpoints_of(run) / checkpoint_name(n));
      std::reverse(past.begin(), past.end());
      CHECK(list_checkpoints(run) == past);
      CHECK(after.count("summary.json") == 0);
      CHECK(after.count("metrics.jsonl") == (own ? before.count("metrics.jsonl") : 0));
      for (const auto& [name, text] : before) {
        if (name.rfind("earlier-", 0) == 0) CHECK(after.at(name) == text);
      }
      CHECK(after.count("mine") == before.count("mine"));
      if (overwrite) {
        CHECK(fs::exists(run / "earlier-2") <= fs::exists(run / "earlier-1"));
        continue;
      }
      // Of a run that goes on where it was: its summary and trace are made anew.
      const bool goes_on = own && !ended_behind && checkpoints.back() == resume->manifest.next_minibatch;
      const bool nothing_trained = !own && checkpoints.empty() && before.count("metrics.jsonl") == 0 &&
                                   before.count("summary.json") == 0 &&
                                   before.count("model.safetensors") == 0;
      std::set<std::string> kept;
      for (const auto& [name, text] : after) kept.insert(text);
      for (const auto& [name, text] : before) {
        CAPTURE(name);
        if ((goes_on || nothing_trained) && (name == "summary.json" || name == "trace.json")) continue;
        CHECK(kept.count(text) == 1);
      }
    }
  }
}

TEST_CASE("run folder: a second run is kept out, and told by whom, and the lock ends with its last holder") {
  const TemporaryFolder folder;
  const fs::path run = folder / "deep" / "run";
  {
    const RunFolderLock held(run);
    const auto before = files_under(run);
    const std::string error = error_of<InputError>([&] { RunFolderLock second(run); });
    CHECK_THAT(error, Catch::Contains(run.string() + ": a run is writing there: process " +
                                      std::to_string(::getpid()) + " on "));
    CHECK(files_under(run) == before);
  }
  CHECK(error_of<InputError>([&] { RunFolderLock second(run); }) == "<no exception>");

  // A launcher that dies, and a rank of it that lives a little longer.
  int ready[2], last[2];
  REQUIRE(::pipe(ready) == 0);
  REQUIRE(::pipe(last) == 0);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    ::close(last[1]);
    auto* held = new RunFolderLock(run);
    if (::fork() == 0) {
      char byte;
      while (::read(last[0], &byte, 1) > 0) {
      }
      std::_Exit(held == nullptr);
    }
    if (::write(ready[1], "x", 1) != 1) std::_Exit(1);
    ::pause();
  }
  ::close(last[0]);
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK_THAT(error_of<InputError>([&] { RunFolderLock second(run); }),
             Catch::Contains("process " + std::to_string(launcher) + " on "));
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  std::thread rank_ends([&] { ::close(last[1]); });
  CHECK(error_of<InputError>([&] { RunFolderLock next(run); }) == "<no exception>");
  rank_ends.join();
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("run folder: what is missing at the end is named") {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  fs::create_directory(run);
  write_file(run / "run.json", "x");
  CHECK(error_of<RunError>([&] { demand_run_files(run, {"run.json"}); }) == "<no exception>");
  CHECK(error_of<RunError>([&] {
          demand_run_files(run, {"run.json", "plan.json", "x"});
        }) == run.string() + ": has lost plan.json, x while the run wrote into it");
  CHECK(error_of<RunError>([&] { demand_run_files(folder / "gone", {}); }) ==
        (folder / "gone").string() + ": has gone while the run wrote into it: what it wrote is lost");
}
