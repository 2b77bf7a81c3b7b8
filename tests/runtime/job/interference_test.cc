// The policy `interference`: what it plans for ranks that are slow, and when it changes to it.
#include "runtime/job/interference.h"

#include <catch2/catch.hpp>
#include <thread>

#include "graph/document.h"
#include "optimizer/plan/optimizer.h"
#include "runtime/job/recovery_policy.h"
#include "tests/optimizer/random_profile.h"
#include "tests/runtime/job/waiting_predictor.h"
#include "tests/support/error_of.h"

namespace pipewright::testing {
namespace {

// Twelve nodes of 3 ms each, whose weights are too large to be exchanged and whose values are small.
Profile chain() {
  Profile profile;
  profile.model = "chain";
  profile.device = "none";
  profile.minibatch_samples = 8;
  for (int v = 0; v < 12; ++v) {
    ProfiledNode node;
    node.name = "n" + std::to_string(v);
    node.layer = "layer" + std::to_string(v);
    node.inputs = {v == 0 ? "images" : "n" + std::to_string(v - 1) + ".out"};
    node.outputs = {{node.name + ".out", 1000}};
    node.forward_seconds = 0.001;
    node.backward_input_seconds = 0.001;
    node.backward_weight_seconds = 0.001;
    node.parameter_bytes = node.trainable_parameter_bytes = 100'000'000;
    node.parameters = {node.name + ".weight"};
    profile.nodes.push_back(node);
  }
  return profile;
}

Topology links(int64_t ranks) { return flat_topology(ranks, 1e9, 20e-6, 0); }

Plan best(const Profile& profile, int64_t ranks) {
  PlanRequest request;
  request.use_all_devices = true;
  return make_plan(profile, links(ranks), request);
}

int64_t nodes_of_rank(const Plan& plan, int64_t rank) {
  for (const Stage& stage : plan.stages)
    for (const int64_t one : stage.ranks)
      if (one == rank) return static_cast<int64_t>(stage.nodes.size());
  return 0;
}

RunNow at(int64_t minibatch, const Plan& plan, int64_t minibatches_left,
          const std::vector<double>& slowdowns) {
  RunNow now{.minibatch = minibatch, .plan = plan, .first_plan = plan, .speeds = {}};
  for (const double slowdown : slowdowns) now.speeds.push_back({.slowdown = slowdown});
  now.minibatches_left = minibatches_left;
  now.minibatches_per_epoch = 1000;
  return now;
}

// Asks before one minibatch after the other (`step` 0: before the same one) until there is an answer: it
// plans on a thread of its own.
std::optional<PlanDecision> asked(AdaptPolicy& policy, RunNow now, int64_t step = 1) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < until) {
    if (auto decision = policy.decide(now)) return decision;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    now.minibatch += step;
  }
  return std::nullopt;
}

Interference policy(bool at_epochs = false) { return {chain(), links(2), 1e9, at_epochs}; }

}  // namespace

TEST_CASE("a slow rank gets less to do, a rank as slow as all others as much as before") {
  const Profile profile = chain();
  const Plan quiet = best(profile, 2);
  REQUIRE(quiet.stages.size() == 2);
  CHECK(nodes_of_rank(quiet, 0) == 6);
  const Replanned slow = plan_again(profile, links(2), quiet, {1, 3});
  CHECK(slow.now_seconds == Approx(6 * 3 * 0.003).epsilon(0.05));
  CHECK(nodes_of_rank(slow.plan, 0) == 9);
  CHECK(nodes_of_rank(slow.plan, 1) == 3);
  CHECK(slow.next_seconds == Approx(9 * 0.003).epsilon(0.05));
  const Replanned all = plan_again(profile, links(2), quiet, {3, 3.1});
  CHECK(document_digest(all.plan) == document_digest(plan_again(profile, links(2), quiet, {1, 1}).plan));
  CHECK(all.next_seconds == Approx(all.now_seconds).epsilon(0.01));
  // And back.
  CHECK(nodes_of_rank(plan_again(profile, links(2), slow.plan, {1, 1}).plan, 1) == 6);
}

