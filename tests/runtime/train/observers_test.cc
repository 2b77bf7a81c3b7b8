// What watches a rank train: told of the actions of random pipelines, at times that no clock has shown.
#include "runtime/train/observers.h"

#include <catch2/catch.hpp>
#include <ctime>
#include <random>
#include <set>

#include "graph/document.h"
#include "graph/speed_trace.h"
#include "tests/runtime/random_pipelines.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

using Clock = ActionObserver::Clock;

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// All that a rank of some pipeline does in a span.
struct WatchedRank {
  int64_t first_stage = 0;
  std::vector<int64_t> minibatches;  // of its first stage
  bool updates_each = false;         // every minibatch is a round of its own, and its replica's
  Span span;
  std::vector<Action> actions;
};

WatchedRank watched_rank(uint64_t seed) {
  RandomJobs jobs(seed);
  const RandomJob job = jobs.next(6);
  const PipelineShape shape = shape_of(job.plan, job.rules.gradient_accumulation);
  const auto places = placements(shape);
  const Placement place =
      places[static_cast<size_t>(jobs.between(0, static_cast<int64_t>(places.size()) - 1))];
  WatchedRank rank;
  rank.first_stage = place.stage;
  rank.span = job.spans[0];
  const StageTurns turns(shape, place.stage);
  rank.minibatches = turns.minibatches_of(place.replica, rank.span);
  rank.updates_each = turns.round_length() == 1 && turns.replicas() == 1;
  rank.actions = schedule_of_rank(job.plan.schedule, shape, place.stage, place.replica, rank.span);
  return rank;
}

// One action after the other, each of so many seconds.
void pass(const std::vector<ActionObserver*>& observers, const Action& action, Clock::time_point begin,
          double seconds) {
  for (ActionObserver* observer : observers) observer->before(action);
  for (ActionObserver* observer : observers) observer->after(action, begin, begin + duration_of(seconds));
}

// Waits for the clock, not for a while: it has gone on by so much when this returns.
void spin(double seconds) {
  const auto end = Clock::now() + duration_of(seconds);
  while (Clock::now() < end) continue;
}

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void burn_cpu(double seconds) {
  const double end = thread_cpu_seconds() + seconds;
  while (thread_cpu_seconds() < end) continue;
}

bool is_compute(ActionKind kind) {
  const std::string code = to_text(kind);
  return code == "F" || code == "B" || code == "BI" || code == "BW" || code == "U";
}

const std::vector<ActionKind>& all_kinds() {
  static const std::vector<ActionKind> kinds = {ActionKind::kReceiveActivation,
                                                ActionKind::kForward,
                                                ActionKind::kSendActivation,
                                                ActionKind::kReceiveGradient,
                                                ActionKind::kBackward,
                                                ActionKind::kBackwardInput,
                                                ActionKind::kBackwardWeight,
                                                ActionKind::kSendGradient,
                                                ActionKind::kReduce,
                                                ActionKind::kUpdate,
                                                ActionKind::kAverage};
  return kinds;
}

}  // namespace

TEST_CASE("observers: whatever the pipeline, each minibatch is asked for and counted once, in order") {
  size_t several_stages = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const WatchedRank rank = watched_rank(seed);
    std::vector<int64_t> asked;
    size_t between = 0, forwards_asked_late = 0;
    MeasuredTimes measured;
    std::set<int64_t> begun;
    BetweenActions works([&] { ++between; });
    BeforeForwards asks(rank.first_stage, [&](int64_t minibatch) {
      asked.push_back(minibatch);
      forwards_asked_late += begun.count(minibatch);
    });
    TimesObserver times(rank.first_stage, measured);
    for (const Action& action : rank.actions) {
      pass({&works, &asks, &times}, action, Clock::now(), 0.1);
      if (action.kind == ActionKind::kForward) begun.insert(action.index);
    }
    CHECK(asked == rank.minibatches);
    CHECK(forwards_asked_late == 0);
    CHECK(measured.minibatches == static_cast<int64_t>(rank.minibatches.size()));
    CHECK(between == rank.actions.size());
    several_stages += !rank.actions.empty() && rank.actions[0].stage != Action::kOnlyStage;
  }
  CHECK(several_stages > 10);  // they run a forward for each of their stages
}

