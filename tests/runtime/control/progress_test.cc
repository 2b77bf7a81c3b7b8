// What ranks say they do, and what is made of it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <set>
#include <tuple>

#include "graph/error.h"
#include "runtime/control/flight.h"
#include "runtime/control/heartbeat.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"
#include "tests/runtime/random_pipelines.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

RankReport report(int64_t rank, const std::string& operation, std::vector<int64_t> peers, double seconds) {
  RankReport report;
  report.rank = rank;
  report.beat = Beat{1, {{operation, std::move(peers)}, seconds, 0}, 0, false};
  return report;
}

}  // namespace

TEST_CASE("progress: an action in words, with the ranks it needs") {
  Plan plan;  // 3 | 0 2 | 1: ranks stand in any order
  plan.world_size = 4;
  for (const auto& ranks : std::vector<std::vector<int64_t>>{{3}, {0, 2}, {1}}) {
    plan.stages.emplace_back();
    plan.stages.back().ranks = ranks;
    plan.stages.back().in_flight = 4;
  }
  const PipelineShape shape = shape_of(plan);
  const auto peers = [&](ActionKind kind, int64_t index, int64_t rank) {
    return activity_of({kind, index}, plan, shape, rank).peers;
  };
  CHECK(peers(ActionKind::kSendActivation, 4, 3) == std::vector<int64_t>{0});
  CHECK(peers(ActionKind::kSendActivation, 5, 3) == std::vector<int64_t>{2});
  CHECK(peers(ActionKind::kReceiveActivation, 5, 2) == std::vector<int64_t>{3});
  CHECK(peers(ActionKind::kReceiveGradient, 5, 2) == std::vector<int64_t>{1});
  CHECK(peers(ActionKind::kSendGradient, 7, 1) == std::vector<int64_t>{2});
  CHECK(peers(ActionKind::kReduce, 7, 0) == std::vector<int64_t>{2});
  CHECK(peers(ActionKind::kForward, 7, 0).empty());
  CHECK(activity_of({ActionKind::kReceiveActivation, 17}, plan, shape, 1).operation ==
        "receive activation of minibatch 17");
  CHECK(activity_of({ActionKind::kReduce, 3}, plan, shape, 0).operation ==
        "all-reduce of gradients of round 3");
}

TEST_CASE("progress: ranks that run several stages") {
  Plan plan;  // stages 0 1 2 3 on ranks 1 0 1 0
  plan.world_size = 2;
  plan.schedule = "interleaved";
  plan.weights = "flush";
  plan.microbatches = 4;
  for (int64_t s = 0; s < 4; ++s) {
    plan.stages.emplace_back();
    plan.stages.back().ranks = {1 - s % 2};
    plan.stages.back().in_flight = 4;
  }
  const PipelineShape shape = shape_of(plan);
  CHECK(activity_of({ActionKind::kReceiveActivation, 3, 2}, plan, shape, 1).peers == std::vector<int64_t>{0});
  CHECK(activity_of({ActionKind::kForward, 3, 2}, plan, shape, 1).operation ==
        "forward of minibatch 3 at stage 2");
}

// Of what a rank says, the half that can be checked without knowing how it was found: the peer says the same
// of it.
TEST_CASE("progress: of every message both ends name each other, whatever ranks a plan gives its stages") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RandomJob job = RandomJobs(seed).next(24);
    INFO("seed " << seed << ", " << job.plan.shape_text() << ", " << job.plan.schedule);
    const PipelineShape shape = shape_of(job.plan, job.rules.gradient_accumulation);
    using Message = std::tuple<bool, int64_t, int64_t, int64_t, int64_t>;  // gradient?, of, at, from, to
    std::multiset<Message> sent, received;
    std::map<std::pair<int64_t, int64_t>, std::set<std::set<int64_t>>>
        sums;  // by stage, round: who takes part
    for (size_t s = 0; s < job.plan.stages.size(); ++s) {
      if (s >= static_cast<size_t>(shape.groups())) break;  // further stages of the same ranks
      for (size_t q = 0; q < job.plan.stages[s].ranks.size(); ++q) {
        const int64_t rank = job.plan.stages[s].ranks[q];
        for (const Action& action : schedule_of_rank(job.plan.schedule, shape, static_cast<int64_t>(s),
                                                     static_cast<int64_t>(q), job.spans.front())) {
          const Activity activity = activity_of(action, job.plan, shape, rank);
          const int64_t stage = action.stage_or(static_cast<int64_t>(s));
          if (action.kind == ActionKind::kReduce) {
            std::set<int64_t> all(activity.peers.begin(), activity.peers.end());
            CHECK(all.insert(rank).second);
            sums[{stage, action.index}].insert(all);
          }
          if (!is_of_message(action.kind)) continue;
          REQUIRE(!activity.peers.empty());  // several where a stage splits minibatches
          const bool gradient =
              action.kind == ActionKind::kReceiveGradient || action.kind == ActionKind::kSendGradient;
          for (const int64_t peer : activity.peers) {
            if (action.kind == ActionKind::kSendActivation || action.kind == ActionKind::kSendGradient) {
              sent.insert({gradient, action.index, gradient ? stage - 1 : stage + 1, rank, peer});
            } else {
              received.insert({gradient, action.index, stage, peer, rank});
            }
          }
        }
      }
    }
    CHECK(sent == received);
    for (const auto& [round, groups] : sums) {
      CHECK(groups.size() == 1);
      CHECK(groups.begin()->size() == job.plan.stages[static_cast<size_t>(round.first)].ranks.size());
    }
  }
}

