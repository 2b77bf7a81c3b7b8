// Slow links and slow ranks told apart: under several schedules, in simulated time, with noise on both.
#include "runtime/monitor/link_judge.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>
#include <tuple>

#include "runtime/messages/rank_message.h"
#include "runtime/monitor/rank_monitor.h"
#include "runtime/monitor/rank_speeds.h"
#include "runtime/schedule/disturbance.h"
#include "runtime/schedule/simulate.h"

namespace pipewright::testing {
namespace {

struct Case {
  std::string schedule;
  PipelineShape shape;
};

std::vector<Case> cases() {
  PipelineShape flush{.replicas = {1, 1}, .in_flight = {8, 8}};
  flush.weights = WeightRule::kFlush;
  flush.microbatches = 4;
  return {{"1f1b", {.replicas = {1, 1}, .in_flight = {2, 1}}},
          {"1f1b", {.replicas = {1, 1, 1}, .in_flight = {3, 2, 1}}},
          {"1f1b", {.replicas = {2, 1}, .in_flight = {2, 1}}},
          {"model-parallel", {.replicas = {1, 1}, .in_flight = {1, 1}}},
          {"gpipe", flush},
          {"1f1b-flush", flush},
          {"zb-h1", flush}};
}

// What a run is like beside its disturbances.
struct Machine {
  uint64_t seed = 1;
  std::string stalls = "0.003";   // probability that an action takes 60 ms longer
  double scale = 1;               // of all times
  double clock_of_rank_1 = 0;     // seconds that it is ahead, on a host of its own
  double message_spread = 0.2;    // of the time that a message takes
  double message_outlier = 0.05;  // probability of one that takes up to ten times as long
};

struct Found {
  std::vector<std::vector<SpeedChange>> ranks;
  std::vector<LinkChange> links;
  std::vector<double> started;  // by minibatch: when its first forward began
};

class Watched {
 public:
  Watched(const Case& c, const Machine& machine)
      : case_(c), machine_(machine), random_(machine.seed), stages_(placements(c.shape)) {
    found_.ranks.resize(stages_.size());
    monitors_.resize(stages_.size());
    logs_.resize(stages_.size());
    samplers_.resize(stages_.size());
    told_.resize(stages_.size());
    counts_.resize(stages_.size());
  }

  // Forwards take 10 ms, backwards 20 ms, both now and then longer, messages 3 ms.
  Found run(std::vector<std::string> specs, int64_t minibatches) {
    const auto seed = std::to_string(machine_.seed);
    for (const auto& [probability, milliseconds] :
         std::vector<std::pair<std::string, double>>{{"0.5", 0.5}, {"0.2", 2}, {machine_.stalls, 60}})
      specs.push_back("random:probability=" + probability +
                      ",duration=" + std::to_string(milliseconds * machine_.scale) + "ms,seed=" + seed);
    const Disturbances disturbances(specs);
    StageTimes times{.forward_seconds = 0.010, .backward_seconds = 0.020, .step_seconds = 0.0005};
    times.send_activation_seconds = times.send_gradient_seconds = 0.003;
    for (double* seconds : {&times.forward_seconds, &times.backward_seconds, &times.step_seconds,
                            &times.send_activation_seconds, &times.send_gradient_seconds})
      *seconds *= machine_.scale;
    if (case_.schedule == "zb-h1") times.backward_weight_seconds = times.backward_seconds / 2;
    SimulationOptions options;
    options.disturbances = &disturbances;
    auto actions =
        simulate(case_.schedule, case_.shape, std::vector<StageTimes>(case_.shape.replicas.size(), times),
                 {0, minibatches}, options)
            .actions;
    // A rank sends when it has computed, and goes on at once; the simulator says when the link was free.
    std::map<std::tuple<int64_t, bool, int64_t>, double> computed;  // by rank, gradient, minibatch
    for (const SimulatedAction& a : actions) {
      const ActionKind kind = a.action.kind;
      if (kind == ActionKind::kForward || kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput)
        computed[{a.rank, kind != ActionKind::kForward, a.action.index}] = a.end_seconds;
    }
    for (SimulatedAction& a : actions) {
      if (a.action.kind == ActionKind::kSendActivation || a.action.kind == ActionKind::kSendGradient)
        a.begin_seconds = a.end_seconds =
            computed.at({a.rank, a.action.kind == ActionKind::kSendGradient, a.action.index});
    }
    std::stable_sort(actions.begin(), actions.end(),
                     [](const auto& a, const auto& b) { return a.end_seconds < b.end_seconds; });
    for (const SimulatedAction& action : actions) take(action);
    return found_;
  }