TEST_CASE("observers: CPU time is that of computing, without what waits for samples take") {
  constexpr double kBurnt = 2e-3;
  for (const ActionKind kind : all_kinds()) {
    CAPTURE(to_text(kind));
    MeasuredTimes measured;
    TimesObserver times(0, measured);
    const double began = thread_cpu_seconds();
    times.before({kind, 0});
    burn_cpu(kBurnt);
    if (kind == ActionKind::kForward) times.wait_for_samples([] { burn_cpu(10 * kBurnt); });
    times.after({kind, 0}, Clock::now(), Clock::now());
    const double used = thread_cpu_seconds() - began;
    if (!is_compute(kind)) {
      CHECK(measured.cpu_seconds == 0);
      continue;
    }
    CHECK(measured.cpu_seconds >= kBurnt);
    CHECK(measured.cpu_seconds <= used - (kind == ActionKind::kForward ? 10 * kBurnt : 0) + 1e-9);
  }
}

TEST_CASE("observers: waits for samples add up, and are those of the action under way") {
  MeasuredTimes measured;
  TimesObserver times(0, measured);
  double all = 0;
  for (int64_t k = 0; k < 20; ++k) {
    times.before({ActionKind::kForward, k});
    CHECK(times.waited_seconds() == 0);
    for (int64_t i = 0; i < k % 3; ++i) times.wait_for_samples([] { spin(1e-4); });
    CHECK(times.waited_seconds() >= 1e-4 * static_cast<double>(k % 3));
    CHECK((times.waited_seconds() > 0) == (k % 3 > 0));
    times.after({ActionKind::kForward, k}, Clock::now(), Clock::now());
    all += times.waited_seconds();
  }
  CHECK(measured.load_wait_seconds == Approx(all).epsilon(1e-12));
}

TEST_CASE("observers: the split of an epoch is what its actions took, each in its place, sends in none") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    MeasuredTimes measured;
    EpochTimes split;
    TimesObserver times(0, measured);
    SplitObserver splits(times, split);
    std::map<std::string, double> took;
    double waited = 0;
    for (int i = 0; i < 60; ++i) {
      const ActionKind kind = all_kinds()[random() % all_kinds().size()];
      const double seconds = 1e-3 * static_cast<double>(1 + random() % 5000);
      const Action action{kind, i};
      const auto begin = Clock::time_point() + std::chrono::seconds(i);
      const auto end = begin + duration_of(seconds);
      times.before(action);
      if (kind == ActionKind::kForward && random() % 4 == 0) times.wait_for_samples([] { spin(1e-5); });
      times.after(action, begin, end);
      splits.after(action, begin, end);
      took[to_text(kind)] += std::chrono::duration<double>(end - begin).count();
      waited += times.waited_seconds();
    }
    CHECK(split.load_seconds == Approx(waited));
    CHECK(split.forward_seconds == Approx(took["F"] - waited));
    CHECK(split.backward_seconds == Approx(took["B"] + took["BI"] + took["BW"]));
    CHECK(split.update_seconds == Approx(took["U"]));
    CHECK(split.reduce_seconds == Approx(took["AR"] + took["AW"]));
    CHECK(split.receive_seconds == Approx(took["RA"] + took["RG"]));
    CHECK(split.change_seconds == 0);
    CHECK(split.cache_seconds == 0);
  }
}

TEST_CASE("observers: a forward that took no longer than its wait for samples computed for no time") {
  MeasuredTimes measured;
  EpochTimes split;
  TimesObserver times(0, measured);
  SplitObserver splits(times, split);
  times.before({ActionKind::kForward, 0});
  times.wait_for_samples([] { spin(1e-4); });
  const auto begin = Clock::now();
  splits.after({ActionKind::kForward, 0}, begin, begin);
  CHECK(split.forward_seconds == 0);
  CHECK(split.load_seconds == times.waited_seconds());
}

