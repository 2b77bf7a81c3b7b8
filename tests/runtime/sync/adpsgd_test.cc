// AD-PSGD: pipelines that average weights in pairs at any time, against the serial reference that repeats who
// met whom, and against what must follow from its meaning.
#include <set>

#include "models/zoo/registry.h"
#include "runtime/sync/weight_meetings.h"
#include "tests/runtime/sync/served_run.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

using Tensors = std::vector<at::Tensor>;

double mean_of_all(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

TEST_CASE("meetings: every other pipeline asks, any of the others answers, about as often") {
  for (int64_t pipelines = 2; pipelines < 9; ++pipelines) {
    const MeetingPartners partners{7, 1, pipelines};
    std::set<int64_t> all;
    for (const auto& half : {partners.active(), partners.passive()})
      for (const int64_t p : half) CHECK(all.insert(p).second);
    CHECK(all.size() == static_cast<size_t>(pipelines));
    std::map<int64_t, int64_t> drawn;
    for (int64_t updates = 1; updates <= 2000; ++updates) ++drawn[partners.drawn(0, 40, updates)];
    CHECK(drawn.size() == partners.passive().size());
    for (const auto& [passive, times] : drawn) {
      CHECK_FALSE(MeetingPartners::is_active(passive));
      CHECK(std::abs(times * static_cast<int64_t>(drawn.size()) - 2000) < 500);
    }
    CHECK(partners.drawn(0, 40, 3) == MeetingPartners{7, 1, pipelines}.drawn(0, 40, 3));
  }
}

TEST_CASE("meetings: nobody waits for who trains, and a sum over all replicas keeps every update") {
  at::set_num_threads(1);
  for (const int64_t pipelines : {2, 3, 4, 7}) {
    std::vector<double> end(static_cast<size_t>(pipelines)), added(static_cast<size_t>(pipelines));
    std::mutex mutex;
    int64_t sent_bytes = 0;
    std::vector<WeightMeeting> met;
    spawn(make_local_world(pipelines), [&](int64_t rank, Transport& transport) {
      WeightMeetingSettings settings;
      for (int64_t p = 0; p < pipelines; ++p) settings.ranks.push_back(p);
      settings.replica = rank;
      settings.tag = 30;
      settings.partners = {3, 0, pipelines};
      settings.told = [&](const WeightMeeting& meeting) {
        const std::lock_guard lock(mutex);
        met.push_back(meeting);
      };
      const bool active = MeetingPartners::is_active(rank);
      const auto meetings =
          active ? make_active_meetings(transport, settings) : make_passive_meetings(transport, settings);
      std::mt19937_64 random(static_cast<uint64_t>(rank));
      for (int64_t span = 0; span < 3; ++span) {
        // Half the replicas make no update in the last one. Numbers are whole, so all sums are exact.
        const int64_t updates = span == 2 && rank % 3 == 1 ? 0 : 40;
        Tensors weights = {at::full({3}, 1024, at::kDouble), at::full({2}, 1024, at::kFloat)};
        meetings->begin(weights, span);
        for (int64_t u = 1; u <= updates; ++u) {
          for (at::Tensor& each : weights) each = each + static_cast<double>(rank + u);
          {
            const std::lock_guard lock(mutex);
            added[static_cast<size_t>(rank)] += static_cast<double>(rank + u);
          }
          if (const auto changed = meetings->update(weights, u)) weights = *changed;
        }
        if (const auto changed = meetings->end(weights, updates)) weights = *changed;
        const std::lock_guard lock(mutex);
        if (std::abs(weights[0][0].item<double>() - weights[1][1].item<double>()) > 0.1)
          throw std::runtime_error("dtypes differ");
        end[static_cast<size_t>(rank)] += weights[0][0].item<double>() - 1024;
      }
      const std::lock_guard lock(mutex);
      sent_bytes += meetings->take_sent_bytes();
    });
    CHECK(mean_of_all(end) == Approx(mean_of_all(added)).epsilon(1e-12));
    for (const WeightMeeting& meeting : met) {
      CHECK(meeting.published < meeting.added);
      CHECK(MeetingPartners::is_active(meeting.active));
    }
    CHECK_FALSE(met.empty());
    // Both send what they have: 3 doubles and 2 floats.
    CHECK(sent_bytes == static_cast<int64_t>(met.size()) * 2 * 32);
  }
}

TEST_CASE("meetings: a replica that fails ends those of the others with its error") {
  auto world = make_local_world(3);
  std::vector<std::thread> ranks;
  std::atomic<int64_t> failed = 0;
  for (int64_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      WeightMeetingSettings settings;
      settings.ranks = {0, 1, 2};
      settings.replica = rank;
      settings.partners = {3, 0, 3};
      settings.told = [](const WeightMeeting&) {};
      const auto meetings = rank % 2 == 0
                                ? make_active_meetings(*world[static_cast<size_t>(rank)], settings)
                                : make_passive_meetings(*world[static_cast<size_t>(rank)], settings);
      meetings->begin({at::ones({2})}, 0);
      if (rank == 2) {
        for (auto& transport : world) transport->abort("rank 2 was lost");
        return;
      }
      try {
        for (int64_t u = 1;; ++u) meetings->update({at::ones({2})}, u);
      } catch (const PeerError& error) {
        if (std::string(error.what()).find("rank 2 was lost") != std::string::npos) ++failed;
      }
    });
  }
  for (std::thread& thread : ranks) thread.join();
  CHECK(failed == 2);
}

