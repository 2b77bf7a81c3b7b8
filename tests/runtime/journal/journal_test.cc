#include "runtime/journal/journal.h"

#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>

#include "graph/document.h"
#include "graph/error.h"
#include "runtime/journal/message_thread.h"
#include "tests/support/process.h"
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
EvaluatedMinibatch mean_of_samples(int64_t minibatch, double loss, int64_t correct, int64_t scored,
                                   int64_t samples, int64_t among_five = -1) {
  const auto count = static_cast<double>(samples);
  return {minibatch, loss, correct, scored, samples, among_five, {{loss, count, {count}}}};
}
std::vector<std::string> history_of(const std::filesystem::path& file, int64_t next_minibatch,
                                    int64_t evaluated_epochs) {
  std::vector<std::string> lines;
  const MetricsHistory history(file, next_minibatch, evaluated_epochs);
  history.read([&](const MetricsLine& line) { lines.push_back(line.text); });
  CHECK((history.whole() || lines.empty()));
  return lines;
}

// While it lives no file of this process may grow beyond `bytes`.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit little{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &little);
  }
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};
}  // namespace

TEST_CASE("journal: a minibatch whose parts several replicas tell of is one line, the sum in order") {
  const TemporaryFolder folder;
  Journal journal(settings_in(folder));
  journal.take(2, MinibatchLoss{0, 0.5, 1.5, {0.1, {}}, {1, 2}});
  journal.take(2, MinibatchLoss{1, 0.25, 2, {0.1, {}}, {1, 2}});
  CHECK(lines_of(folder).empty());
  journal.take(1, MinibatchLoss{0, 0.125, 1, {0.1, {}}, {0, 2}});
  REQUIRE(lines_of(folder).size() == 1);
  const Json first = lines_of(folder)[0];
  CHECK(first["minibatch"] == 0);
  CHECK(first["loss"] == 0.625);
  CHECK(first["elapsed_seconds"] == 1.5);
  CHECK_FALSE(first.contains("part"));
  journal.take(1, MinibatchLoss{1, std::nan(""), 1, {0.1, {}}, {0, 2}});
  REQUIRE(lines_of(folder).size() == 2);
  CHECK(lines_of(folder)[1]["loss"].is_null());
  journal.close();
}

TEST_CASE("journal: minibatches are written in order whatever order they come in, losses keep all digits") {
  const TemporaryFolder folder;
  Journal journal(settings_in(folder));
  for (const int64_t k : {1, 0, 3, 2, 7, 6, 5, 4})
    journal.take(0, MinibatchLoss{k, 1.0 / (3 + k), 0.25 * (k + 1)});
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
  for (int64_t k = 0; k < 8; ++k) journal.take(0, MinibatchLoss{k, 1, static_cast<double>(k / 2 + 1)});
  journal.close();
  CHECK(journal.summary().minibatch_seconds == Approx(0.5));
}

TEST_CASE("journal: the steady state is never slower than what was trained overall, one minibatch has none") {
  std::mt19937_64 random(17);
  const auto number = [&](double most) { return std::uniform_real_distribution<double>(0, most)(random); };
  for (int round = 0; round < 500; ++round) {
    const TemporaryFolder folder;
    JournalSettings settings = settings_in(folder);
    settings.period_minibatches = 1 + static_cast<int64_t>(random() % 5);
    settings.minibatches_per_epoch = 1 + static_cast<int64_t>(random() % 9);
    Journal journal(settings);
    const int64_t minibatches = 1 + static_cast<int64_t>(random() % 40);
    double now = 0;
    // Two long gaps for a short one, as of schedules whose minibatches come in bursts.
    for (int64_t k = 0; k < minibatches; ++k) {
      now += k % 3 == 2 ? number(0.001) : number(2);
      journal.take(0, MinibatchLoss{k, 1, now});
    }
    journal.close();
    CAPTURE(round, settings.period_minibatches, settings.minibatches_per_epoch, minibatches);
    const double steady = journal.summary().minibatch_seconds;
    CHECK(steady * static_cast<double>(minibatches) <= now * 1.000001);
    CHECK((steady > 0) == (minibatches > 1));
  }
}