TEST_CASE("observers: a rank is slow by what it computes, however long it waits for samples and messages") {
  RankMonitor monitor;
  MeasuredTimes measured;
  std::vector<SpeedChange> told;
  TimesObserver times(0, measured);
  SpeedObserver speed(monitor, times, [&](const SpeedChange& change) { told.push_back(change); });
  int64_t k = 0;
  const auto train = [&](int64_t minibatches, double compute_seconds, double message_seconds) {
    for (const int64_t end = k + minibatches; k < end; ++k) {
      for (const ActionKind kind : {ActionKind::kReceiveActivation, ActionKind::kForward,
                                    ActionKind::kBackward, ActionKind::kUpdate}) {
        const auto begin = Clock::now();
        times.before({kind, k});
        double seconds = kind == ActionKind::kReceiveActivation ? message_seconds : compute_seconds / 3;
        if (kind == ActionKind::kForward) {
          times.wait_for_samples([] { spin(2e-5); });
          seconds += times.waited_seconds();
        }
        times.after({kind, k}, begin, begin + duration_of(seconds));
        speed.after({kind, k}, begin, begin + duration_of(seconds));
      }
    }
  };
  train(100, 0.06, 0.01);
  CHECK(monitor.baseline_seconds() == Approx(0.06).epsilon(1e-6));  // a wait would be a part of 3e-4
  train(100, 0.06, 10);
  CHECK(told.empty());
  train(100, 0.18, 0.01);
  REQUIRE(told.size() == 1);
  CHECK(told[0].slowdown == Approx(3).epsilon(0.01));
  CHECK(told[0].minibatch == Approx(200).margin(1));
}

TEST_CASE("observers: the drain begins with the end of the last forward") {
  LastForward last;
  CHECK(last.seconds_since() < 3600);
  const auto now = Clock::now();
  for (const ActionKind kind : all_kinds()) {
    last.after({kind, 3}, now - std::chrono::hours(30), now - std::chrono::hours(20));
    if (kind != ActionKind::kForward)
      last.after({kind, 3}, now - std::chrono::hours(30), now - std::chrono::hours(10));
  }
  CHECK(last.seconds_since() >= 20 * 3600);
  CHECK(last.seconds_since() < 21 * 3600);
}

TEST_CASE("observers: a trace has the first minibatches of the run, with the rounds that they end") {
  size_t left_out = 0, rounds = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const WatchedRank rank = watched_rank(seed);
    const int64_t end = rank.span.first + static_cast<int64_t>(seed % 8);
    const auto started = Clock::now();
    TraceWriter trace;
    MeasuredTimes measured;
    TimesObserver times(0, measured);
    const MemoryMeter memory;
    TraceObserver observer({.rank = 5, .end = end, .started = started, .times = times, .memory = memory},
                           trace);
    std::vector<std::string> expected;
    bool within = true;
    for (size_t i = 0; i < rank.actions.size(); ++i) {
      const Action& action = rank.actions[i];
      const auto begin = started + std::chrono::milliseconds(10 * i);
      pass({&observer}, action, begin, 4e-3);
      if (!is_of_round(action.kind)) within = action.index < end;
      if (within) expected.push_back(to_text(action) + " at " + std::to_string(10 * i));
      if (is_of_round(action.kind) && rank.updates_each) {
        CHECK(within == (action.index < end));
        ++rounds;
      }
    }
    left_out += rank.actions.size() - expected.size();
    std::vector<std::string> traced;
    const Json document = parse_json(trace.json(), "trace");
    size_t counters = 0;
    for (const Json& event : document.at("traceEvents")) {
      counters += event.at("ph") == "C";
      if (event.at("ph") == "C") continue;
      const int64_t milliseconds = std::llround(event.at("ts").get<double>() / 1000);
      traced.push_back(event.at("name").get<std::string>() + " at " + std::to_string(milliseconds));
      CHECK(event.at("pid") == 5);
      CHECK(event.at("dur").get<double>() == Approx(4000));
    }
    CHECK(traced == expected);
    CHECK(counters ==
          static_cast<size_t>(std::count_if(expected.begin(), expected.end(), [](const std::string& text) {
            return !is_of_message(parse_actions(text.substr(0, text.find(' '))).front().kind);
          })));
  }
  CHECK(left_out > 1000);
  CHECK(rounds > 100);
}