namespace {

/// Notes to whom its rank sends.
class SendNotes : public Transport {
 public:
  SendNotes(std::unique_ptr<Transport> inner, std::vector<int64_t>& sent_to)
      : inner_(std::move(inner)), sent_to_(sent_to) {}
  int64_t rank() const override { return inner_->rank(); }
  int64_t world_size() const override { return inner_->world_size(); }
  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    sent_to_.push_back(peer);
    return inner_->send(std::move(tensor), peer, tag);
  }
  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return inner_->receive(std::move(tensor), peer, tag);
  }
  void abort(const std::string& why) override { inner_->abort(why); }

 private:
  std::unique_ptr<Transport> inner_;
  std::vector<int64_t>& sent_to_;
};

}  // namespace

TEST_CASE("progress: the rank that a worker sends to is the one that its heartbeat names") {
  at::set_num_threads(1);
  int64_t messages = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    RandomJob job = RandomJobs(seed).next(8);
    INFO("seed " << seed << ", " << job.plan.shape_text() << ", " << job.plan.schedule);
    const int64_t size = job.plan.world_size;
    if (size == 1) continue;
    job.rules.total_minibatches = job.spans.back().end();
    const PipelineShape shape = shape_of(job.plan, job.rules.gradient_accumulation);
    struct Rank {
      std::vector<int64_t> sent_to;
      std::optional<Activity> sending;
      std::vector<std::pair<Activity, std::vector<int64_t>>> sends;
    };
    std::vector<Rank> ranks(static_cast<size_t>(size));
    std::vector<std::unique_ptr<Transport>> world = make_world("local", size);
    for (size_t rank = 0; rank < world.size(); ++rank)
      world[rank] = std::make_unique<SendNotes>(std::move(world[rank]), ranks[rank].sent_to);
    const auto before = [&](int64_t number, const Action& action) {
      Rank& rank = ranks[static_cast<size_t>(number)];
      if (rank.sending) rank.sends.push_back({*rank.sending, rank.sent_to});
      rank.sending.reset();
      rank.sent_to.clear();
      if (action.kind == ActionKind::kSendActivation || action.kind == ActionKind::kSendGradient)
        rank.sending = activity_of(action, job.plan, shape, number);
    };
    run_pipeline(job.model, job.plan, job.rules, job.spans,
                 random_minibatches(job.model.graph, job.rules.total_minibatches, 5), std::move(world),
                 before);
    const bool splits = std::any_of(job.plan.stages.begin(), job.plan.stages.end(),
                                    [](const Stage& stage) { return stage.splits(); });
    for (const Rank& rank : ranks) {
      for (const auto& [activity, sent_to] : rank.sends) {
        INFO(activity.operation);
        const std::set<int64_t> named(activity.peers.begin(), activity.peers.end());
        const std::set<int64_t> sent(sent_to.begin(), sent_to.end());
        // Where minibatches are split, a small one may have no sample for a neighbour that has some of
        // others.
        const bool some = splits && std::includes(named.begin(), named.end(), sent.begin(), sent.end());
        CHECK((sent.empty() || sent == named || some));
        messages += static_cast<int64_t>(sent_to.size());
      }
    }
  }
  CHECK(messages > 100);
}

TEST_CASE(
    "progress: the last minibatch is known between operations too, and how long peers were waited for") {
  Progress progress;
  CHECK(progress.now().minibatch == -1);
  progress.begin({"forward of minibatch 3", {}, false, 3});
  progress.end();
  CHECK(progress.now().minibatch == 3);
  CHECK(progress.now().waited_seconds == 0);
  progress.begin({"receive activation of minibatch 4", {1}, false, 4});
  const auto wait = [&] { return progress.now().waited_seconds; };
  const double first = wait();
  CHECK(eventually(std::chrono::seconds(60), [&] { return wait() > first; }));
  progress.begin({"all-reduce of gradients of round 4", {}});
  const double waited = wait();
  CHECK(waited > first);
  CHECK(progress.now().minibatch == 4);
  CHECK(wait() == waited);
}

TEST_CASE("progress: the last 200 operations are kept, and a thread that works is not stalled") {
  Progress progress;
  for (int i = 0; i < 500; ++i) progress.begin({"operation " + std::to_string(i), {}});
  const auto events = progress.events();
  REQUIRE(events.size() == 200);
  CHECK(events.back().operation == "operation 498");
  CHECK(progress.now().activity.operation == "operation 499");
  volatile double sum = 0;
  for (int i = 0; i < 30'000'000; ++i) sum = sum + i;
  const ProgressNow working = progress.now();
  CHECK(working.stalled_seconds < working.seconds / 5);  // however long that took
  progress.end();
  CHECK(progress.now().stalled_seconds == 0);
}

