// Groups by arrival, in virtual time: thousands of schedules of pipelines that are slow in every way, against
// what must hold of every decision (SDPipe's invariants), and examples by hand.
#include "runtime/side_by_side/group_scheduler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <random>
#include <set>

#include "runtime/side_by_side/group_wait.h"

using namespace pipewright;
using namespace std::chrono_literals;

namespace {

using Time = GroupScheduler::Time;
using Group = std::vector<int64_t>;

std::vector<Group> groups_of(const std::vector<GroupDecision>& decisions) {
  std::vector<Group> groups;
  for (const GroupDecision& decision : decisions) groups.push_back(decision.pipelines);
  return groups;
}

GroupRules rules(int64_t pipelines, int64_t window, int64_t stages = 1) {
  GroupRules rules;
  rules.pipelines = pipelines;
  rules.window_updates = window;
  rules.stages = stages;
  return rules;
}

// 1F1B pipelines in virtual time, reduced to what a scheduler sees of them: stage s makes its update k when
// its own update before and the update k of the stage behind it are done with, the last stage when stage 0 is
// no more than `depth` updates behind. Each update takes what `seconds` says.
struct Job {
  GroupRules rules;
  std::vector<std::vector<int64_t>> spans;  // by span and pipeline: updates
  int64_t depth = 2;
  std::function<GroupPatience(int64_t pipeline)> patience = [](int64_t) { return GroupPatience{}; };
  bool announces = true;
  std::function<Time(int64_t stage, int64_t pipeline, int64_t update)> takes;
};

struct Played {
  std::vector<GroupDecision> decisions;
  std::vector<GroupDecision> events;  // those, and who leaves: a decision without pipelines
  bool complete = false;              // all updates of all were made
  Time end{0};
};

class Player {
 public:
  explicit Player(Job job)
      : job_(std::move(job)),
        scheduler_(job_.rules),
        done_(stages(), std::vector<int64_t>(pipelines(), 0)),
        arrived_(done_),
        span_(done_),
        left_(stages(), 0),
        busy_(stages(), std::vector<bool>(pipelines(), false)) {
    for (std::vector<int64_t> end(pipelines(), 0); const auto& span : job_.spans) {
      for (size_t p = 0; p < end.size(); ++p) end[p] += span[p];
      ends_.push_back(end);
    }
  }

  Played play() {
    for (size_t s = 0; s < stages(); ++s)
      for (size_t p = 0; p < pipelines(); ++p) leave_if_done(s, p);
    start_all();
    while (!events_.empty() || scheduler_.deadline()) {
      const auto deadline = scheduler_.deadline();
      if (deadline && (events_.empty() || *deadline < std::get<0>(events_.top()))) {
        now_ = std::max(now_, *deadline);
        take(scheduler_.expire(now_));
        continue;
      }
      const auto [time, s, p] = events_.top();
      events_.pop();
      now_ = time;
      ++arrived_[static_cast<size_t>(s)][static_cast<size_t>(p)];
      start_all();
      take(scheduler_.arrive(s, p, now_, job_.patience(p)));
    }
    played_.end = now_;
    played_.complete =
        std::all_of(done_.begin(), done_.end(), [&](const auto& stage) { return stage == ends_.back(); });
    return played_;
  }
  const GroupScheduler& scheduler() const { return scheduler_; }

 private:
  size_t stages() const { return static_cast<size_t>(job_.rules.stages); }
  size_t pipelines() const { return static_cast<size_t>(job_.rules.pipelines); }

  void take(const std::vector<GroupDecision>& decisions) {
    for (const GroupDecision& decision : decisions) {
      played_.decisions.push_back(decision);
      const auto s = static_cast<size_t>(decision.stage);
      for (const int64_t pipeline : decision.heard_by) {
        const auto p = static_cast<size_t>(pipeline);
        REQUIRE(busy_[s][p]);
        busy_[s][p] = false;
        ++done_[s][p];
      }
      played_.events.push_back(decision);
      for (const int64_t pipeline : decision.heard_by) leave_if_done(s, static_cast<size_t>(pipeline));
    }
    start_all();
  }

