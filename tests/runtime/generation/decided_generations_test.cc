// Plans that are decided on the way, while minibatches are in flight: ranks are threads that agree over a
// store where to drain.
#include "graph/error.h"
#include "runtime/coordinator/run_points.h"
#include "tests/runtime/control/agreeing_rank.h"
#include "tests/runtime/generation/generations.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

struct DecidedRun {
  GenerationsRun run;
  std::vector<PlanSpans> followed;  // which plan has trained what
};

// As Training does it, but that a plan is said by its number: rank 0 goes to the next of the plans when it
// likes, while minibatches are in flight.
class Decided {
 public:
  Decided(const Model& model, const std::vector<Plan>& plans, const TrainingRules& rules, RunLength whole,
          const std::vector<MinibatchFields>& minibatches)
      : plans_(plans), rules_(rules), whole_(whole), all_(model, rules, minibatches, world_of(plans)) {}

  static int64_t world_of(const std::vector<Plan>& plans) {
    int64_t ranks = 1;
    for (const Plan& plan : plans) ranks = std::max(ranks, plan.world_size);
    return ranks;
  }

  DecidedRun run(const std::string& transport, uint64_t seed) {
    seed_ = seed;
    DecidedRun decided;
    decided.run = all_.run(transport, [&](int64_t rank, Transport* links) {
      try {
        AgreeingRank stop({rank, world_of(plans_), 0, /*heeds_signals=*/false, [&](int64_t last) {
                             return unplanned_stop(last, shape(current_), length(current_));
                           }});
        std::optional<Control> control;
        if (links) control.emplace(*this, stop);
        train_rank(rank, links, stop);
      } catch (...) {
        failed_ = true;
        throw;
      }
    });
    decided.followed = std::move(followed_);
    return decided;
  }

 private:
  // The thread that talks to the others.
  struct Control {
    Control(Decided& decided, AgreeingRank& stop)
        : decided_(decided), thread_([&] {
            Store store = Store::join("127.0.0.1", decided.server_.port(), std::chrono::seconds(20));
            while (!end_) {
              stop.tick(store);
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
          }) {}
    // Not before all ranks are at their end: they may wait for this one's answer.
    ~Control() {
      ++decided_.ended_;
      while (decided_.ended_ < world_of(decided_.plans_) && !decided_.failed_)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      end_ = true;
      thread_.join();
    }
    Decided& decided_;
    std::atomic<bool> end_ = false;
    std::thread thread_;
  };

  PipelineShape shape(size_t g) const { return shape_of(plans_[g], rules_.gradient_accumulation); }
  RunLength length(size_t g) const {
    RunLength length = whole_;
    length.period = round_period(shape(g));
    return length;
  }
  void check() const {
    if (failed_) throw PeerError("another rank has failed");
  }

  void train_rank(int64_t rank, Transport* links, AgreeingRank& agreeing) {
    StandingOrders& stop = agreeing.orders();
    NamedState state;
    int64_t done = 0;
    for (size_t g = 0;; ++g) {
      const auto worker = all_.start(rank, links, plans_[g], g > 0 ? &plans_[g - 1] : nullptr, state);
      if (g > 0) stop.go_on();
      if (worker) {
        train(rank, g, *worker, agreeing, done);
        state = state_of(*worker, done);
      } else {
        while (stop.stop_before() == StandingOrders::kNever && !over_) {
          check();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        done = std::min(stop.stop_before(), whole_.minibatches);
      }
      if (done < whole_.minibatches) {
        if (stop.change() != std::to_string(g + 1)) throw std::runtime_error("not what was proposed");
        continue;
      }
      if (rank == 0) over_ = true;
      all_.end(rank, plans_[g], worker.get(), std::move(state));
      return;
    }
  }

  void train(int64_t rank, size_t g, Worker& worker, AgreeingRank& agreeing, int64_t& done) {
    StandingOrders& stop = agreeing.orders();
    std::mt19937_64 random(seed_ + g);
    if (rank == 0) {
      current_ = g;
      followed_.push_back({plans_[g], {}});
    }
    WorkerHooks hooks = all_.hooks(worker);
    hooks.stop_before = [&] { return stop.stop_before(); };
    hooks.observers.push_back(std::make_shared<Watch>([&](const Action& action) {
      check();
      if (action.kind != ActionKind::kForward) return;
      if (rank == 0 && g + 1 < plans_.size() && !stop.under_way() && random() % 6 == 0)
        agreeing.propose(std::to_string(g + 1));
      if (action.stage_or(worker.stage().stage()) == 0) stop.enter(action.index, [this] { check(); });
    }));
    while (done < std::min(whole_.minibatches, stop.stop_before())) {
      const Span span = span_from(done, length(g));
      worker.train(span, hooks);
      done = std::min(span.end(), stop.stop_before());
      if (done < span.end()) worker.end_span(done);
      if (rank == 0) followed_.back().spans.push_back({span.first, done - span.first});
    }
  }

  const std::vector<Plan>& plans_;
  const TrainingRules& rules_;
  const RunLength whole_;
  uint64_t seed_ = 0;
  Store server_ = Store::serve(0);
  Generations all_;
  std::atomic<bool> over_ = false, failed_ = false;
  std::atomic<int64_t> ended_ = 0;
  std::atomic<size_t> current_ = 0;  // as rank 0 has it, for its Control
  std::vector<PlanSpans> followed_;  // rank 0's
};

}  // namespace

TEST_CASE(
    "plans that are decided on the way: the run is the serial reference's that follows the same plans at the "
    "same minibatches") {
  at::set_num_threads(1);
  const std::vector<std::string> transports = {"local", "shm",    "tiny-shm", "gloo",
                                               "mixed", "staged", "blocks"};
  int64_t changes = 0;
  for (uint64_t seed = 500; seed < 500 + cases_of(30); ++seed) {
    RandomJobs jobs(seed);
    RandomJob job = jobs.next(kMostRanks);
    std::vector<Plan> plans = {job.plan};
    for (int64_t n = jobs.between(1, 3); n > 0; --n)
      plans.push_back(n == 2 ? plans.back() : jobs.other_plan(job, kMostRanks));
    RunLength whole;
    whole.minibatches = job.rules.total_minibatches = jobs.between(20, 90);
    whole.minibatches_per_epoch = jobs.between(7, 60);
    job.rules.optimizer.learning_rate /= 8;  // longer than the other runs, and none is to diverge
    const std::string& transport = transports[seed % transports.size()];
    const auto minibatches = random_minibatches(job.model.graph, whole.minibatches, 5);
    const DecidedRun decided = Decided(job.model, plans, job.rules, whole, minibatches).run(transport, seed);
    CAPTURE(seed, transport, words(decided.followed), job.rules.optimizer.name,
            job.rules.gradient_accumulation);
    changes += static_cast<int64_t>(decided.followed.size()) - 1;
    const ReferenceResult expected = train_serially(job.model, decided.followed, job.rules, [&](int64_t k) {
      return minibatches[static_cast<size_t>(k)];
    });
    CHECK(decided.run.losses == expected.losses);
    check_state(decided.run.last, expected);
    for (const int times : decided.run.forwards) CHECK(times == 1);
  }
  std::printf("%ld changes were decided on the way\n", changes);
  CHECK(changes > static_cast<int64_t>(cases_of(30)) / 2);
}