TEST_CASE("what is planned again is never worse than the plan in force, as both are priced") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const Profile profile = random_profile(random, 4 + static_cast<int>(seed % 5), true, 100);
    const int64_t ranks = 2 + static_cast<int64_t>(seed % 2);
    Plan in_force;
    try {
      in_force = best(profile, ranks);
    } catch (const InfeasibleError&) {
      continue;
    }
    std::vector<double> slowdowns;
    for (int64_t rank = 0; rank < ranks; ++rank)
      slowdowns.push_back(1 + 0.5 * static_cast<double>(pick(random, 0, 6)));
    CAPTURE(seed, slowdowns);
    const Replanned again = plan_again(profile, links(ranks), in_force, slowdowns);
    // The search over unequal devices is exact by the formula; waiting may add to what it finds.
    CHECK(again.next_seconds <= 1.1 * again.now_seconds);
    CHECK(again.plan.world_size <= ranks);
  }
}

TEST_CASE("the policy changes once for one event, and back when it is over") {
  Interference interference = policy();
  const Plan quiet = best(chain(), 2);
  CHECK_FALSE(interference.decide(at(0, quiet, 10000, {1, 1})));
  const auto slow = asked(interference, at(100, quiet, 9900, {1, 3}));
  REQUIRE(slow);
  CHECK(nodes_of_rank(slow->plan, 1) == 3);
  CHECK(slow->reason == "interference, measured: rank 1 computes 3 times as long");
  for (int64_t k = 101; k < 120; ++k) {
    CHECK_FALSE(interference.decide(at(k, slow->plan, 10000 - k, {1, 3})));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const auto back = asked(interference, at(200, slow->plan, 9800, {1, 1}));
  REQUIRE(back);
  CHECK(nodes_of_rank(back->plan, 1) == 6);
  CHECK(back->reason == "interference, measured: all ranks are quiet");
}

TEST_CASE("a change waits until staying has cost half as much, and what is over by then changes nothing") {
  const Plan quiet = best(chain(), 2);
  const Replanned next = plan_again(chain(), links(2), quiet, {1, 3});
  const double each = next.now_seconds - next.next_seconds;
  const double cost = change_seconds(quiet, next.move_seconds, next.now_seconds);
  const auto wait = static_cast<int64_t>(std::ceil(Interference::kPatience * cost / each));
  REQUIRE(wait > 5);
  // Seen at minibatch 100, found with minibatch 110.
  const auto now = [&](int64_t minibatch, double slowdown) {
    RunNow seen = at(minibatch, quiet, 9000, {1, slowdown});
    seen.speeds[1].minibatch = 100;
    seen.speeds[1].found = 110;
    return seen;
  };
  for (const bool lasts : {true, false}) {
    Interference interference = policy();
    CHECK_FALSE(interference.decide(now(111, 3)));
    for (int i = 0; i < 200; ++i) {  // planned by then, and asked again and again before one minibatch
      CHECK_FALSE(interference.decide(now(100 + wait - 1, 3)));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (lasts) {
      CHECK(asked(interference, now(100 + wait, 3), 0));
      continue;
    }
    for (int64_t k = wait; k < wait + 200; ++k) {
      CHECK_FALSE(interference.decide(now(100 + k, 1)));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

TEST_CASE("a rank's work by the profile: passes of its stages and its part of updates") {
  const Interference interference = policy();
  const Plan quiet = best(chain(), 2);
  const double first = interference.work_seconds(quiet, quiet.stages[0].ranks[0]);
  CHECK(first == Approx(6 * 0.003));
  Plan all = quiet;
  all.stages.resize(1);
  all.stages[0].nodes.insert(all.stages[0].nodes.end(), quiet.stages[1].nodes.begin(),
                             quiet.stages[1].nodes.end());
  all.stages[0].ranks = {0, 1};
  CHECK(interference.work_seconds(all, 1) == Approx(2 * first));
  all.stages[0].split = {1, 3};
  CHECK(interference.work_seconds(all, 1) == Approx(1.5 * first));
  CHECK(interference.work_seconds(all, 2) == 0);
  all.stages[0].nodes[0] = "not there";
  CHECK(interference.work_seconds(all, 1) == 0);
}

TEST_CASE("what does not gain more than it costs is left alone") {
  const Plan quiet = best(chain(), 2);
  {
    Interference interference = policy();
    CHECK(asked(interference, at(100, quiet, 5000, {1, 3})));
  }
  const auto decides = [&](RunNow now) {
    Interference interference = policy();
    for (int i = 0; i < 400; ++i, ++now.minibatch) {
      if (interference.decide(now)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  };
  CHECK_FALSE(decides(at(100, quiet, 10, {1, 3})));    // the run is nearly over
  CHECK_FALSE(decides(at(100, quiet, 5000, {2, 2})));  // nobody is slower than another
}

TEST_CASE("no more changes than most-an-hour says") {
  Interference interference(chain(), links(2), 1e9, false, 2);
  Plan plan = best(chain(), 2);
  for (int64_t event = 0; event < 2; ++event) {
    const auto change = asked(interference, at(100 + event, plan, 9900, {1, event == 0 ? 3.0 : 1.0}));
    REQUIRE(change);
    plan = change->plan;
  }
  RunNow third = at(300, plan, 9700, {1, 3});
  for (int i = 0; i < 400; ++i, ++third.minibatch) {
    CHECK_FALSE(interference.decide(third));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST_CASE("a change costs what moves, on the links there are") {
  const Plan quiet = best(chain(), 2);
  const Replanned fast = plan_again(chain(), links(2), quiet, {1, 3});
  // What a rank has not had comes from the other one: weights and momentum, 200 MB a node.
  int64_t most = 0;
  for (const Stage& stage : fast.plan.stages) {
    const auto had = std::find_if(quiet.stages.begin(), quiet.stages.end(),
                                  [&](const Stage& other) { return other.ranks == stage.ranks; });
    REQUIRE(had != quiet.stages.end());
    int64_t lacks = 0;
    for (const std::string& node : stage.nodes)
      lacks += std::find(had->nodes.begin(), had->nodes.end(), node) == had->nodes.end();
    most = std::max(most, lacks);
  }
  CHECK(most >= 3);
  CHECK(fast.move_seconds == Approx(0.2 * static_cast<double>(most)).epsilon(0.01));
  const Replanned slow = plan_again(chain(), flat_topology(2, 1e7, 20e-6, 0), quiet, {1, 3});
  CHECK(change_seconds(quiet, slow.move_seconds, slow.now_seconds) >
        change_seconds(quiet, fast.move_seconds, fast.now_seconds) + 50);
  const Replanned same = plan_again(chain(), links(2), quiet, {1, 1});
  CHECK(same.move_seconds == 0);
}

TEST_CASE("with when=epoch the policy waits for the end of the epoch") {
  Interference interference = policy(true);
  const Plan quiet = best(chain(), 2);
  CHECK_FALSE(interference.decide(at(100, quiet, 9900, {1, 3})));
  for (int64_t k = 101; k < 400; ++k) {
    CHECK_FALSE(interference.decide(at(k, quiet, 10000 - k, {1, 3})));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(asked(interference, at(1000, quiet, 9000, {1, 3}), 0));
}

TEST_CASE("with decide=predict cores decide, before anything was measured, and once for one event") {
  const auto row = std::find_if(replanners().begin(), replanners().end(),
                                [](const ReplannerRow& replanner) { return replanner.predicts; });
  REQUIRE(row != replanners().end());
  Interference interference(chain(), links(2), 1e9, false, Interference::kMostAnHour, *row,
                            waiting_predictor());
  const auto seen = [](RunNow now, double waited) {
    now.cores = {{waiting_sample(0.01)}, {waiting_sample(waited)}};
    return now;
  };
  const Plan quiet = best(chain(), 2);
  const auto slow = asked(interference, seen(at(100, quiet, 9900, {1, 1}), 2));
  REQUIRE(slow);
  CHECK(nodes_of_rank(slow->plan, 1) == 3);
  CHECK(slow->reason == "interference, predict: rank 1 computes 3 times as long");
  for (int64_t k = 101; k < 160; ++k) {
    CHECK_FALSE(interference.decide(seen(at(k, slow->plan, 10000 - k, {1, 3}), 2)));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto back = asked(interference, seen(at(200, slow->plan, 9800, {1, 3}), 0.01));
  REQUIRE(back);
  CHECK(nodes_of_rank(back->plan, 1) == 6);
}

TEST_CASE("a link that has become slow is planned around, once, with what its messages took") {
  Interference interference(chain(), links(3), 1e9, false);
  const Plan quiet = best(chain(), 3);
  REQUIRE(quiet.stages.size() == 3);
  RunNow now = at(100, quiet, 9900, {1, 1, 1});
  // 60 ms for the kilobyte from the first stage to the second: far longer than any stage computes.
  LinkChange slow{quiet.stages[0].ranks[0],
                  quiet.stages[1].ranks[0],
                  {.found = 90, .after_seconds = 0.06, .slowdown = 50}};
  now.slow_links = {slow};
  const auto decision = asked(interference, now);
  REQUIRE(decision);
  CHECK_THAT(decision->reason, Catch::Contains("the link from rank 0 to rank 1 takes 50 times as long"));
  // Nobody sends from rank 0 to rank 1 any more.
  for (size_t s = 0; s + 1 < decision->plan.stages.size(); ++s) {
    CHECK_FALSE((decision->plan.stages[s].ranks[0] == 0 && decision->plan.stages[s + 1].ranks[0] == 1));
    CHECK_FALSE((decision->plan.stages[s + 1].ranks[0] == 0 && decision->plan.stages[s].ranks[0] == 1));
  }
  RunNow after{.minibatch = 200, .plan = decision->plan, .first_plan = quiet, .speeds = now.speeds};
  after.minibatches_left = 9800;
  after.slow_links = {slow};
  for (int i = 0; i < 100; ++i, ++after.minibatch) {
    CHECK_FALSE(interference.decide(after));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_CASE("topology and bandwidth of a policy say the same, so one of them is refused") {
  const std::string both = ":profile=p.json,topology=t.json,bandwidth=1GB/s";
  for (const std::string& said : {error_of<InputError>([&] { make_adapt_policy("interference" + both); }),
                                  error_of<InputError>([&] { make_adapt_policy("freeze" + both); }),
                                  error_of<InputError>([&] { RecoveryPolicy("continue" + both); })}) {
    CAPTURE(said);
    CHECK(said.find("': bandwidth: not together with topology") != std::string::npos);
  }
}

TEST_CASE("the options of interference are read strictly") {
  const auto refusal = [](const std::string& adapt) {
    return error_of<InputError>([&] { make_adapt_policy(adapt); });
  };
  CHECK(refusal("interference").find("profile") != std::string::npos);
  CHECK(refusal("interference:profile=nowhere.json").find("nowhere.json") != std::string::npos);
  CHECK(refusal("interference:profile=x,decide=guess").find("decide") != std::string::npos);
  CHECK(refusal("interference:profile=x,updates=never").find("updates") != std::string::npos);
  CHECK(refusal("interference:profile=x,when=later").find("when") != std::string::npos);
  CHECK(refusal("interferense:profile=x").find("did you mean 'interference'?") != std::string::npos);
}

}  // namespace pipewright::testing
