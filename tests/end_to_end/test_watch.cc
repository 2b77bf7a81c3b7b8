// Runs watched: live.json while they go on, `watch`, `launch --watch`, and what is taken out of them.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include "graph/live_status.h"
#include "graph/summary.h"
#include "tests/end_to_end/commands.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;

namespace fs = std::filesystem;

namespace {

std::string two_stages(const TemporaryFolder& folder) {
  write_document(folder / "plan.json", even_plan(graph_of(kEndlessModel, 8, folder), {1, 1}));
  return (folder / "plan.json").string();
}

Words launch_of(const TemporaryFolder& folder, const Words& more) {
  return Words{program("runtime"), "launch", "--plan", two_stages(folder)} + endless_job(folder) + more;
}

Words watch_of(const TemporaryFolder& folder, const Words& more = {}) {
  return Words{program("runtime"), "watch", (folder / "run").string()} + more;
}

std::optional<LiveStatus> live_in(const TemporaryFolder& folder) {
  const fs::path file = folder / "run" / LiveStatus::kFile;
  return fs::exists(file) ? std::optional(read_document<LiveStatus>(file)) : std::nullopt;
}

// A terminal of 100 columns and 30 lines, and what stands on it: of its escape sequences those that we use.
class PseudoTerminal {
 public:
  PseudoTerminal() : master_(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    REQUIRE(master_ >= 0);
    REQUIRE(grantpt(master_) == 0);
    REQUIRE(unlockpt(master_) == 0);
    name_ = ptsname(master_);
    slave_ = open(name_.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);  // it stays one while nobody writes
    const winsize size{30, 100, 0, 0};
    REQUIRE(ioctl(slave_, TIOCSWINSZ, &size) == 0);
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;
  ~PseudoTerminal() {
    close(slave_);
    close(master_);
  }
  const std::string& name() const { return name_; }

  /// All that was written until now.
  const std::string& written() {
    char bytes[4096];
    for (pollfd ready{master_, POLLIN, 0}; poll(&ready, 1, 0) == 1 && (ready.revents & POLLIN) != 0;) {
      const ssize_t got = read(master_, bytes, sizeof bytes);
      if (got <= 0) break;
      written_.append(bytes, static_cast<size_t>(got));
    }
    return written_;
  }
  /// Everything that has scrolled by, too.
  std::vector<std::string> lines() {
    std::vector<std::string> lines(1);
    size_t row = 0, column = 0;
    const std::string& text = written();
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') {
        if (++row == lines.size()) lines.emplace_back();
        column = 0;
      } else if (text[i] == '\r') {
        column = 0;
      } else if (text[i] == '\033') {
        size_t end = text.find_first_not_of("0123456789", i + 2);
        const std::string number = text.substr(i + 2, end - i - 2);
        if (text[end] == 'A') row -= std::min<size_t>(row, std::stoul(number));
        if (text[end] == 'J') lines.resize(row + 1);
        if (text[end] == 'K' || text[end] == 'J') lines[row].resize(std::min(lines[row].size(), column));
        i = end;
      } else {
        lines[row].resize(std::max(lines[row].size(), column + 1));
        lines[row][column++] = text[i];
      }
    }
    return lines;
  }

 private:
  const int master_;
  int slave_ = -1;
  std::string name_, written_;
};

size_t lines_that_begin(const std::vector<std::string>& lines, const std::string& with) {
  return static_cast<size_t>(
      std::count_if(lines.begin(), lines.end(), [&](const auto& line) { return line.rfind(with, 0) == 0; }));
}

}  // namespace