TEST_CASE("journal: bursts are measured by windows that do not overlap, epochs of one round by the mean") {
  const auto steady = [](int64_t epoch, const std::vector<double>& gaps) {
    const TemporaryFolder folder;
    JournalSettings settings = settings_in(folder);
    settings.period_minibatches = 4;
    settings.minibatches_per_epoch = epoch;
    Journal journal(settings);
    double now = 0;
    for (int64_t k = 0; k < 64; ++k)
      journal.take(0, MinibatchLoss{k, 1, now += gaps[static_cast<size_t>(k) % gaps.size()]});
    journal.close();
    return journal.summary().minibatch_seconds;
  };
  // Rounds of four, filling and draining between them.
  CHECK(steady(64, {0.07, 0.01, 0.01, 0.01}) == Approx(0.025));
  CHECK(steady(4, {0.07, 0.01, 0.01, 0.01}) == Approx(0.025));
  // One round of three is slow. Of windows that overlap most see a part of it.
  CHECK(steady(64, {0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.1, 0.01, 0.01, 0.1}) == Approx(0.01));
}

TEST_CASE("journal: of a run that goes on only its own minibatches are its steady state") {
  const TemporaryFolder folder;
  JournalSettings settings = settings_in(folder);
  settings.period_minibatches = 1;
  settings.minibatches_per_epoch = 32;
  settings.total_minibatches = 32;
  {
    Journal journal(settings);
    for (int64_t k = 0; k < 16; ++k) journal.take(0, MinibatchLoss{k, 1, static_cast<double>(k + 1)});
    journal.close();
    CHECK(journal.summary().minibatch_seconds == Approx(1));
  }
  settings.past = folder / "metrics.jsonl";
  settings.next_minibatch = 16;
  Journal journal(settings);
  for (int64_t k = 16; k < 24; ++k) journal.take(0, MinibatchLoss{k, 1, 0.25 * static_cast<double>(k - 15)});
  journal.close();
  CHECK(journal.summary().minibatch_seconds == Approx(0.25));
}

TEST_CASE("journal: each plan has a time of its own, and one of its last minibatches") {
  const TemporaryFolder folder;
  JournalSettings settings = settings_in(folder);
  settings.period_minibatches = 1;
  settings.minibatches_per_epoch = 200;
  Journal journal(settings);
  GenerationSummary plan;
  plan.plan = "generation-0.plan.json";
  plan.reason = "start";
  journal.take(0, plan);
  double now = 0;
  const auto train = [&](int64_t from, int64_t end, double seconds) {
    for (int64_t k = from; k < end; ++k) journal.take(0, MinibatchLoss{k, 1, now += seconds});
  };
  train(0, 60, 0.125);
  train(60, 80, 0.5);  // a rank has become slow
  plan.number = 1;
  plan.first_minibatch = 80;
  plan.reason = "slow";
  plan.predicted_minibatch_seconds = 0.2;
  journal.take(0, plan);
  train(80, 120, 0.25);
  journal.close();
  const std::vector<GenerationSummary> told = journal.summary().generations;
  REQUIRE(told.size() == 2);
  CHECK(told[0].minibatches == 80);
  CHECK(told[0].minibatch_seconds == Approx(0.125));
  CHECK(told[0].last_minibatch_seconds == Approx(0.5));
  CHECK(told[1].minibatches == 40);
  CHECK(told[1].minibatch_seconds == Approx(0.25));
  CHECK(told[1].predicted_minibatch_seconds == 0.2);
  CHECK(journal.summary().minibatch_seconds == Approx(0.25));
}

TEST_CASE("journal: evaluations stand in the order in which they were begun, whoever says his part last") {
  const TemporaryFolder folder;
  Journal journal(settings_in(folder));
  const auto part = [&](int64_t epoch, int64_t minibatch) {
    journal.take(
        0, EvaluationPart{epoch, 0, mean_of_samples(minibatch, 1.0 + static_cast<double>(epoch), 1, 5, 5)});
  };
  journal.take(0, EvaluationBegins{0});
  part(0, 0);
  part(0, 1);
  journal.take(0, EvaluationBegins{1});
  for (int64_t k = 0; k < 3; ++k) part(1, k);  // by a rank that is ahead
  CHECK(lines_of(folder).empty());
  part(0, 2);
  const auto lines = lines_of(folder);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["evaluation"]["epoch"] == 0);
  CHECK(lines[1]["evaluation"]["epoch"] == 1);
  CHECK(journal.summary().evaluation->loss == 2);
  journal.close();
}