  // Returns to nobody before all have left the stage; then some may have nothing to do in the next span.
  void leave_if_done(size_t s, size_t p) {
    const auto span = static_cast<size_t>(span_[s][p]);
    if (gone_.count({s, p}) > 0 || span == ends_.size() || done_[s][p] < ends_[span][p]) return;
    gone_.insert({s, p});
    played_.events.push_back({static_cast<int64_t>(s), {}, {static_cast<int64_t>(p)}});
    take(scheduler_.leave(static_cast<int64_t>(s), static_cast<int64_t>(p), now_));
    if (++left_[s] < pipelines()) return;
    left_[s] = 0;
    for (size_t q = 0; q < pipelines(); ++q) {
      gone_.erase({s, q});
      ++span_[s][q];
    }
    for (size_t q = 0; q < pipelines(); ++q) leave_if_done(s, q);
  }

  void start_all() {
    for (size_t s = stages(); s-- > 0;) {
      for (size_t p = 0; p < pipelines(); ++p) {
        const int64_t k = done_[s][p];
        const auto span = static_cast<size_t>(span_[s][p]);
        if (busy_[s][p] || gone_.count({s, p}) > 0 || span == ends_.size() || k == ends_[span][p]) continue;
        if (s > 0 && span_[s - 1][p] < span_[s][p]) continue;  // forwards come from there
        // The gradient of update k: it comes before the stage behind hears of its group.
        const bool ready = s + 1 == stages() ? k <= done_[0][p] + job_.depth : arrived_[s + 1][p] > k;
        if (!ready) continue;
        busy_[s][p] = true;
        const auto stage = static_cast<int64_t>(s), pipeline = static_cast<int64_t>(p);
        events_.emplace(now_ + job_.takes(stage, pipeline, k), stage, pipeline);
        // By experience, which may be wrong.
        if (job_.announces) scheduler_.announce(stage, pipeline, now_, job_.takes(stage, pipeline, k));
      }
    }
  }

  const Job job_;
  GroupScheduler scheduler_;
  std::vector<std::vector<int64_t>> done_, arrived_;  // updates, by stage and pipeline
  std::vector<std::vector<int64_t>> span_, ends_;     // likewise; by span and pipeline, updates behind it
  std::vector<size_t> left_;                          // by stage: how many have left it in this span
  std::set<std::pair<size_t, size_t>> gone_;          // by stage and pipeline: those
  std::vector<std::vector<bool>> busy_;               // under way, or waiting for its group
  std::priority_queue<std::tuple<Time, int64_t, int64_t>, std::vector<std::tuple<Time, int64_t, int64_t>>,
                      std::greater<>>
      events_;
  Time now_{0};
  Played played_;
};

int64_t updates_of(const Job& job, int64_t pipeline) {
  int64_t sum = 0;
  for (const auto& span : job.spans) sum += span[static_cast<size_t>(pipeline)];
  return sum;
}

// The longest run of updates at a stage that leaves the pipelines which go on in more than one part.
int64_t longest_window(const std::vector<GroupDecision>& events, int64_t stage, int64_t pipelines) {
  int64_t longest = 0, updates = 0;
  std::set<int64_t> gone;
  std::vector<int64_t> part(static_cast<size_t>(pipelines));
  const auto reset = [&] {
    std::iota(part.begin(), part.end(), 0);
    updates = 0;
  };
  reset();
  for (const GroupDecision& decision : events) {
    if (decision.stage != stage) continue;
    if (decision.pipelines.empty()) {
      gone.insert(decision.heard_by.front());
    } else {
      updates += static_cast<int64_t>(decision.heard_by.size());
    }
    longest = std::max(longest, updates);
    for (const int64_t member : decision.pipelines) {
      const int64_t from = part[static_cast<size_t>(member)];
      std::replace(part.begin(), part.end(), from, part[static_cast<size_t>(decision.pipelines[0])]);
    }
    std::set<int64_t> parts;
    for (int64_t p = 0; p < pipelines; ++p)
      if (gone.count(p) == 0) parts.insert(part[static_cast<size_t>(p)]);
    if (parts.size() > 1) continue;
    reset();
    if (parts.empty()) gone.clear();
  }
  return longest;
}

}  // namespace