namespace {

// A rank that has one message of some kind every so many seconds.
class MessagingRank {
 public:
  MessagingRank(ActionKind kind, int64_t first_stage)
      : kind_(kind),
        observer_({first_stage, 7, [this](MessageLog log) { logs.push_back(std::move(log)); }}) {}

  void pass_messages(int64_t first, int64_t count, double apart_seconds, Clock::time_point begin) {
    for (int64_t i = 0; i < count; ++i) {
      const auto at = begin + duration_of(apart_seconds * static_cast<double>(i + 1));
      pass({&observer_}, {kind_, first + i}, at - duration_of(apart_seconds / 4), apart_seconds / 4);
      pass({&observer_}, {ActionKind::kForward, first + i}, at, 0);
      told_at.resize(logs.size(), at);
    }
  }
  std::vector<int64_t> minibatches() const {
    std::vector<int64_t> all;
    for (const MessageLog& log : logs)
      for (const MessageEnd& end : log.ends) all.push_back(end.minibatch);
    return all;
  }

  std::vector<MessageLog> logs;
  std::vector<Clock::time_point> told_at;  // by log

 private:
  const ActionKind kind_;
  MessageObserver observer_;
};

}  // namespace

TEST_CASE(
    "observers: of messages that come now and then all are told, a few times a second, each with its ends") {
  for (const ActionKind kind : all_kinds()) {
    CAPTURE(to_text(kind));
    MessagingRank rank(kind, /*first_stage=*/2);
    const auto now = Clock::now();
    const double now_seconds =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    rank.pass_messages(100, 200, 0.06, now);
    if (!is_of_message(kind)) {
      CHECK(rank.logs.empty());
      continue;
    }
    const auto told = rank.minibatches();
    REQUIRE(told.size() > 190);
    for (size_t i = 0; i < told.size(); ++i) CHECK(told[i] == 100 + static_cast<int64_t>(i));
    for (size_t i = 1; i < rank.told_at.size(); ++i)
      CHECK(rank.told_at[i] - rank.told_at[i - 1] >= std::chrono::milliseconds(250));
    const bool gradient = kind == ActionKind::kSendGradient || kind == ActionKind::kReceiveGradient;
    const bool sends = kind == ActionKind::kSendGradient || kind == ActionKind::kSendActivation;
    for (const MessageLog& log : rank.logs) {
      CHECK(log.generation == 7);
      CHECK(log.clock == clock_of_host());
      for (const MessageEnd& end : log.ends) {
        CHECK(end.is_gradient == gradient);
        CHECK(end.is_sender == sends);
        CHECK(end.sender_stage == (sends ? 2 : gradient ? 3 : 1));
        CHECK(end.ended_seconds - end.began_seconds == Approx(0.015).margin(1e-6));
        // The system's clock is set while it runs: by seconds, not by hours.
        const double expected = now_seconds + 0.06 * static_cast<double>(end.minibatch - 99);
        CHECK(end.ended_seconds == Approx(expected).margin(60));
      }
    }
  }
}

TEST_CASE("observers: of many messages some are told, at both ends of the link the same ones") {
  std::mt19937_64 random(8);
  for (int round = 0; round < 40; ++round) {
    const double apart = 1e-4 * static_cast<double>(1 + random() % 40);
    CAPTURE(apart);
    const auto now = Clock::now();
    MessagingRank sender(ActionKind::kSendActivation, 0), receiver(ActionKind::kReceiveActivation, 1);
    // How fast they come is known when they have been told of for the first time.
    const auto before = static_cast<int64_t>(0.3 / apart);
    sender.pass_messages(0, before, apart, now);
    receiver.pass_messages(0, before, apart, now);
    sender.logs.clear(), receiver.logs.clear();
    sender.told_at.clear(), receiver.told_at.clear();
    const double seconds = 10;
    const auto count = static_cast<int64_t>(seconds / apart);
    const auto then = now + duration_of(apart * static_cast<double>(before));
    sender.pass_messages(before, count, apart, then);
    receiver.pass_messages(before, count, apart, then);
    const auto told = sender.minibatches();
    // About one in kSampleSeconds, at half of that at least.
    CHECK(static_cast<double>(told.size()) < 2 * seconds / MessageSampler::kSampleSeconds);
    CHECK(static_cast<double>(told.size()) > seconds / MessageSampler::kSampleSeconds / 4);
    CHECK(told == receiver.minibatches());
  }
}