 private:
  void take(const SimulatedAction& done) {
    const auto rank = static_cast<size_t>(done.rank);
    if (!is_of_message(done.action.kind)) {
      if (done.action.kind == ActionKind::kForward && stages_[rank].stage == 0)
        found_.started.push_back(done.begin_seconds);
      if (const auto change = monitors_[rank].ran(done.action, done.end_seconds - done.begin_seconds)) {
        found_.ranks[rank].push_back(*change);
        speeds_.take(done.rank, *change);
      }
      return;
    }
    const double clock = rank == 1 ? machine_.clock_of_rank_1 : 0;
    MessageEnd end = message_end(done.action, stages_[rank].stage);
    ++counts_[rank][2 * static_cast<size_t>(end.is_gradient) + static_cast<size_t>(end.is_sender)];
    double late = 0.001 * machine_.scale * std::exp(machine_.message_spread * normal_(random_));
    if (uniform_(random_) < machine_.message_outlier) late *= 10 * uniform_(random_);
    end.began_seconds = done.begin_seconds + clock;
    end.ended_seconds = done.end_seconds + late + clock;
    MessageLog& log = logs_[rank];
    if (samplers_[rank].takes(end.minibatch)) log.ends.push_back(end);
    if (done.begin_seconds - told_[rank] < 0.25) return;
    samplers_[rank].adjust(*std::max_element(counts_[rank].begin(), counts_[rank].end()),
                           done.begin_seconds - told_[rank]);
    counts_[rank] = {};
    told_[rank] = done.begin_seconds;
    log.clock = clock == 0 ? "a" : "b";
    for (const LinkChange& change :
         judge_.take(done.rank, std::get<MessageLog>(rank_message_of(text_of(log)))))
      found_.links.push_back(change);
    log.ends.clear();
  }

