// Whoever is where the job's store should be: a rank waits for --start-timeout, hears signals, and says what
// it found.
#include <catch2/catch.hpp>
#include <list>

#include "tests/end_to_end/commands.h"
#include "tests/support/stranger.h"

using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

Words command(const std::string& name, const TemporaryFolder& folder) {
  if (name == "probe") return {program("runtime"), "probe", "--output", (folder / "topology.json").string()};
  Words words = {program("runtime"), name, "--model",  kEndlessModel,
                 "--batch-size",     "8",  "--output", (folder / name).string()};
  const std::string data = "synthetic-images:image=8,samples=64";
  if (name == "train") words = words + Words{"--data", data, "--minibatches", "4"};
  if (name == "train") return words;
  words = words + Words{"--initial-weights", (folder / "train" / "model.safetensors").string()};
  if (name == "predict") words = words + Words{"--classes", (folder / "classes.jsonl").string()};
  return words + Words{"--evaluation-data", data};
}

// Rank 1 of two, whose store is said to be at HOST:PORT.
std::unique_ptr<Process> rank_of(const std::string& name, const std::string& host, int64_t port,
                                 const std::string& patience, const TemporaryFolder& folder,
                                 std::map<std::string, std::string> variables = {}) {
  variables.insert(
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", host}, {"MASTER_PORT", std::to_string(port)}});
  const std::string file = std::to_string(port) + name + variables.at("RANK");
  return std::make_unique<Process>(command(name, folder) + Words{"--start-timeout", patience},
                                   folder / (file + ".out"), folder / (file + ".err"), variables);
}

}  // namespace

TEST_CASE("whoever answers at the store's address, a rank ends when the start time-out is over") {
  const TemporaryFolder folder;
  struct Case {
    Manners manners;
    std::string words;
  };
  const std::vector<Case> cases = {
      {Manners::kSilent, " is no store of Pipewright: it accepts connections and says nothing"},
      {Manners::kCloses, " is no store of Pipewright: it closes the connection"},
      {Manners::kGarbage, " is no store of Pipewright: it answers 'x"},
      {Manners::kEcho, " is no store of Pipewright: it answers '"},
      {Manners::kAnswersOnce, " has not answered for 2.0 s"},
      {Manners::kDrops, " for 2 s: Connection timed out"}};
  std::list<Stranger> strangers;
  std::vector<std::unique_ptr<Process>> ranks;
  for (const Case& a : cases) {
    strangers.emplace_back(a.manners);
    ranks.push_back(rank_of("train", "127.0.0.1", strangers.back().port(), "2s", folder));
  }
  auto stranger = strangers.begin();
  for (size_t i = 0; i < cases.size(); ++i, ++stranger) {
    const int code = ranks[i]->wait(60s);
    CAPTURE(ranks[i]->error());
    CHECK(code == 5);
    CHECK_THAT(ranks[i]->error(), Catch::Contains("rank 1 of 2: ") && Catch::Contains("--start-timeout") &&
                                      Catch::Contains(stranger->address() + cases[i].words));
  }
}

TEST_CASE("a name that is not known, or whose name server does not answer, is waited for no longer either") {
  const TemporaryFolder folder;
  const auto unknown = rank_of("train", "no-such-host.invalid", 29501, "2s", folder);
  const auto silent =
      rank_of("train", "silent.invalid", 29502, "2s", folder,
              {{"LD_PRELOAD", PIPEWRIGHT_TEST_DEAD_SERVER}, {"PIPEWRIGHT_TEST_DEAD_NAME", "silent.invalid"}});
  CHECK(unknown->wait(60s) == 5);
  CHECK_THAT(unknown->error(), Catch::Contains("no-such-host.invalid"));
  CHECK(silent->wait(60s) == 5);
  CHECK_THAT(silent->error(), Catch::Contains("silent.invalid:29502 has not answered for 2.0 s"));
}

TEST_CASE("each command that joins a store gives up in time, and ends at the first signal") {
  const TemporaryFolder folder;
  REQUIRE(run_command(folder, command("train", folder)).code == 0);
  const Stranger stranger(Manners::kSilent);
  const std::vector<std::string> names = {"train", "evaluate", "predict", "probe"};
  std::vector<std::unique_ptr<Process>> patient;
  for (const std::string& name : names) {
    const auto rank = rank_of(name, "127.0.0.1", stranger.port(), "1s", folder);
    CHECK(rank->wait(60s) == 5);
    CAPTURE(name, rank->error());
    CHECK_THAT(rank->error(), Catch::Contains(stranger.address() + " is no store of Pipewright"));
    patient.push_back(rank_of(name, "127.0.0.1", stranger.port(), "10min", folder));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    CAPTURE(names[i]);
    CHECK(eventually(60s, [&] { return times_in(patient[i]->error(), "waiting for rank 0 at ") > 0; }));
    CHECK(patient[i]->wait(0ms) == Process::kRunning);
    patient[i]->signal(i % 2 == 0 ? SIGTERM : SIGINT);
    CHECK(patient[i]->wait(60s) == (i % 2 == 0 ? 143 : 130));
  }
}

TEST_CASE("a rank that waits tells what it finds, and joins the store that comes after all") {
  const TemporaryFolder folder;
  auto stranger = std::make_unique<Stranger>(Manners::kGarbage);
  const int64_t port = stranger->port();
  const auto rank = rank_of("train", "127.0.0.1", port, "5min", folder);
  CHECK(eventually(60s, [&] { return times_in(rank->error(), "; it answers 'x") > 0; }));
  stranger.reset();
  const auto first = rank_of("train", "127.0.0.1", port, "5min", folder, {{"RANK", "0"}});
  CHECK(first->wait(60s) == 0);
  CAPTURE(first->error(), rank->error());
  CHECK(rank->wait(60s) == 0);
}