TEST_CASE(
    "adpsgd: whatever plan, rules and delays, weights and losses are the serial program's with the same "
    "meetings, bit for bit") {
  at::set_num_threads(1);
  const std::vector<std::string> transports = {"local", "local", "local", "shm", "gloo"};
  int64_t meetings = 0, late = 0, at_drain = 0, refused = 0;
  for (int64_t seed = 0; seed < side_by_side_cases(100); ++seed) {
    RandomJobs jobs(static_cast<uint64_t>(seed) + 23000);
    const std::string sync = seed % 3 == 0 ? "adpsgd:minibatches=turns" : "adpsgd";
    RandomJob job = jobs.next_side_by_side(sync, 6);
    if (seed % 2 == 0) cast_weights_once(job);
    if (!job.plan.tied_parameters.empty()) {
      CHECK_THROWS_WITH(check_side_by_side(job.plan, sync, job.rules.gradient_accumulation),
                        Catch::Contains("would differ"));
      ++refused;
      continue;
    }
    check_side_by_side(job.plan, sync, job.rules.gradient_accumulation);
    job.rules.total_minibatches = job.spans.back().end();
    CAPTURE(seed, sync, job.plan.shape_text(), job.plan.schedule, job.plan.weights, job.rules.optimizer.name);
    const auto minibatches = random_minibatches(job.model.graph, job.spans.back().end(), 5);
    const Ran ran = run(job.model, job.plan, job.rules, job.spans, minibatches,
                        world_of(transports[static_cast<size_t>(seed) % transports.size()], job.plan),
                        static_cast<uint64_t>(seed));
    for (const auto& [span, stages] : ran.meetings) {
      for (const auto& stage : stages) {
        for (const WeightMeeting& meeting : stage) {
          ++meetings;
          late += meeting.added > meeting.published + 1 ? 1 : 0;
          at_drain += meeting.met > meeting.published ? 1 : 0;
        }
      }
    }
    const ReferenceResult expected =
        train_serially(job.model, {ran.part(job.plan, job.spans)}, job.rules,
                       [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
    check_run(job.plan, job.rules, job.spans, ran.run, expected);
  }
  CHECK(meetings > side_by_side_cases(100));
  CHECK(at_drain > 0);
  UNSCOPED_INFO(meetings << " meetings, " << late << " late, " << refused << " plans refused");
}

TEST_CASE("adpsgd: a pipeline that is slow trains few minibatches, and the others neither wait nor drift") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=3,width=8,image=4,channels=1", 4);
  const Plan plan = plan_of(model, {2, 2}, {2, 1});
  TrainingRules rules;
  rules.sync = "adpsgd";
  rules.total_minibatches = 60;
  const auto minibatches = random_minibatches(model.graph, 60, 10);
  for (const size_t slow_pipeline : {0u, 1u}) {
    ServedGroups served(plan, rules.sync);
    RankExtras extras;
    extras.groups = [&](int64_t) { return connect_groups(served.client()); };
    extras.minibatches = [&](int64_t) { return connect_minibatches(served.client()); };
    const auto slow = [&](int64_t rank, const Action& action) {
      if (action.kind != ActionKind::kForward || plan.stages[1].ranks[slow_pipeline] != rank) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(40));
    };
    run_pipeline(model, plan, rules, {{0, 60}}, minibatches, make_world("local", 4), slow, extras);
    served.groups();
    int64_t of_slow = 0;
    for (const Span& part : served.minibatches().at(0).at(static_cast<int64_t>(slow_pipeline)))
      of_slow += part.count;
    CHECK(of_slow >= 1);
    CHECK(of_slow < 30);  // taking turns it would train half of them
    const auto& stages = served.meetings().at(0);
    REQUIRE(stages.size() == 2);
    for (const auto& stage : stages) CHECK_FALSE(stage.empty());
  }
}

TEST_CASE("the serial program refuses meetings of another run") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=3,width=8,image=4,channels=1", 4);
  const Plan plan = plan_of(model, {2, 2}, {2, 1});
  TrainingRules rules;
  rules.sync = "adpsgd:minibatches=turns";
  const auto minibatches = random_minibatches(model.graph, 6, 10);  // three updates of each pipeline
  const auto train = [&](std::vector<WeightMeeting> meetings) {
    train_serially(model, {{plan, {{0, 6}}, {}, {}, {{0, {{}, std::move(meetings)}}}}}, rules,
                   [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
  };
  CHECK_NOTHROW(train({}));
  CHECK_NOTHROW(train({{0, 1, 1, 2, 0, 0}, {0, 1, 2, 4, 3, 1}}));
  CHECK_THROWS_WITH(train({{0, 3, 1, 2, 0, 0}}), Catch::Contains("pipeline 3 meets"));
  CHECK_THROWS_WITH(train({{0, 1, 1, 3, 0, 0}, {0, 1, 2, 4, 0, 1}}), Catch::Contains("asks twice"));
  CHECK_THROWS_WITH(train({{0, 1, 4, 5, 0, 0}}), Catch::Contains("waits for ever"));
  CHECK_THROWS_WITH(train({{0, 1, 1, 5, 3, 0}}), Catch::Contains("ends before its meetings"));
  CHECK_THROWS_WITH(train({{0, 1, 2, 3, 0, 0}, {0, 1, 1, 2, 1, 1}}), Catch::Contains("waits for ever"));
}
