// Ranks that are made slow: the same ones, at the same minibatches, in a run and in a simulation.
#include "runtime/schedule/disturbance.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "graph/error.h"
#include "runtime/schedule/simulate.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

std::string refusal(const std::string& spec) {
  return error_of<InputError>([&] { Disturbances({spec}); });
}

double extra(const std::vector<std::string>& specs, int64_t rank, int64_t minibatch,
             ActionKind kind = ActionKind::kForward, double seconds = 1, double now_seconds = 0) {
  return Disturbances(specs).extra_seconds({rank, rank % 2, {kind, minibatch}, seconds, now_seconds});
}

Plan two_stages() {
  Plan plan;
  plan.world_size = 3;
  plan.stages.resize(2);
  plan.stages[0].ranks = {0, 1};
  plan.stages[1].ranks = {2};
  return plan;
}

}  // namespace

TEST_CASE("disturbances are read strictly") {
  CHECK(refusal("fixd:rank=1,factor=2") == "disturb: there is no kind 'fixd'; did you mean 'fixed'?");
  CHECK(refusal("fixed:rank=1").find("factor") != std::string::npos);
  CHECK(refusal("fixed:factor=0.5").find("factor") != std::string::npos);
  CHECK(refusal("fixed:rank=1,pipeline=1,factor=2").find("given beside a rank") != std::string::npos);
  CHECK(refusal("fixed:factor=2,from=9,to=3").find("lies before 'from'") != std::string::npos);
  CHECK(refusal("random:probability=2,duration=1ms").find("probability") != std::string::npos);
  CHECK(refusal("random:probability=0.1").find("duration") != std::string::npos);
  CHECK(refusal("random:probability=0.1,duration=100").find("duration") != std::string::npos);  // no unit
  CHECK(refusal("trace").find("file") != std::string::npos);
  CHECK(refusal("trace:file=nowhere.json").find("nowhere.json") != std::string::npos);
  const auto fits = [](const std::string& spec) {
    return error_of<PlanError>([&] { Disturbances({spec}).check(two_stages()); });
  };
  CHECK(fits("fixed:rank=2,factor=2") == "<no exception>");
  CHECK(fits("fixed:rank=3,factor=2") == "--disturb fixed: rank 3, but the plan has ranks 0..2");
  CHECK(fits("random:pipeline=1,probability=0.1,duration=1ms") ==
        "--disturb random: pipeline 1, but a stage of the plan has 1 replicas");
}

TEST_CASE("a fixed disturbance multiplies what a rank or a pipeline computes, between two minibatches") {
  const std::vector<std::string> rank = {"fixed:rank=1,factor=3,from=10,to=20"};
  CHECK(extra(rank, 1, 10, ActionKind::kForward, 0.5) == 1.0);
  CHECK(extra(rank, 1, 19, ActionKind::kBackwardWeight, 0.5) == 1.0);
  CHECK(extra(rank, 1, 9) == 0);
  CHECK(extra(rank, 1, 20) == 0);
  CHECK(extra(rank, 2, 15) == 0);
  CHECK(extra(rank, 1, 15, ActionKind::kUpdate) == 0);
  CHECK(extra(rank, 1, 15, ActionKind::kSendActivation) == 0);
  CHECK(extra({"fixed:pipeline=1,factor=4"}, 3, 0) == 3);
  CHECK(extra({"fixed:pipeline=1,factor=4"}, 2, 0) == 0);
  CHECK(extra({"fixed:factor=2", "fixed:rank=1,factor=2"}, 1, 0) == 2);  // both
  // What stands for compute is multiplied, too.
  CHECK(extra({"fixed:rank=1,factor=3", "compute:duration=4s"}, 1, 0) == 4 + 2 * 5);
  CHECK(extra({"fixed:rank=1,factor=3", "compute:duration=4s"}, 0, 0) == 4);
}

TEST_CASE("a slow link holds the messages of some minibatches back, in one direction") {
  const Disturbances slow({"link:sender=0,receiver=2,delay=20ms,from=10,to=20"});
  CHECK(slow.slows_links());
  CHECK(slow.message_seconds({0, 2, 10}) == 0.02);
  CHECK(slow.message_seconds({0, 2, 19}) == 0.02);
  CHECK(slow.message_seconds({0, 2, 20}) == 0);
  CHECK(slow.message_seconds({2, 0, 10}) == 0);
  CHECK(slow.message_seconds({1, 2, 10}) == 0);
  CHECK(slow.extra_seconds({0, 0, {ActionKind::kForward, 10}, 1, 0}) == 0);
  CHECK_FALSE(Disturbances({"fixed:factor=2"}).slows_links());
  CHECK(refusal("link:sender=0,receiver=0,delay=1ms").find("is the sender") != std::string::npos);
  CHECK(refusal("link:sender=0,delay=1ms").find("receiver") != std::string::npos);
  CHECK(refusal("link:sender=0,receiver=1,delay=1").find("delay") != std::string::npos);  // no unit
}