TEST_CASE("watch: a run that somebody else starts later is followed until it is done") {
  const TemporaryFolder folder;
  Process watch(watch_of(folder), folder / "watch.out", folder / "watch.err");
  REQUIRE(eventually(60s,
                     [&] { return times_in(watch.error(), ", which is not there yet, for at most ") == 1; }));
  const Outcome launched =
      run_command(folder, launch_of(folder, {"--minibatches", "6000", "--evaluation-data",
                                             "synthetic-images:image=8,samples=32"}));
  INFO(launched.error);
  REQUIRE(launched.code == 0);
  INFO(watch.error() << watch.output());
  CHECK(watch.wait(60s) == 0);
  CHECK_THAT(watch.output(), Contains("/run: runs  mlp") && Contains("evaluation loss") &&
                                 Contains("minibatch 6000/6000") && Contains("/run: done"));
  CHECK(watch.output().find('\033') == std::string::npos);
  CHECK_FALSE(live_in(folder));

  const Outcome after = run_command(folder, watch_of(folder));
  CHECK(after.code == 0);
  CHECK_THAT(after.output, Contains("/run: done") && Contains("minibatch 6000/6000"));
}

TEST_CASE(
    "watch: live.json tells of all ranks, and who watches can leave, and hears when a signal ends the run") {
  const TemporaryFolder folder;
  Process launcher(launch_of(folder, {}), folder / "out", folder / "err");
  INFO(launcher.error());
  std::optional<LiveStatus> live;
  REQUIRE(eventually(60s, [&] {
    live = live_in(folder);
    return live && live->ranks.size() == 2 && live->ranks.at(0).minibatch && live->ranks.at(1).minibatch;
  }));
  CHECK(live->minibatches == 100000 * 32);
  CHECK(live->minibatches_per_epoch == 32);
  for (const auto& [number, rank] : live->ranks) CHECK(rank.peak_memory_bytes > 1000);
  // It is renewed.
  CHECK(eventually(60s, [&] {
    const auto next = live_in(folder);
    return next && next->ranks.at(1).minibatch > live->ranks.at(1).minibatch;
  }));
  Process watch(watch_of(folder), folder / "watch.out", folder / "watch.err");
  REQUIRE(eventually(60s, [&] { return times_in(watch.output(), "samples/s") > 0; }));
  watch.signal(SIGINT);
  CHECK(watch.wait(60s) == 130);
  CHECK_THAT(watch.error(),
             Contains("interrupted (SIGINT); the run in ") && Contains("goes on without this"));
  CHECK(launcher.wait(0s) == Process::kRunning);

  Process last(watch_of(folder), folder / "last.out", folder / "last.err");
  REQUIRE(eventually(60s, [&] { return times_in(last.output(), "/run: runs") > 0; }));
  launcher.signal(SIGTERM);
  CHECK(launcher.wait(60s) == 143);
  CHECK(last.wait(60s) == 130);
  CHECK_THAT(last.error(), Contains("the run was interrupted"));
}

TEST_CASE("watch: a run that fails ends it with an error that says why") {
  const TemporaryFolder folder;
  Process launcher(launch_of(folder, {}), folder / "out", folder / "err");
  REQUIRE(eventually(60s, [&] { return live_in(folder).has_value(); }));
  Process watch(watch_of(folder), folder / "watch.out", folder / "watch.err");
  REQUIRE(eventually(60s, [&] { return times_in(watch.output(), "/run: runs") > 0; }));
  ::kill(launcher.children().at(1), SIGKILL);
  CHECK(launcher.wait(60s) == 5);
  INFO(launcher.error());
  CHECK(watch.wait(60s) == 1);
  // Its peer sees a connection that breaks, or hears from the launcher: whichever comes first.
  CHECK_THAT(watch.error(), Contains("the run has failed: ") && Contains("rank 1"));
}