TEST_CASE("heartbeat: text form round trips, other text is an error, not a crash") {
  const Beat beat{7, {{"all-reduce of gradients of round 3", {1, 2}, true}, 1.5, 0.25}, 12, true};
  const Beat again = Beat::from_text(beat.to_text());
  CHECK(again.number == 7);
  CHECK(again.progress.activity.operation == beat.progress.activity.operation);
  CHECK(again.progress.activity.peers == beat.progress.activity.peers);
  CHECK(again.progress.activity.done);
  CHECK(again.progress.seconds == 1.5);
  CHECK(again.progress.stalled_seconds == 0.25);
  CHECK(again.work == 12);
  CHECK(again.finished);
  for (const char* text : {"", "x", "{}", "[1]", "{\"number\": \"a\"}"}) {
    CHECK_THROWS_AS(Beat::from_text(text), PeerError);
    CHECK_THROWS_AS(ProcessName::from_text(text), PeerError);
  }
}

TEST_CASE("heartbeat: ranks in words") {
  CHECK(ranks_words({3}) == "rank 3");
  CHECK(ranks_words({1, 2}) == "ranks 1, 2");
  CHECK(ranks_words({0, 4, 5, 6, 62}) == "ranks 0, 4-6, 62");
}

TEST_CASE("heartbeat: who waits for whom, through any number of ranks") {
  const std::vector<RankReport> reports = {
      report(0, "receive gradient of minibatch 15", {1}, 11),
      report(1, "forward of minibatch 17", {}, 0.5),
      report(2, "receive activation of minibatch 17", {1}, 12),
      report(3, "receive activation of minibatch 16", {2}, 12.5),
  };
  CHECK(who_waits_for(reports, 1) ==
        "rank 0 waits for rank 1 (receive gradient of minibatch 15 since 11.0 s); "
        "rank 2 waits for rank 1 (receive activation of minibatch 17 since 12.0 s); "
        "rank 3 waits for rank 2 (receive activation of minibatch 16 since 12.5 s)");
  CHECK(who_waits_for(reports, 3).empty());
  CHECK(waiting_chain(reports, 3) == std::vector<int64_t>{3, 2, 1});
  CHECK(waiting_chain(reports, 1) == std::vector<int64_t>{1});
}

TEST_CASE("heartbeat: of the replicas that reduce, the one that has not come is waited for") {
  const std::vector<RankReport> reports = {
      report(0, "all-reduce of gradients of round 3", {1, 2}, 5),
      report(1, "all-reduce of gradients of round 3", {0, 2}, 4),
      report(2, "backward of minibatch 11", {}, 6),
  };
  CHECK(waiting_chain(reports, 0) == std::vector<int64_t>{0, 2});
  CHECK(waiting_chain(reports, 1) == std::vector<int64_t>{1, 2});
}

TEST_CASE("heartbeat: a circle of waiting ranks ends") {
  const std::vector<RankReport> reports = {
      report(0, "receive gradient of minibatch 1", {1}, 5),
      report(1, "receive activation of minibatch 2", {0}, 4),
  };
  CHECK(waiting_chain(reports, 0) == std::vector<int64_t>{0, 1, 0});
  CHECK(chain_words(reports, {0, 1, 0}) ==
        "rank 0 waits for rank 1 (receive gradient of minibatch 1 since 5.0 s); "
        "rank 1 waits for rank 0 (receive activation of minibatch 2 since 4.0 s)");
}

TEST_CASE("flight records: of ranks that failed each by itself the earliest minibatch is the cause") {
  const TemporaryFolder folder;
  Progress progress;
  CHECK(error_of_flights(folder.path()).empty());
  write_flight(folder.path(), 0, "rank 2 is lost; here: rank 0, forward of minibatch 1", progress);
  CHECK(error_of_flights(folder.path()) == "rank 2 is lost");
  write_flight(folder.path(), 2, "the forward of minibatch 10 is not finite on stage 0", progress);
  write_flight(folder.path(), 10, "the loss of minibatch 9 is nan on stage 1", progress);
  CHECK(error_of_flights(folder.path()) == "the loss of minibatch 9 is nan on stage 1");
}

TEST_CASE("processes: this one runs, one that never was has gone, another host's is not known") {
  const ProcessName self = this_process();
  CHECK(state_of(self) == ProcessState::kRunning);
  ProcessName other = self;
  other.start_ticks += 1;  // a later process with our number
  CHECK(state_of(other) == ProcessState::kGone);
  other.identity = "elsewhere";
  CHECK(state_of(other) == ProcessState::kUnknown);
  CHECK(ProcessName::from_text(self.to_text()).pid == self.pid);
  CHECK(state_of_pid(1'000'000'000) == ProcessState::kGone);
}