TEST_CASE("a simulation holds messages back as long as a run does, with and without a network") {
  // One minibatch at a time: each message there and back counts.
  const StageTimes times{.forward_seconds = 1,
                         .backward_seconds = 2,
                         .send_activation_seconds = 0.5,
                         .send_gradient_seconds = 0.5};
  const Disturbances there({"link:sender=0,receiver=1,delay=3s,from=4,to=8"});
  const Disturbances back({"link:sender=1,receiver=0,delay=7s,from=4,to=8"});
  for (const int engine : {0, 1, 2}) {
    CAPTURE(engine);
    SimulationOptions options;
    if (engine == 1) options.send_queue = 1000;
    if (engine == 2) {
      options.network = {{.count = 2, .bandwidth_bytes_per_second = 1000}};
      options.messages = {{500, 0, 0}, {0, 500, 0}};
    }
    const auto seconds = [&](const Disturbances* disturbances) {
      options.disturbances = disturbances;
      return simulate("model-parallel", {{1, 1}, {1, 1}}, {times, times}, {0, 10}, options).total_seconds;
    };
    const double alone = seconds(nullptr);
    CHECK(alone == Approx(10 * 7));
    CHECK(seconds(&there) == Approx(alone + 4 * 3));
    CHECK(seconds(&back) == Approx(alone + 4 * 7));
  }
}

TEST_CASE("random waits depend on seed, rank, minibatch and action alone, and are as frequent as asked") {
  const auto waits = [](const std::string& options, int64_t rank) {
    const Disturbances one({"random:probability=0.1,duration=50ms" + options});
    std::vector<double> all;
    for (int64_t k = 0; k < 20000; ++k)
      all.push_back(one.extra_seconds({rank, 0, {ActionKind::kForward, k}, 1, static_cast<double>(k)}));
    return all;
  };
  const auto first = waits("", 0);
  CHECK(first == waits("", 0));
  CHECK(first != waits("", 1));
  CHECK(first != waits(",seed=2", 0));
  const auto slow = std::count(first.begin(), first.end(), 0.05);
  CHECK(slow + std::count(first.begin(), first.end(), 0.0) == 20000);
  // 2000 expected, standard deviation 42.
  CHECK(slow > 1800);
  CHECK(slow < 2200);
}

TEST_CASE("a trace says how slow ranks are over time") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "speeds.json";
  const auto write = [&](const std::string& points) {
    std::ofstream(file) << R"({"schema": "pipewright.speeds/1", "ranks": [{"rank": 1, "points": )" << points
                        << "}]}";
  };
  write(R"([{"at_seconds": 2, "factor": 3}, {"at_seconds": 4, "factor": 1}])");
  const std::vector<std::string> specs = {"trace:file=" + file.string()};
  const auto at = [&](double seconds, int64_t rank) {
    return extra(specs, rank, 0, ActionKind::kBackward, 0.25, seconds);
  };
  CHECK(at(1.9, 1) == 0);
  CHECK(at(2.0, 1) == 0.5);
  CHECK(at(3.9, 1) == 0.5);
  CHECK(at(4.0, 1) == 0);
  CHECK(at(3.0, 0) == 0);
  write(R"([{"at_seconds": 2, "factor": 3}, {"at_seconds": 2, "factor": 1}])");
  CHECK(refusal(specs[0]).find("ranks[0].points[1].at_seconds: not later than the point before") !=
        std::string::npos);
  write(R"([{"at_seconds": 2, "factor": 0.5}])");
  CHECK(refusal(specs[0]).find("ranks[0].points[0].factor: 0.5") != std::string::npos);
}

TEST_CASE("a simulation takes as much longer as its disturbances say, with and without a network") {
  // One stage alone: all of it is compute.
  const StageTimes times{.forward_seconds = 1, .backward_seconds = 2, .step_seconds = 0.5};
  const Disturbances slow({"fixed:rank=0,factor=3,from=4,to=8"});
  for (const bool events : {false, true}) {
    SimulationOptions options;
    if (events) options.send_queue = 1000;  // the other engine
    const double alone = simulate("1f1b", {{1}, {1}}, {times}, {0, 10}, options).total_seconds;
    options.disturbances = &slow;
    const double disturbed = simulate("1f1b", {{1}, {1}}, {times}, {0, 10}, options).total_seconds;
    CHECK(alone == Approx(35));
    CHECK(disturbed == Approx(35 + 4 * 2 * 3));
  }
}

TEST_CASE("both engines of the simulator are disturbed alike") {
  const StageTimes times{.forward_seconds = 1,
                         .backward_seconds = 2,
                         .step_seconds = 0.5,
                         .send_activation_seconds = 0.25,
                         .send_gradient_seconds = 0.25};
  const PipelineShape shape{.replicas = {2, 1, 1}, .in_flight = {2, 2, 1}, .rank_numbers = {3, 1, 0, 2}};
  const std::vector<StageTimes> all = {times, times, times};
  for (const std::vector<std::string>& specs :
       {std::vector<std::string>{"fixed:rank=3,factor=2"},
        {"random:probability=0.3,duration=1500ms"},
        {"fixed:pipeline=0,factor=1.5", "random:probability=0.1,duration=10s,rank=2"}}) {
    const Disturbances disturbances(specs);
    SimulationOptions sweep, events;
    events.send_queue = 1000;
    const double quiet = simulate("1f1b", shape, all, {0, 60}, sweep).total_seconds;
    sweep.disturbances = events.disturbances = &disturbances;
    const Simulation a = simulate("1f1b", shape, all, {0, 60}, sweep);
    const Simulation b = simulate("1f1b", shape, all, {0, 60}, events);
    CHECK(a.total_seconds == Approx(b.total_seconds).epsilon(1e-12));
    CHECK(a.total_seconds > quiet);
    CHECK(a.ranks[0].busy_seconds == Approx(b.ranks[0].busy_seconds));
  }
}

}  // namespace pipewright::testing
