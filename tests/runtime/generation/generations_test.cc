// Plans that change while a model is trained: ranks are threads, weights and optimizer state really travel.
// PIPEWRIGHT_GENERATION_CASES sets how many sequences of plans are tried.
#include "tests/runtime/generation/generations.h"

#include <algorithm>
#include <set>

#include "graph/error.h"
#include "graph/model_layers.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/coordinator/run_points.h"
#include "runtime/schedule/plan_check.h"
#include "tests/runtime/kept_prefixes.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

int64_t world_of(const std::vector<PlanSpans>& parts) {
  int64_t ranks = 1;
  for (const PlanSpans& part : parts) ranks = std::max(ranks, part.plan.world_size);
  return ranks;
}

// Each plan trains its spans; a rank without a place in one goes to the next. `kept`: what frozen layers make
// is kept there.
GenerationsRun run_generations(const Model& model, const std::vector<PlanSpans>& parts,
                               const TrainingRules& rules, const std::vector<MinibatchFields>& minibatches,
                               const std::string& transport, KeptPrefixes* kept = nullptr) {
  Generations all(model, rules, minibatches, world_of(parts));
  return all.run(transport, [&](int64_t rank, Transport* links) {
    NamedState state;
    std::unique_ptr<Worker> worker;
    for (size_t g = 0; g < parts.size(); ++g) {
      worker.reset();
      worker = all.start(rank, links, parts[g].plan, g > 0 ? &parts[g - 1].plan : nullptr, state);
      if (!worker) continue;
      const WorkerHooks hooks = all.hooks(*worker);
      std::unique_ptr<CachedPrefix> prefix;
      if (kept) {
        std::vector<const Plan*> before;
        for (size_t b = 0; b < g; ++b) before.push_back(&parts[b].plan);
        prefix = kept->cut(frozen_model(model, parts[g].plan.frozen_layers), parts[g].plan, before, *worker);
      }
      for (const Span& span : parts[g].spans) KeptPrefixes::train(*worker, prefix.get(), span, hooks);
      if (kept) kept->add(prefix.get());
      state = state_of(*worker, parts[g].spans.empty() ? 0 : parts[g].spans.back().end());
    }
    all.end(rank, parts.back().plan, worker.get(), std::move(state));
  });
}

struct RandomChanges {
  Model model;
  TrainingRules rules;
  std::vector<PlanSpans> parts;
  int64_t minibatches = 0;

  // From plan to plan as many layers are frozen, or more; under the first one perhaps some already.
  void freeze(RandomJobs& jobs) {
    const auto layers = static_cast<int64_t>(model_layers(model.graph).size());
    int64_t frozen = jobs.chance(30) ? jobs.between(1, layers) : 0;
    for (PlanSpans& part : parts) {
      part.plan = frozen_plan(with_used_depths(part.plan), model.graph, frozen);
      frozen = jobs.between(frozen, jobs.chance(50) ? layers : frozen);
    }
  }
};

// Two to four plans; a change may come anywhere, in the middle of a round too.
RandomChanges random_changes(uint64_t seed, bool freezes = false) {
  RandomJobs jobs(seed);
  RandomJob job = jobs.next(kMostRanks);
  RandomChanges c{job.model, job.rules, {}, 0};
  for (int64_t n = jobs.between(2, 4); n > 0; --n) {
    PlanSpans part{c.parts.empty() ? job.plan : jobs.other_plan(job, kMostRanks), {}};
    for (int64_t spans = jobs.between(1, 2); spans > 0; --spans) {
      part.spans.push_back({c.minibatches, jobs.between(1, 9)});
      c.minibatches = part.spans.back().end();
    }
    c.parts.push_back(std::move(part));
  }
  c.rules.total_minibatches = c.minibatches;
  if (freezes) c.freeze(jobs);
  return c;
}