TEST_CASE(
    "journal: a plan is told of when all minibatches before its first one are, and the rate is its own") {
  const TemporaryFolder folder;
  Journal journal(settings_in(folder));
  GenerationSummary generation;
  generation.number = 1;
  generation.first_minibatch = 4;
  generation.plan = "generation-1.plan.json";
  generation.reason = "manual";
  const auto minibatch = [&](int64_t k, double seconds) { journal.take(0, MinibatchLoss{k, 1, seconds}); };
  for (int64_t k = 0; k < 3; ++k) minibatch(k, static_cast<double>(k));
  journal.take(0, generation);
  CHECK(lines_of(folder).size() == 3);
  minibatch(3, 3);
  REQUIRE(lines_of(folder).size() == 5);
  CHECK(lines_of(folder)[4]["generation"]["first_minibatch"] == 4);
  for (int64_t k = 4; k < 8; ++k) minibatch(k, 3 + 0.25 * static_cast<double>(k - 3));
  journal.close();
  CHECK(journal.summary().generations.size() == 1);
  CHECK(journal.summary().minibatch_seconds == Approx(0.25));
  const GenerationSummary told = journal.summary().generations[0];
  CHECK(told.minibatches == 4);
  CHECK(told.minibatch_seconds == Approx(0.25));
}

TEST_CASE("journal: an evaluation is summed when its last minibatch has come, short one included") {
  const TemporaryFolder folder;
  Journal journal(settings_in(folder));
  journal.take(0, EvaluationPart{0, 0, mean_of_samples(2, 4.0, 1, 5, 5, 3)});
  journal.take(0, EvaluationPart{0, 0, mean_of_samples(0, 1.0, 7, 10, 10, 9)});
  CHECK(lines_of(folder).empty());
  journal.take(0, EvaluationPart{0, 0, mean_of_samples(1, 2.0, 2, 10, 10, 8)});
  const auto lines = lines_of(folder);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["evaluation"]["top5"].get<double>() == Approx(20 / 25.0));
  CHECK(journal.summary().evaluation->top5 == Approx(20 / 25.0));
  CHECK(lines[0]["evaluation"]["samples"] == 25);
  CHECK(lines[0]["evaluation"]["loss"].get<double>() == Approx((10 + 20 + 20) / 25.0));
  CHECK(lines[0]["evaluation"]["top1"].get<double>() == Approx(10 / 25.0));
  journal.close();
  CHECK(journal.summary().evaluation->samples == 25);
}

TEST_CASE(
    "journal: of several answers to a question the one of the best score counts, whoever says it first") {
  const TemporaryFolder folder;
  Journal journal(settings_in(folder));
  const auto evaluated = [](int64_t k, std::vector<JudgedAnswer> answers) {
    EvaluatedMinibatch minibatch = mean_of_samples(k, 1.0, 0, 0, static_cast<int64_t>(answers.size()));
    minibatch.answers = std::move(answers);
    return EvaluationPart{0, 0, minibatch};
  };
  // Question 0: 0.5 of minibatch 1; question 1: the first of two that are equal; question 2: the model made
  // no number.
  journal.take(0, evaluated(2, {{2, std::nan(""), 0, 0}, {0, 2.5, 0, 0.5}}));
  journal.take(0, evaluated(0, {{0, 1.5, 1, 1}}));
  journal.take(0, evaluated(1, {{1, -3, 1, 1}, {1, -3, 0, 0.25}, {0, -7, 1, 1}}));
  const auto lines = lines_of(folder);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["evaluation"]["exact_match"].get<double>() == Approx(1 / 3.0));
  CHECK(lines[0]["evaluation"]["f1"].get<double>() == Approx(0.5));
  CHECK(lines[0]["evaluation"]["samples"] == 6);
  EvaluationResult result;
  CHECK(result.answers_text().empty());
  result.exact_match = 0.8;
  result.f1 = 0.885;
  CHECK(result.answers_text() == ", exact match 80.00 %, F1 88.50 %");
}

TEST_CASE("journal: a full disk is an error that says so, not silence") {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "metrics.jsonl");
  Journal journal(settings_in(folder));
  CHECK_THROWS_WITH(journal.take(0, MinibatchLoss{0, 1, 1}), Catch::Contains("No space left on device"));
}