TEST_CASE("all who are there are a group at once, else the first one's wait is how long it takes") {
  GroupScheduler scheduler(rules(3, 10));
  CHECK(scheduler.arrive(0, 2, 0ms, {5ms}).empty());
  CHECK(scheduler.deadline() == Time(5ms));
  CHECK(scheduler.arrive(0, 0, 1ms, {50ms}).empty());
  CHECK(scheduler.deadline() == Time(5ms));
  CHECK(scheduler.expire(4999us).empty());
  CHECK(groups_of(scheduler.arrive(0, 1, 4ms, {0ms})) == std::vector<Group>{{0, 1, 2}});
  CHECK_FALSE(scheduler.deadline());

  CHECK(scheduler.arrive(0, 1, 10ms, {5ms}).empty());
  CHECK(scheduler.arrive(0, 2, 12ms, {5ms}).empty());
  CHECK(groups_of(scheduler.expire(15ms)) == std::vector<Group>{{1, 2}});
  // Who comes late is the first of the next one.
  CHECK(scheduler.arrive(0, 0, 16ms, {5ms}).empty());
  CHECK(scheduler.deadline() == Time(21ms));
  CHECK(groups_of(scheduler.expire(21ms)) == std::vector<Group>{{0}});
  CHECK(scheduler.statistics().groups == std::map<int64_t, int64_t>{{1, 1}, {2, 1}, {3, 1}});
}

TEST_CASE("who announces is waited for where it can be there in time, and is not bound") {
  GroupScheduler scheduler(rules(3, 10));
  scheduler.announce(0, 1, 0ms, 2ms);
  scheduler.announce(0, 2, 0ms, 20ms);
  CHECK(scheduler.arrive(0, 0, 1ms, {5ms}).empty());
  // 2 will be too late.
  CHECK(groups_of(scheduler.arrive(0, 1, 2ms, {5ms})) == std::vector<Group>{{0, 1}});
  // As it turns out, it is later still: it holds nobody up.
  scheduler.announce(0, 0, 3ms, 20ms);
  scheduler.announce(0, 1, 3ms, 20ms);
  CHECK(scheduler.arrive(0, 0, 23ms, {5ms}).empty());
  CHECK(groups_of(scheduler.arrive(0, 1, 24ms, {5ms})).empty());
  CHECK(groups_of(scheduler.expire(28ms)) == std::vector<Group>{{0, 1}});
}

TEST_CASE(
    "who is behind waits for somebody new, the longer the more of the window has gone, who is ahead does "
    "not") {
  GroupScheduler scheduler(rules(2, 10));
  for (int i = 1; i <= 8; ++i) {
    CHECK(scheduler.arrive(0, 0, i * 10ms, {1ms, 10ms}).empty());
    CHECK(scheduler.deadline() == Time(i * 10ms + 1ms));
    CHECK(groups_of(scheduler.expire(i * 10ms + 1ms)) == std::vector<Group>{{0}});
  }
  // 8 of 20 updates: 0.4 of half an update.
  CHECK(scheduler.arrive(0, 1, 85ms, {1ms, 40ms}).empty());
  CHECK(scheduler.deadline() == Time(93ms));
  // Whoever comes decides how long the group waits then.
  CHECK(groups_of(scheduler.arrive(0, 0, 90ms, {1ms, 10ms})) == std::vector<Group>{{0, 1}});
  CHECK(scheduler.statistics().longest_window_updates == 10);
  CHECK(scheduler.statistics().columns == 0);
}

TEST_CASE("stages make groups of their own, of whole pipelines the last stage makes them for all") {
  GroupRules two = rules(3, 10, 2);
  GroupScheduler each(two);
  CHECK(each.arrive(1, 0, 0ms, {5ms}).empty());
  CHECK(each.arrive(0, 1, 1ms, {5ms}).empty());
  CHECK(groups_of(each.expire(5ms)) == std::vector<Group>{{0}});
  CHECK(groups_of(each.expire(6ms)) == std::vector<Group>{{1}});

  two.of_whole_pipelines = true;
  GroupScheduler whole(two);
  CHECK(whole.arrive(1, 0, 0ms, {5ms}).empty());
  CHECK(whole.arrive(0, 0, 1ms, {5ms}).empty());  // its last stage has not been told yet
  CHECK(whole.arrive(1, 2, 2ms, {5ms}).empty());
  const auto decided = whole.expire(5ms);
  REQUIRE(decided.size() == 2);
  CHECK(decided[0].stage == 1);
  CHECK(decided[0].pipelines == Group{0, 2});
  CHECK_FALSE(decided[0].passed_on);
  CHECK(decided[1].stage == 0);
  CHECK(decided[1].pipelines == Group{0, 2});
  CHECK(decided[1].heard_by == Group{0});
  CHECK(decided[1].passed_on);
  const auto later = whole.arrive(0, 2, 100ms, {5ms});
  REQUIRE(later.size() == 1);
  CHECK(later[0].pipelines == Group{0, 2});
  CHECK(later[0].heard_by == Group{2});
}