  const Case& case_;
  const Machine machine_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  std::vector<Placement> stages_;
  std::vector<RankMonitor> monitors_;
  RankSpeeds speeds_{8};
  LinkJudge judge_{[this](int64_t rank) { return speeds_.slowdown(rank); }};
  std::vector<MessageLog> logs_;
  std::vector<MessageSampler> samplers_;
  std::vector<double> told_;
  std::vector<std::array<int64_t, 4>> counts_;
  Found found_;
};

Found found(const Case& c, const std::vector<std::string>& specs, int64_t minibatches,
            const Machine& machine) {
  return Watched(c, machine).run(specs, minibatches);
}

int64_t changes_of_ranks(const Found& found) {
  int64_t count = 0;
  for (const auto& rank : found.ranks) count += static_cast<int64_t>(rank.size());
  return count;
}

// One step up near `from`, one down near `to`, of this link alone.
void check_one_step(const Found& found, int64_t sender, int64_t receiver, int64_t from, int64_t to,
                    int64_t apart) {
  CHECK(changes_of_ranks(found) == 0);
  for (const LinkChange& link : found.links)
    UNSCOPED_INFO(link.sender << " to " << link.receiver << ": " << link.change.before_seconds << " s, then "
                              << link.change.after_seconds << " s, since " << link.change.minibatch
                              << ", found " << link.change.found);
  REQUIRE(found.links.size() == 2);
  for (const LinkChange& link : found.links) {
    CHECK(link.sender == sender);
    CHECK(link.receiver == receiver);
  }
  const SpeedChange up = found.links[0].change, down = found.links[1].change;
  CHECK(std::abs(up.minibatch - from) <= 10 * apart);
  CHECK(up.found - from < 20 * apart);
  CHECK(up.found >= from);
  CHECK(up.slowdown > 1.2);
  CHECK(up.after_seconds > up.before_seconds);
  CHECK(std::abs(down.minibatch - to) <= 20 * apart);
  CHECK(down.found - to < 35 * apart);  // messages from before lie on the link still
  CHECK(down.slowdown == 1);
}

}  // namespace

TEST_CASE("a link that becomes slow, and fast again, is found under every schedule, and no rank is blamed") {
  for (const Case& c : cases())
    for (uint64_t seed = 0; seed < 20; ++seed) {
      CAPTURE(c.schedule, c.shape.replicas, seed);
      // Minibatches of a link with two replicas at one end are two apart. There, and where
      // every update drains the pipeline, messages lie ready for longer.
      const int64_t apart = c.shape.replicas[0], last = c.shape.ranks() - 1;
      const auto slow_link = [&](int64_t sender, int64_t receiver) {
        const std::string spec =
            "link:sender=" + std::to_string(sender) + ",receiver=" + std::to_string(receiver) +
            ",delay=" + std::to_string(apart == 1 && c.schedule == "1f1b" ? 70 : 200) + "ms,from=200,to=400";
        check_one_step(found(c, {spec}, 600, {.seed = seed}), sender, receiver, 200, 400, apart);
      };
      slow_link(0, apart);
      slow_link(last, last - 1);
    }
}

TEST_CASE("a rank that becomes slow, and fast again, is blamed, and no link is") {
  for (const Case& c : cases())
    for (const double factor : {1.5, 3.0})
      for (int64_t rank = 0; rank < c.shape.ranks(); ++rank)
        for (uint64_t seed = 0; seed < 10; ++seed) {
          CAPTURE(c.schedule, c.shape.replicas, factor, rank, seed);
          const Found run = found(c,
                                  {"fixed:rank=" + std::to_string(rank) +
                                   ",factor=" + std::to_string(factor) + ",from=200,to=400"},
                                  600, {.seed = seed, .stalls = "0.02"});
          CHECK(run.links.empty());
          const auto& blamed = run.ranks[static_cast<size_t>(rank)];
          REQUIRE(blamed.size() >= 2);
          CHECK(blamed.front().slowdown == Approx(factor).epsilon(0.2));
          CHECK(blamed.back().slowdown == 1);
        }
}

TEST_CASE("a quiet run has slow links under no schedule, whatever their noise") {
  for (const Case& c : cases())
    for (const double spread : {0.0, 0.3, 1.0})
      for (const double scale : {0.03, 1.0}) {
        CAPTURE(c.schedule, spread, scale);
        CHECK(found(c, {}, 6000,
                    {.seed = 3,
                     .stalls = "0.02",
                     .scale = scale,
                     .message_spread = spread,
                     .message_outlier = 0.1})
                  .links.empty());
      }
}

TEST_CASE("of short minibatches some are looked at, and a slow link is found within two seconds") {
  const Case c = cases()[0];
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    // Minibatches of 1 ms, later of 8 ms.
    const Found run =
        found(c, {"link:sender=0,receiver=1,delay=8ms,from=5000"}, 9000, {.seed = seed, .scale = 0.03});
    REQUIRE(run.links.size() == 1);
    const SpeedChange& up = run.links[0].change;
    CHECK(run.started.at(static_cast<size_t>(up.found)) - run.started.at(5000) < 2);
    CHECK(up.found >= 5000);
    CHECK(changes_of_ranks(run) == 0);
  }
}