TEST_CASE("watch: words that are none, and a folder in which nothing begins") {
  const TemporaryFolder folder;
  const Outcome none = runtime(folder, {"watch"});
  CHECK(none.code == 2);
  CHECK_THAT(none.error, Contains("watch: no run folder given"));
  const Outcome nothing = run_command(folder, watch_of(folder, {"--start-timeout", "100ms"}));
  CHECK(nothing.code == 2);
  CHECK_THAT(nothing.error, Contains("run, which is not there yet, for at most 100 ms (--start-timeout)\n") &&
                                Contains("no run has begun there within 100 ms") &&
                                Contains("--start-timeout"));
  CHECK_FALSE(fs::exists(folder / "run"));
  write_file(folder / "file", "");
  const Outcome file = runtime(folder, {"watch", (folder / "file").string()});
  CHECK(file.code == 2);
  CHECK_THAT(file.error, Contains("file: is a file, so no run can begin there"));
  const Outcome mistyped = runtime(folder, {"watch", (folder / "ruins" / "run").string()});
  CHECK(mistyped.code == 2);
  CHECK_THAT(mistyped.error, Contains("run: is not there, nor is the folder that it would be in") &&
                                 Contains("mkdir -p " + (folder / "ruins").string()));
}

TEST_CASE("watch: in a terminal launch --watch renews one screen, and prints the results behind it") {
  const TemporaryFolder folder;
  for (const bool colour : {true, false}) {
    PseudoTerminal terminal;
    std::map<std::string, std::string> variables = {
        {"TERM", "xterm"}, {"NO_COLOR", colour ? "" : "1"}, {"COLUMNS", ""}};
    Process launcher(launch_of(folder, {"--watch", "--minibatches", "4000", "--overwrite",
                                        "--evaluation-data", "synthetic-images:image=8,samples=32"}),
                     terminal.name(), terminal.name(), variables);
    REQUIRE(eventually(120s, [&] {
      terminal.written();  // or it would wait for a reader
      return launcher.wait(0s) != Process::kRunning;
    }));
    INFO(terminal.written());
    CHECK(launcher.wait(0s) == 0);
    const std::vector<std::string> lines = terminal.lines();
    CHECK(lines_that_begin(lines, (folder / "run").string() + ": ") == 1);
    CHECK(lines_that_begin(lines, (folder / "run").string() + ": done") == 1);
    CHECK(lines_that_begin(lines, "rank  ") == 1);
    CHECK(lines_that_begin(lines, "4000 minibatches in ") == 1);
    CHECK(lines_that_begin(lines, "run folder: ") == 1);
    CHECK(lines_that_begin(lines, "epoch 1: evaluation loss ") >= 1);  // of rank 0, above the screen
    CHECK(lines_that_begin(lines, "epoch 1  minibatch ") == 0);        // its progress is left out
    CHECK((terminal.written().find("\033[1m") != std::string::npos) == colour);
    CHECK(times_in(terminal.written(), "\033[?") == 0);  // no mode was changed: none is to be restored
  }
}

TEST_CASE("watch: launch --watch without a terminal says the same in lines") {
  const TemporaryFolder folder;
  const Outcome launched = run_command(folder, launch_of(folder, {"--watch", "--minibatches", "64"}));
  INFO(launched.error);
  REQUIRE(launched.code == 0);
  CHECK_THAT(launched.output, Contains("/run: done") && Contains("64 minibatches in "));
  CHECK(launched.output.find('\033') == std::string::npos);
  CHECK_THAT(launched.error, Contains("minibatch 64/64"));  // of rank 0, as without
}

TEST_CASE("report: the numbers of runs as CSV, beside the table") {
  const TemporaryFolder folder;
  REQUIRE(runtime(folder, Words{"train"} + endless_job(folder) + Words{"--minibatches", "24"}).code == 0);
  const std::string file = (folder / "metrics.csv").string();
  const Outcome report = runtime(folder, {"report", "--csv", file, (folder / "run").string()});
  INFO(report.error);
  REQUIRE(report.code == 0);
  CHECK_THAT(report.output, Contains("| run | plan |"));
  const std::vector<std::string> rows = complete_lines(file);
  CHECK(rows.size() == 25);
  CHECK(rows[0] == "minibatch,epoch,loss,samples,elapsed_seconds,learning_rate");
  CHECK_THAT(runtime(folder, {"report", (folder / "run").string(), "--csv"}).error, Contains("csv"));
  CHECK_THAT(runtime(folder, {"report", (folder / "run").string(), "--cvs=a"}).error, Contains("--csv"));
}