TEST_CASE("with a window of 1 all pipelines make every update together, however late one is") {
  for (const bool whole : {false, true}) {
    std::mt19937_64 random(3);
    Job job;
    job.rules = rules(3, 1, 3);
    job.rules.of_whole_pipelines = whole;
    job.spans = {{20, 20, 20}, {7, 7, 7}};
    job.takes = [&](int64_t, int64_t pipeline, int64_t) {
      return Time(std::uniform_int_distribution<int64_t>(1, pipeline == 1 ? 9000 : 1000)(random));
    };
    const Played played = Player(job).play();
    CHECK(played.complete);
    for (const GroupDecision& decision : played.decisions) CHECK(decision.pipelines == Group{0, 1, 2});
  }
}

TEST_CASE("a pipeline that has left is not waited for, when all have, all begins anew") {
  GroupScheduler scheduler(rules(3, 1));
  CHECK(scheduler.arrive(0, 0, 0ms, {1ms}).empty());
  CHECK(scheduler.arrive(0, 1, 0ms, {1ms}).empty());
  CHECK(groups_of(scheduler.leave(0, 2, 1ms)) == std::vector<Group>{{0, 1}});
  CHECK(scheduler.leave(0, 0, 1ms).empty());
  CHECK(scheduler.leave(0, 1, 1ms).empty());
  for (const int64_t pipeline : {0, 1}) CHECK(scheduler.arrive(0, pipeline, 1ms, {1ms}).empty());
  CHECK(groups_of(scheduler.arrive(0, 2, 2ms, {1ms})) == std::vector<Group>{{0, 1, 2}});
}

TEST_CASE("many pipelines average in pairs, first those that nothing connects yet") {
  GroupRules many = rules(10, 100);
  many.pairs_above = 8;
  GroupScheduler scheduler(many);
  std::vector<GroupDecision> decisions;
  for (int round = 0; round < 2; ++round) {
    decisions.clear();
    for (int64_t p = 0; p < 9; ++p) CHECK(scheduler.arrive(0, p, 0ms, {1ms}).empty());
    decisions = scheduler.expire(1ms);
    std::multiset<int64_t> seen;
    int64_t alone = 0;
    for (const GroupDecision& decision : decisions) {
      CHECK(decision.pipelines.size() <= 2);
      alone += decision.pipelines.size() == 1 ? 1 : 0;
      seen.insert(decision.pipelines.begin(), decision.pipelines.end());
    }
    CHECK(alone == 1);
    CHECK(seen.size() == 9);
    CHECK(std::set<int64_t>(seen.begin(), seen.end()).size() == 9);
  }
}

TEST_CASE("whatever delays: every update has one group, windows are bounded, nobody waits for ever") {
  const char* given = std::getenv("PIPEWRIGHT_GROUP_CASES");
  const int64_t cases = given ? std::stoll(given) : 1000;
  int64_t columns = 0, different = 0;
  for (int64_t seed = 0; seed < cases; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const auto between = [&](int64_t least, int64_t most) {
      return std::uniform_int_distribution<int64_t>(least, most)(random);
    };
    Job job;
    job.rules = rules(between(1, 6), std::vector<int64_t>{1, 2, 3, 10}[static_cast<size_t>(between(0, 3))],
                      between(1, 4));
    job.rules.of_whole_pipelines = between(0, 1) == 1;
    job.rules.pairs_above = between(2, 8);
    for (int64_t n = between(1, 3); n > 0; --n) {
      const int64_t updates = between(0, 40);
      job.spans.emplace_back();
      for (int64_t p = 0; p < job.rules.pipelines; ++p) job.spans.back().push_back(updates + between(0, 1));
    }
    job.depth = between(0, 4);
    const GroupPatience patience{Time(between(0, 300)), Time(between(0, 1000))};
    job.patience = [patience](int64_t) { return patience; };
    job.announces = between(0, 2) > 0;
    const int64_t slow = between(0, job.rules.pipelines), factor = between(1, 9);
    const bool stalls = between(0, 1) == 1;
    job.takes = [&, slow, factor, stalls](int64_t, int64_t pipeline, int64_t) {
      const int64_t base = between(80, 120) * (pipeline == slow ? factor : 1);
      return Time(base + (stalls && between(0, 9) == 0 ? 1000 : 0));
    };
    CAPTURE(seed, job.rules.pipelines, job.rules.stages, job.rules.window_updates, job.depth);
    Player player(job);
    const Played played = player.play();
    REQUIRE(played.complete);

    std::vector<std::map<int64_t, std::vector<Group>>> heard(static_cast<size_t>(job.rules.stages));
    for (const GroupDecision& decision : played.decisions) {
      CHECK(std::is_sorted(decision.pipelines.begin(), decision.pipelines.end()));
      CHECK(std::adjacent_find(decision.pipelines.begin(), decision.pipelines.end()) ==
            decision.pipelines.end());
      for (const int64_t pipeline : decision.heard_by) {
        CHECK(std::find(decision.pipelines.begin(), decision.pipelines.end(), pipeline) !=
              decision.pipelines.end());
        heard[static_cast<size_t>(decision.stage)][pipeline].push_back(decision.pipelines);
      }
      if (!decision.passed_on) CHECK(decision.heard_by == decision.pipelines);
    }
    for (auto& stage : heard)
      for (int64_t p = 0; p < job.rules.pipelines; ++p)
        REQUIRE(static_cast<int64_t>(stage[p].size()) == updates_of(job, p));
    if (job.rules.of_whole_pipelines) {
      for (const auto& stage : heard) CHECK(stage == heard.back());
    } else if (heard.front() != heard.back()) {
      ++different;
    }
    // A stage is never further behind the last one than the pipeline is deep.
    const int64_t lead = job.rules.of_whole_pipelines || job.rules.window_updates == 1 ? 0 : job.depth + 1;
    for (int64_t s = 0; s < job.rules.stages; ++s) {
      if (job.rules.of_whole_pipelines && s + 1 < job.rules.stages) continue;
      CHECK(longest_window(played.events, s, job.rules.pipelines) <=
            job.rules.pipelines * std::max(job.rules.window_updates, lead + 1));
    }
    columns += player.scheduler().statistics().columns;
  }
  CHECK(columns > cases / 4);
  CHECK(different > cases / 10);
}