TEST_CASE("between hosts the clocks may differ") {
  const Case c = cases()[0];
  for (const double ahead : {-3600.0, -0.5, 0.002, 7.0})
    for (uint64_t seed = 0; seed < 5; ++seed) {
      CAPTURE(ahead, seed);
      const Machine machine{.seed = seed, .clock_of_rank_1 = ahead};
      check_one_step(found(c, {"link:sender=0,receiver=1,delay=70ms,from=200,to=400"}, 600, machine), 0, 1,
                     200, 400, 1);
      check_one_step(found(c, {"link:sender=1,receiver=0,delay=70ms,from=200,to=400"}, 600, machine), 1, 0,
                     200, 400, 1);
      CHECK(found(c, {"fixed:rank=1,factor=3,from=200,to=400"}, 600, machine).links.empty());
    }
}

TEST_CASE("a link as slow as the rank that moves its messages is explained, one that is much slower is not") {
  double slowdown_of_rank_1 = 1;
  int64_t minibatch = 0;
  LinkJudge judge([&](int64_t rank) { return rank == 1 ? slowdown_of_rank_1 : 1; });
  const auto messages = [&](double seconds) {
    std::vector<LinkChange> changes;
    for (int i = 0; i < 100; ++i, ++minibatch)
      for (const bool is_sender : {true, false}) {
        const double sent = static_cast<double>(minibatch);
        const MessageEnd end{false, is_sender, 0, minibatch, is_sender ? sent : sent - 0.1, sent + seconds};
        const auto more = judge.take(is_sender ? 0 : 1, {0, "a", {end}});
        changes.insert(changes.end(), more.begin(), more.end());
      }
    return changes;
  };
  CHECK(messages(0.01).empty());
  slowdown_of_rank_1 = 3;
  CHECK(messages(0.03).empty());
  slowdown_of_rank_1 = 1;
  CHECK(messages(0.01).empty());
  const auto slow = messages(0.03);
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].change.slowdown == Approx(3));
  CHECK(slow[0].change.before_seconds == Approx(0.01));
  CHECK(slow[0].change.after_seconds == Approx(0.03));
  CHECK(messages(0.01).size() == 1);
  slowdown_of_rank_1 = 2;
  CHECK(messages(0.2).size() == 1);
}

TEST_CASE("another plan is another baseline, and no change of a link") {
  LinkJudge judge([](int64_t) { return 1; });
  int64_t minibatch = 0;
  const auto messages = [&](int64_t generation, double seconds) {
    std::vector<LinkChange> changes;
    for (int i = 0; i < 100; ++i, ++minibatch)
      for (const bool is_sender : {true, false}) {
        const double sent = static_cast<double>(minibatch);
        const MessageEnd end{true, is_sender, 1, minibatch, is_sender ? sent : sent - 0.1, sent + seconds};
        const auto more = judge.take(is_sender ? 1 : 0, {generation, "a", {end}});
        changes.insert(changes.end(), more.begin(), more.end());
      }
    return changes;
  };
  CHECK(messages(0, 0.01).empty());
  CHECK(messages(1, 0.05).empty());
  CHECK(messages(1, 0.10).size() == 1);
  CHECK(messages(2, 0.30).empty());
  const auto back = messages(2, 0.15);
  REQUIRE(back.size() == 1);
  CHECK(back[0].change.slowdown == 1);
}

TEST_CASE("ranks that look at fewer messages look at some of those that others look at") {
  MessageSampler all, fast, faster;
  all.adjust(10, 1.0);
  fast.adjust(100, 1.0);
  faster.adjust(1000, 1.0);
  CHECK(all.step() == 1);
  CHECK(fast.step() == 4);
  CHECK(faster.step() == 64);
  int64_t of_fast = 0, of_faster = 0, odd = 0;
  for (int64_t k = 0; k < 64000; ++k) {
    of_fast += fast.takes(k);
    of_faster += faster.takes(k);
    odd += faster.takes(k) && k % 2 == 1;
    if (faster.takes(k)) CHECK(fast.takes(k));
  }
  CHECK(of_fast == Approx(16000).epsilon(0.03));
  CHECK(of_faster == Approx(1000).epsilon(0.1));
  CHECK(odd == Approx(500).epsilon(0.15));
}

}  // namespace pipewright::testing