TEST_CASE("observers: a message is held back as its minibatch says, once, whatever the rank does besides") {
  const Disturbances slow({"link:sender=1,receiver=2,delay=20ms,from=10,to=20"});
  MessageDelays delays(slow, 1);
  MeasuredTimes times;
  Disturber disturber({slow, 1, 0, Clock::now(), [] {}, delays}, times);
  for (int64_t k = 0; k < 30; ++k) {
    for (const ActionKind kind : all_kinds()) {
      CAPTURE(k, to_text(kind));
      disturber.before({kind, k});
      const bool sends = kind == ActionKind::kSendActivation || kind == ActionKind::kSendGradient;
      CHECK(delays.take(2) == (sends && k >= 10 && k < 20 ? 0.02 : 0));
      CHECK(delays.take(2) == 0);
      disturber.prolong({kind, k}, Clock::now());
    }
    disturber.before({ActionKind::kSendGradient, k});
    CHECK(delays.take(0) == 0);  // another link
  }
  CHECK(times.injected_seconds == 0);
}

TEST_CASE("observers: a disturbed rank waits so long as is said, for what computes, and tells it") {
  const Disturbances all({"compute:duration=300us"});
  MessageDelays delays(all, 0);
  for (const ActionKind kind : all_kinds()) {
    CAPTURE(to_text(kind));
    MeasuredTimes times;
    Disturber disturber({all, 0, 0, Clock::now(), [] {}, delays}, times);
    const bool slow = is_compute(kind) && kind != ActionKind::kUpdate;
    for (int64_t k = 1; k <= 5; ++k) {
      const auto begin = Clock::now();
      disturber.prolong({kind, k}, begin);
      CHECK(times.injected_seconds == Approx(slow ? 3e-4 * static_cast<double>(k) : 0));
      if (slow) CHECK(Clock::now() - begin >= std::chrono::microseconds(300));
    }
  }
}

TEST_CASE("observers: what ends the job ends the wait of a disturbed rank, too") {
  const Disturbances hours({"compute:duration=100min"});
  MessageDelays delays(hours, 0);
  MeasuredTimes times;
  int64_t checks = 0;
  const auto check = [&] {
    if (++checks == 3) throw RunError("another rank failed");
  };
  Disturber disturber({hours, 0, 0, Clock::now(), check, delays}, times);
  CHECK(error_of<RunError>([&] {
          disturber.prolong({ActionKind::kBackward, 0}, Clock::now());
        }) == "another rank failed");
}

TEST_CASE(
    "observers: a disturbance hears which rank and replica computed, for how long and when in the run") {
  const TemporaryFolder folder;
  SpeedTrace speeds;
  speeds.ranks[3] = {{100, 2}};
  write_document(folder / "speeds.json", speeds);
  const auto injected = [&](const std::string& spec, int64_t rank, int64_t replica, double into_the_run) {
    const Disturbances disturbances({spec});
    MessageDelays delays(disturbances, rank);
    MeasuredTimes times;
    const auto began = Clock::now() - std::chrono::milliseconds(2);
    Disturber disturber({disturbances, rank, replica, began - duration_of(into_the_run), [] {}, delays},
                        times);
    disturber.prolong({ActionKind::kForward, 0}, began);
    return times.injected_seconds;
  };
  const std::string file = "trace:file=" + (folder / "speeds.json").string();
  CHECK(injected(file, 3, 0, 99) == 0);
  CHECK(injected(file, 3, 0, 101) >= 2e-3);
  CHECK(injected(file, 2, 0, 101) == 0);
  CHECK(injected("fixed:pipeline=1,factor=2", 0, 1, 0) >= 2e-3);
  CHECK(injected("fixed:pipeline=1,factor=2", 1, 0, 0) == 0);
}

}  // namespace pipewright::testing