TEST_CASE("one slow pipeline of several holds nobody up") {
  // Updates until the pipelines' last one has made all its own, of the others' rate.
  for (const int64_t pipelines : {2, 4, 8}) {
    Job job;
    job.rules = rules(pipelines, 10, 2);
    job.spans = {std::vector<int64_t>(static_cast<size_t>(pipelines), 400)};
    job.patience = [](int64_t pipeline) {
      return GroupPatience{Time(100), Time(pipeline == 0 ? 4000 : 1000)};
    };
    std::mt19937_64 random(7);
    job.takes = [&](int64_t, int64_t pipeline, int64_t) {
      return Time(std::uniform_int_distribution<int64_t>(950, 1050)(random) * (pipeline == 0 ? 4 : 1));
    };
    Player player(job);
    const Played played = player.play();
    // Until the fast ones have made theirs.
    std::vector<int64_t> made(static_cast<size_t>(pipelines), 0);
    int64_t updates = 0;
    for (const GroupDecision& decision : played.decisions) {
      if (decision.stage != 1) continue;
      for (const int64_t p : decision.heard_by) ++made[static_cast<size_t>(p)], ++updates;
      if (*std::max_element(made.begin(), made.end()) == 400) break;
    }
    CAPTURE(pipelines, made);
    // All-reduce: each makes as many as the slow one. The slow one makes a quarter of the fast ones' here.
    const double most = (static_cast<double>(pipelines - 1) + 0.25) / static_cast<double>(pipelines);
    CHECK(static_cast<double>(updates) / static_cast<double>(pipelines) > 0.98 * most * 400);
    CHECK(made[0] >= 90);
    CHECK(player.scheduler().statistics().columns <= 10);  // of some 50 windows
  }
}

TEST_CASE("whoever finds too few waits twice as long, up to a bound, else a tenth less") {
  PartialReduceRules options;
  options.wait = 0.1;
  options.most_wait = 0.5;
  GroupWait wait(options);
  CHECK(wait.now().wait == 0ns);  // nobody knows yet how long an update takes
  wait.took(0.1);
  CHECK(wait.now().wait == 10ms);
  CHECK(wait.now().update == 100ms);
  wait.found(1);
  CHECK(wait.now().wait == 20ms);
  for (int i = 0; i < 5; ++i) wait.found(1);
  CHECK(wait.part() == 0.5);
  wait.found(2);
  CHECK(wait.part() == Approx(0.45));
  for (int i = 0; i < 200; ++i) wait.found(3);
  CHECK(wait.part() == GroupWait::kLeast);
  wait.took(0.2);
  CHECK(wait.now().wait == Time(2400us));
  wait.was_ready_in(0.01);
  CHECK(wait.ready_in() == 10ms);
}