TEST_CASE("journal: where no more fits the last line is whole, whatever the room, and the reason is said") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    const TemporaryFolder folder;
    Journal journal(settings_in(folder));
    const auto room = static_cast<rlim_t>(1 + random() % 2000);
    std::string error;
    int64_t k = 0;
    {
      const SmallFiles small(room);
      try {
        for (;; ++k) {
          journal.take(0, MinibatchLoss{k, 1.0 / static_cast<double>(3 + random() % 100), 0.1 * k});
          if (k == 7)
            for (int64_t i = 0; i < 3; ++i)
              journal.take(0, EvaluationPart{0, 0, mean_of_samples(i, 0.5, 1, 2, 10)});
        }
      } catch (const RunError& full) {
        error = full.what();
      }
    }
    CAPTURE(round, room, k, error);
    CHECK_THAT(error, Catch::Contains("metrics.jsonl: cannot be written: File too large"));
    const std::string text = read_file(folder / "metrics.jsonl");
    CHECK((text.empty() || text.back() == '\n'));
    CHECK(text.size() <= room);
    CHECK(static_cast<int64_t>(lines_of(folder).size()) >= k);
    // With room again the run could go on from here.
    CHECK(history_of(folder / "metrics.jsonl", k, 0).size() == static_cast<size_t>(k));
  }
}

TEST_CASE(
    "journal: a file that was removed, replaced or moved with its folder is missed, one in its place is "
    "not") {
  const TemporaryFolder folder;
  const auto in_place = [&](const std::function<void(const std::filesystem::path&)>& change) {
    JournalSettings settings = settings_in(folder);
    settings.folder = folder / "run";
    std::filesystem::remove_all(settings.folder);
    std::filesystem::create_directory(settings.folder);
    Journal journal(settings);
    journal.take(0, MinibatchLoss{0, 1, 1});
    change(settings.folder);
    try {
      journal.close();
      return std::string();
    } catch (const RunError& lost) {
      return std::string(lost.what());
    }
  };
  namespace fs = std::filesystem;
  CHECK(in_place([](const fs::path&) {}) == "");
  CHECK_THAT(in_place([](const fs::path& run) { fs::remove(run / "metrics.jsonl"); }),
             Catch::Contains("has gone while the run wrote into it: the losses of this run are lost"));
  CHECK_THAT(in_place([](const fs::path& run) { fs::remove_all(run); }),
             Catch::Contains("and its folder with it"));
  CHECK_THAT(in_place([](const fs::path& run) { write_file(run / "metrics.jsonl", "{}\n"); }),
             Catch::Contains("another file has taken its place"));
  CHECK(in_place([&](const fs::path& run) {  // moved, and a link in its place
          fs::remove_all(folder / "moved");
          fs::rename(run, folder / "moved");
          fs::create_directory_symlink(folder / "moved", run);
        }) == "");
}

TEST_CASE("journal: memory does not grow with the minibatches, nor with the lines of a past") {
  const TemporaryFolder folder;
  JournalSettings settings = settings_in(folder);
  settings.minibatches_per_epoch = 1000;
  settings.total_minibatches = 1 << 30;
  const auto in_use = [] { return static_cast<int64_t>(::mallinfo2().uordblks); };
  const auto past = static_cast<int64_t>(Journal::kRemembered) + 5000;
  int64_t of_journal = 0;
  {
    const int64_t before = in_use();
    Journal journal(settings);
    for (int64_t k = 0; k < past; ++k) journal.take(0, MinibatchLoss{k, 1, static_cast<double>(k)});
    of_journal = in_use() - before;
    const int64_t begun = in_use();
    for (int64_t k = past; k < 2 * past; ++k) journal.take(0, MinibatchLoss{k, 1, static_cast<double>(k)});
    CHECK(in_use() - begun < 16'000);
    CHECK(journal.summary().minibatch_seconds == 1);
    CHECK(journal.summary().train_loss == 1);
  }
  settings.past = folder / "metrics.jsonl";
  settings.next_minibatch = 2 * past;
  const int64_t before = in_use();
  Journal journal(settings);
  CHECK(in_use() - before < of_journal + 16'000);
  CHECK(lines_of(folder).size() == static_cast<size_t>(2 * past));
}

TEST_CASE("journal: a run that goes on keeps every line of its past, however far off an evaluation stands") {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    const TemporaryFolder folder;
    const int64_t epoch = 2 + static_cast<int64_t>(random() % 6);
    const int64_t minibatches = 5 * epoch;
    std::vector<std::string> lines;
    for (int64_t k = 0; k < minibatches; ++k)
      lines.push_back(Json{{"minibatch", k}, {"loss", 1}, {"elapsed_seconds", k}}.dump());
    std::vector<size_t> at;  // in front of which line each epoch's evaluation stands
    for (int64_t e = 0; e < 5; ++e)
      at.push_back(std::min<size_t>(lines.size(), static_cast<size_t>((e + 1) * epoch) + random() % 6));
    std::sort(at.begin(), at.end());
    for (size_t e = 5; e-- > 0;) {
      const Json evaluation{{"epoch", e}, {"loss", 1}, {"top1", 1}, {"samples", 1}};
      lines.insert(lines.begin() + static_cast<ptrdiff_t>(at[e]), Json{{"evaluation", evaluation}}.dump());
    }
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    write_file(folder / "metrics.jsonl", text + R"({"minibatch":)");
    const int64_t next = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(minibatches));
    const int64_t evaluated = next / epoch;
    const auto history = history_of(folder / "metrics.jsonl", next, evaluated);
    CAPTURE(round, epoch, next, at);
    CHECK(static_cast<int64_t>(history.size()) == next + evaluated);
    std::vector<std::string> expected;
    for (const std::string& line : lines) {
      const Json json = parse_json(line, "line");
      if (json.contains("evaluation") ? json["evaluation"]["epoch"] < evaluated : json["minibatch"] < next)
        expected.push_back(line);
    }
    CHECK(history == expected);
  }
}