// Fails to carry one byte of a message.
class Damaging : public Transport {
 public:
  explicit Damaging(Transport& inner) : inner_(inner) {}
  int64_t rank() const override { return inner_.rank(); }
  int64_t world_size() const override { return inner_.world_size(); }
  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    if (tensor.numel() > 1000) {
      tensor = tensor.clone();
      static_cast<uint8_t*>(tensor.data_ptr())[tensor.numel() / 2] ^= 1;
    }
    return inner_.send(tensor, peer, tag);
  }
  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return inner_.receive(std::move(tensor), peer, tag);
  }
  void abort(const std::string& why) override { inner_.abort(why); }

 private:
  Transport& inner_;
};

void check_same(const NamedState& got, const NamedState& expected) {
  CHECK(got.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    INFO(name);
    REQUIRE(got.count(name) == 1);
    CHECK(got.at(name).equal(tensor));
  }
}

}  // namespace

TEST_CASE("random plans one after the other: every loss, weight and buffer is the serial reference's") {
  at::set_num_threads(1);
  const std::vector<std::string> transports = {"local", "shm",    "tiny-shm", "gloo",
                                               "mixed", "staged", "blocks"};
  for (uint64_t seed = 0; seed < cases_of(30); ++seed) {
    const RandomChanges c = random_changes(seed);
    const std::string& transport = transports[seed % transports.size()];
    CAPTURE(seed, transport, words(c.parts), c.rules.optimizer.name, c.rules.gradient_accumulation);
    const auto minibatches = random_minibatches(c.model.graph, c.minibatches, 5);
    const int64_t first = c.parts.front().spans.front().first;
    const ReferenceResult expected = train_serially(
        c.model, c.parts, c.rules, [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
    const GenerationsRun run = run_generations(c.model, c.parts, c.rules, minibatches, transport);
    CHECK(std::vector<double>(run.losses.begin() + first, run.losses.end()) == expected.losses);
    for (size_t s = 0; s < c.parts.back().plan.stages.size(); ++s)
      CHECK(run.last.buffers[s].size() == expected.buffers[s].size());
    check_state(run.last, expected);
    for (const int times : run.forwards) CHECK(times == 1);  // no minibatch twice, none left out
  }
}

TEST_CASE(
    "random plans that freeze layers: all as the serial reference, kept values or not, and what is frozen "
    "stays, to the bit") {
  at::set_num_threads(1);
  const std::vector<std::string> transports = {"local", "shm", "staged"};
  PrefixFigures figures;
  for (uint64_t seed = 500; seed < 500 + cases_of(30); ++seed) {
    const RandomChanges c = random_changes(seed, /*freezes=*/true);
    const std::string& transport = transports[seed % transports.size()];
    CAPTURE(seed, transport, words(c.parts), c.rules.optimizer.name, c.rules.gradient_accumulation);
    // They come again, so that what is kept of them is found.
    auto minibatches = random_minibatches(c.model.graph, c.minibatches, 5);
    const auto period = static_cast<size_t>(3 + seed % 3);
    for (size_t k = period; k < minibatches.size(); ++k) minibatches[k] = minibatches[k - period];
    std::optional<KeptPrefixes> kept;
    if (seed % 4 < 3 && minibatches.size() > period)
      kept.emplace(c.model.graph, minibatches, static_cast<int64_t>(period),
                   seed % 4 == 0 ? 40'000 : 1 << 20);
    const int64_t first = c.parts.front().spans.front().first;
    const auto fields = [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; };
    const ReferenceResult expected = train_serially(c.model, c.parts, c.rules, fields);
    const GenerationsRun run =
        run_generations(c.model, c.parts, c.rules, minibatches, transport, kept ? &*kept : nullptr);
    if (kept) figures += kept->figures();
    CHECK(std::vector<double>(run.losses.begin() + first, run.losses.end()) == expected.losses);
    check_state(run.last, expected);
    for (const int times : run.forwards) CHECK(times == 1);
    // What the last plan takes as frozen is what it was when a plan first did, buffers too; no optimizer
    // state is left of it.
    const Graph last = frozen_graph(c.model.graph, c.parts.back().plan.frozen_layers);
    for (const Parameter& parameter : last.parameters) {
      if (parameter.trainable) continue;
      for (const NamedState& state : run.states)
        CHECK(state.count(slot_tensor(kUpdatesSlot, parameter.name)) == 0);
    }
    for (size_t g = 0; g < c.parts.size(); ++g) {
      const Graph graph = frozen_graph(c.model.graph, c.parts[g].plan.frozen_layers);
      const std::vector<PlanSpans> until(c.parts.begin(), c.parts.begin() + static_cast<long>(g));
      if (g == 0) continue;
      const ReferenceResult then = train_serially(c.model, until, c.rules, fields);
      for (const std::string& name : frozen_buffers(graph, c.parts[g].plan.frozen_layers)) {
        INFO(g << " " << name);
        for (size_t s = 0; s < run.last.buffers.size(); ++s) {
          for (const auto& replica : run.last.buffers[s]) {
            const auto found = replica.find(name);
            if (found == replica.end()) continue;
            for (const auto& of_stage : then.buffers)
              if (of_stage[0].count(name)) CHECK(found->second.equal(of_stage[0].at(name)));
          }
        }
      }
      for (const Parameter& parameter : graph.parameters) {
        INFO(g << " " << parameter.name);
        if (parameter.trainable) continue;
        for (const at::Tensor& copy : run.last.weights.at(parameter.name))
          CHECK(copy.equal(then.weights.at(parameter.name)));
      }
    }
  }
  CHECK(figures.fetched > 0);
  CHECK(figures.deepened > 0);
}

TEST_CASE("changing to the same plan is a drain") {
  at::set_num_threads(1);
  for (uint64_t seed = 100; seed < 100 + cases_of(20); ++seed) {
    const RandomChanges c = random_changes(seed);
    const Plan& plan = c.parts.front().plan;
    CAPTURE(seed, words(c.parts));
    std::vector<PlanSpans> same, drained = {{plan, {}}};
    for (const PlanSpans& part : c.parts) {
      for (const Span& span : part.spans) {
        same.push_back({plan, {span}});
        drained[0].spans.push_back(span);
      }
    }
    const auto minibatches = random_minibatches(c.model.graph, c.minibatches, 5);
    const GenerationsRun changed = run_generations(c.model, same, c.rules, minibatches, "local");
    const GenerationsRun expected = run_generations(c.model, drained, c.rules, minibatches, "local");
    CHECK(changed.losses == expected.losses);
    for (size_t rank = 0; rank < expected.states.size(); ++rank)
      check_same(changed.states[rank], expected.states[rank]);
    CHECK(state_moves(c.model.graph, c.rules.optimizer, plan, plan).empty());
  }
}

TEST_CASE("to other plans and back without a step between: every tensor is what it was, on every rank") {
  at::set_num_threads(1);
  for (uint64_t seed = 200; seed < 200 + cases_of(20); ++seed) {
    RandomChanges c = random_changes(seed);
    CAPTURE(seed, words(c.parts));
    const PlanSpans first{c.parts.front().plan, {{0, 7}}};
    std::vector<PlanSpans> there_and_back = {first};
    for (size_t g = 1; g < c.parts.size(); ++g) there_and_back.push_back({c.parts[g].plan, {}});
    there_and_back.push_back({first.plan, {}});
    c.rules.total_minibatches = 7;
    const auto minibatches = random_minibatches(c.model.graph, 7, 5);
    const GenerationsRun back =
        run_generations(c.model, there_and_back, c.rules, minibatches, seed % 2 ? "shm" : "local");
    const GenerationsRun expected = run_generations(c.model, {first}, c.rules, minibatches, "local");
    for (size_t rank = 0; rank < expected.states.size(); ++rank)
      check_same(back.states[rank], expected.states[rank]);
  }
}

TEST_CASE("with flush and without replicas any sequence of plans is one process, bit for bit") {
  at::set_num_threads(1);
  for (uint64_t seed = 300; seed < 300 + cases_of(20); ++seed) {
    RandomJobs jobs(seed);
    RandomJob job = jobs.next(kMostRanks);
    job.rules.gradient_accumulation = 1;
    job.rules.learning_rate_scaling = "none";
    job.rules.gradient_clipping_norm = 0;
    if (job.model.graph.parameters.front().name == "shared.weight") continue;  // sums over stages
    const int64_t microbatches = jobs.between(1, 4);
    const auto flush = [&](size_t stages) {
      const std::string schedule = jobs.one_of<std::string>({"gpipe", "1f1b-flush", "zb-h1"});
      Plan plan = with_schedule(
          plan_of(job.model, std::vector<int64_t>(stages, 1), std::vector<int64_t>(stages, microbatches)),
          schedule, "flush", microbatches);
      jobs.renumber_ranks(plan);
      return plan;
    };
    std::vector<PlanSpans> parts;
    int64_t end = 0;
    for (int n = 0; n < 4; ++n) {
      parts.push_back(
          {flush(static_cast<size_t>(jobs.between(1, 4))), {{end, microbatches * jobs.between(1, 3)}}});
      end = parts.back().spans.back().end();
    }
    job.rules.total_minibatches = end;
    CAPTURE(seed, words(parts));
    const auto minibatches = random_minibatches(job.model.graph, end, 5);
    const GenerationsRun run = run_generations(job.model, parts, job.rules, minibatches, "local");
    const ReferenceResult one = train_serially(job.model, flush(1), job.rules, {{0, end}}, [&](int64_t k) {
      return minibatches[static_cast<size_t>(k)];
    });
    CHECK(run.losses == one.losses);
    for (const auto& [name, copies] : run.last.weights) CHECK(copies.at(0).equal(one.weights.at(name)));
  }
}

TEST_CASE("only what changes its owner moves, in one message for each pair of ranks") {
  for (uint64_t seed = 400; seed < 500; ++seed) {
    const RandomChanges c = random_changes(seed);
    CAPTURE(seed, words(c.parts));
    const Plan& last = c.parts[0].plan;
    const Plan& next = c.parts[1].plan;
    const auto holds = [&](const Plan& plan, int64_t rank) {
      std::set<std::string> names;
      for (const Stage& stage : plan.stages) {
        if (std::find(stage.ranks.begin(), stage.ranks.end(), rank) == stage.ranks.end()) continue;
        for (const Node& node : c.model.graph.nodes) {
          if (std::find(stage.nodes.begin(), stage.nodes.end(), node.name) == stage.nodes.end()) continue;
          for (const std::string& name : node.reads())
            for (const Parameter& parameter : c.model.graph.parameters)
              if (parameter.name == name) names.insert(name);
        }
      }
      return names;
    };
    std::set<std::pair<int64_t, int64_t>> pairs;
    std::map<int64_t, std::set<std::string>> comes;  // parameters, by rank
    for (const StateMove& move : state_moves(c.model.graph, c.rules.optimizer, last, next)) {
      CHECK(move.from != move.to);
      CHECK(pairs.insert({move.from, move.to}).second);
      const auto sent = holds(last, move.from);
      for (const StatePart& part : move.parts) {
        const bool parameter = std::any_of(c.model.graph.parameters.begin(), c.model.graph.parameters.end(),
                                           [&](const Parameter& p) { return p.name == part.name; });
        if (!parameter) continue;
        CHECK(sent.count(part.name) == 1);
        CHECK(comes[move.to].insert(part.name).second);
      }
    }
    for (int64_t rank = 0; rank < next.world_size; ++rank) {
      std::set<std::string> lacks;
      const auto before = holds(last, rank);
      for (const std::string& name : holds(next, rank))
        if (before.count(name) == 0) lacks.insert(name);
      CHECK(comes[rank] == lacks);
    }
  }
}

TEST_CASE("a message that does not come as it was sent ends the change, and the old state is whole") {
  at::set_num_threads(1);
  RandomJobs jobs(7);
  RandomJob job = jobs.next(kMostRanks);
  job.rules = momentum_rules();
  const Plan last = plan_of(job.model, {1}, {1});
  Plan next = plan_of(job.model, {1, 1}, {2, 1});
  std::swap(next.stages[0].ranks, next.stages[1].ranks);
  const auto moves = state_moves(job.model.graph, job.rules.optimizer, last, next);
  REQUIRE(moves.size() == 1);
  REQUIRE(moves[0].bytes() > 1000);
  for (const bool stops : {false, true}) {
    std::string error;
    const auto change = [&](int64_t rank, Transport& links) {
      at::set_num_threads(1);
      if (rank == 1) {
        move_state(&links, moves, {}, [&] {
          if (stops) throw PeerError("a test stops here");
        });
        return;
      }
      Worker worker(job.model, last, 0, nullptr, job.rules);
      const NamedState own = state_of(worker, 0);
      NamedState copy;
      for (const auto& [name, tensor] : own) copy[name] = tensor.clone();
      Damaging damaging(links);
      try {
        move_state(stops ? &links : &damaging, moves, own);
      } catch (const std::exception& failed) {
        error = failed.what();
      }
      check_same(own, copy);
    };
    if (stops) {
      CHECK_THROWS_AS(spawn(make_world("local", 2), change), PeerError);
    } else {
      spawn(make_world("local", 2), change);
    }
    INFO(error);
    if (stops) CHECK(!error.empty());
    if (!stops) CHECK_THAT(error, Catch::Contains("have not come as they were sent"));
  }
}

TEST_CASE("intervals go on across plans: each multiple has one checkpoint, with the plan that trains it") {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    RandomJobs jobs(seed);
    RunLength whole;
    whole.minibatches = jobs.between(1, 60);
    whole.minibatches_per_epoch = jobs.between(1, 25);
    whole.evaluate_every = jobs.between(1, 12);
    CheckpointSettings settings;
    settings.every_minibatches = jobs.between(1, 12);
    std::vector<RunLength> plans;
    for (int64_t begin = 0; begin < whole.minibatches;) {
      plans.push_back(whole);
      plans.back().period = jobs.between(1, 6);
      plans.back().plan_begin = begin;
      begin += jobs.between(1, 20);
      if (begin < whole.minibatches) plans.back().plan_end = begin;
    }
    // Where each multiple has its stop, written down plainly.
    const auto stop_of = [&](int64_t multiple) {
      const auto plan = std::find_if(plans.begin(), plans.end(),
                                     [&](const RunLength& p) { return multiple <= p.plan_end; });
      const int64_t epoch_end =
          ((multiple - 1) / whole.minibatches_per_epoch + 1) * whole.minibatches_per_epoch;
      const int64_t round_end = (multiple + plan->period - 1) / plan->period * plan->period;
      return std::min({round_end, epoch_end, whole.minibatches, plan->plan_end});
    };
    std::set<int64_t> checkpoints{whole.minibatches}, evaluations;
    for (int64_t m = settings.every_minibatches; m <= whole.minibatches; m += settings.every_minibatches)
      checkpoints.insert(stop_of(m));
    for (int64_t m = whole.evaluate_every; m <= whole.minibatches; m += whole.evaluate_every) {
      const int64_t n = stop_of(m);
      if (n < whole.minibatches && n % whole.minibatches_per_epoch != 0) evaluations.insert(n);
    }
    CAPTURE(seed, whole.minibatches, whole.minibatches_per_epoch, whole.evaluate_every,
            settings.every_minibatches, plans.size());
    std::set<int64_t> due, evaluated, ends;
    int64_t done = 0;
    for (const RunLength& plan : plans) {
      const int64_t end = std::min(plan.plan_end, whole.minibatches);
      while (done < end) {
        const Span span = span_from(done, plan);
        REQUIRE(span.first == done);
        REQUIRE(span.end() <= end);
        for (const int64_t n : checkpoints_within(span, settings, plan.period, plan)) due.insert(n);
        done = span.end();
        ends.insert(done);
        if (checkpoint_due(done, settings, plan.period, plan)) due.insert(done);
        if (evaluation_within_epoch(done, plan)) evaluated.insert(done);
      }
      CHECK(done == end);
    }
    CHECK(due == checkpoints);
    CHECK(evaluated == evaluations);
    for (const int64_t n : evaluations) CHECK(ends.count(n) == 1);
  }
}