TEST_CASE("journal: a rank that speaks twice stands in the summary once") {
  const TemporaryFolder folder;
  Journal journal(settings_in(folder));
  RankSummary rank;
  rank.host = "node";
  for (const int64_t number : {1, 0, 1, 0}) {
    rank.rank = number;
    ++rank.updates;
    journal.take(number, rank);
  }
  const Summary summary = journal.summary();
  REQUIRE(summary.ranks.size() == 2);
  CHECK(summary.ranks[0].updates == 4);
  CHECK(summary.ranks[1].updates == 3);
}

TEST_CASE("message thread: messages are taken in order, nobody who puts one waits, and an error comes back") {
  std::mutex gate;
  std::vector<std::string> taken;
  {
    gate.lock();
    MessageThread messages([&](int64_t, const RankMessage& message) {
      const std::lock_guard wait(gate);
      taken.push_back(std::get<TraceDocument>(message).text);
    });
    std::vector<std::string> put;
    for (int i = 0; i < 1000; ++i) {
      put.push_back(std::to_string(i));
      messages.put(0, TraceDocument{put.back()});  // returns, although none can be taken
    }
    gate.unlock();
    messages.finish();
    CHECK(taken == put);
  }
  MessageThread failing([&](int64_t, const RankMessage& message) {
    if (std::get<TraceDocument>(message).text == "2") throw RunError("the disk is full");
  });
  const auto error_of = [](const auto& call) {
    try {
      call();
    } catch (const RunError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const char* text : {"1", "2", "3"}) error_of([&] { failing.put(0, TraceDocument{text}); });
  CHECK(pipewright::testing::eventually(std::chrono::seconds(60),
                                        [&] { return !error_of([&] { failing.check(); }).empty(); }));
  CHECK(error_of([&] { failing.put(0, TraceDocument{"4"}); }) == "the disk is full");
  CHECK(error_of([&] { failing.finish(); }) == "the disk is full");
  CHECK(error_of([&] { failing.finish(); }) == "the disk is full");
}

TEST_CASE("journal: its own past is cut where lines are left out at its end, and copied where between") {
  const TemporaryFolder folder;
  {
    Journal journal(settings_in(folder));
    for (int64_t k = 0; k < 11; ++k) {
      journal.take(0, MinibatchLoss{k, 1.0 / (3 + k), 0.25 * (k + 1)});
      for (int64_t i = 0; k == 9 && i < 3; ++i)
        journal.take(0, EvaluationPart{0, 0, mean_of_samples(i, 0.5, 1, 2, 10)});
    }
  }
  const auto file = folder / "metrics.jsonl";
  const std::string before = read_file(file);
  const bool torn = GENERATE(false, true);
  if (torn) write_file(file, before + R"({"minibatch":11,"epo)");
  std::filesystem::create_hard_link(file, folder / "same");
  JournalSettings settings = settings_in(folder);
  settings.past = file;
  settings.past_is_ours = true;
  settings.evaluated_epochs = 1;
  const auto go_on_from = [&](int64_t minibatch) {
    settings.next_minibatch = minibatch;
    settings.recovery = RecoverySummary{1, minibatch, 0, "lost", "memory", 1, 0};
    Journal journal(settings);
    journal.take(0, MinibatchLoss{minibatch, 0.5, 1});
    CHECK(journal.summary().recoveries.at(0).again_minibatches == 11 - minibatch);
    return read_file(file);
  };
  SECTION("between: the evaluation stands behind the line of minibatch 9, which is left out") {
    CHECK_FALSE(MetricsHistory(file, 9, 1).bytes_kept());
    const std::string after = go_on_from(9);
    CHECK_FALSE(std::filesystem::equivalent(file, folder / "same"));
    CHECK(after.find("evaluation") == after.rfind("evaluation"));
    CHECK(after.find("{\"minibatch\":9,") > after.find("evaluation"));
  }
  SECTION("at the end") {
    const auto kept = before.find("{\"minibatch\":10,");
    CHECK(MetricsHistory(file, 10, 1).bytes_kept() == kept);
    const std::string after = go_on_from(10);
    CHECK(std::filesystem::equivalent(file, folder / "same"));
    CHECK(after.substr(0, kept) == before.substr(0, kept));
    CHECK(after.compare(kept, 12, "{\"recovery\":") == 0);
    CHECK(lines_of(folder).size() == 13);
  }
  SECTION("nothing is left out") {
    const std::string after = go_on_from(11);
    CHECK(std::filesystem::equivalent(file, folder / "same"));
    CHECK(after.substr(0, before.size()) == before);
    CHECK(lines_of(folder).size() == 14);
  }
}

TEST_CASE("journal: a kill while its own past is cut leaves it as it was, or as it is then") {
  const TemporaryFolder folder;
  const auto file = folder / "metrics.jsonl";
  {
    Journal journal(settings_in(folder));
    for (int64_t k = 0; k < 20000; ++k) journal.take(0, MinibatchLoss{k, 1.0 / (3 + k), 1});
  }
  const std::string before = read_file(file);
  const std::string cut = before.substr(0, before.find("{\"minibatch\":19000,"));
  std::mt19937_64 random(3);
  for (int i = 0; i < 20; ++i) {
    write_file(file, before);
    const pid_t child = ::fork();
    if (child == 0) {
      JournalSettings settings = settings_in(folder);
      settings.past = file;
      settings.past_is_ours = true;
      settings.next_minibatch = 19000;
      { Journal journal(settings); }
      ::_exit(0);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const std::string after = read_file(file);
    CHECK((after == before || after == cut));
  }
}

TEST_CASE("journal: a loss that is not a number is written as null") {
  const TemporaryFolder folder;
  Journal journal(settings_in(folder));
  journal.take(0, MinibatchLoss{0, std::nan(""), 1});
  CHECK(lines_of(folder).at(0)["loss"].is_null());
  journal.close();
}

TEST_CASE("journal: a run that goes on keeps its past up to the checkpoint, without a torn line or a gap") {
  const TemporaryFolder folder;
  {
    Journal journal(settings_in(folder));
    for (int64_t k = 0; k < 11; ++k) {
      journal.take(0, MinibatchLoss{k, 1.0 / (3 + k), 0.25 * (k + 1)});
      for (int64_t i = 0; k == 9 && i < 3; ++i)
        journal.take(0, EvaluationPart{0, 0, mean_of_samples(i, 0.5, 1, 2, 10)});
    }
  }
  const auto file = folder / "metrics.jsonl";
  const auto before = lines_of(folder);
  write_file(file, read_file(file) + R"({"minibatch":11,"epo)");
  CHECK(history_of(file, 12, 1).empty());  // minibatch 11 is torn
  CHECK(history_of(file, 9, 0).size() == 9);
  REQUIRE(history_of(file, 9, 1).size() == 10);  // the evaluation stands behind minibatch 9's line
  CHECK(history_of(folder / "absent", 9, 1).empty());

  JournalSettings settings = settings_in(folder);
  settings.next_minibatch = 9;
  settings.past = file;
  settings.evaluated_epochs = 1;
  Journal journal(settings);
  for (int64_t k = 9; k < 16; ++k) journal.take(0, MinibatchLoss{k, 1.0 / (3 + k), 0.25 * (k - 8)});
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
