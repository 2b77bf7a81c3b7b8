// Rank 0's decisions and what ranks make of them, in virtual time: messages take their time, come twice, and
// ranks are where they are when something happens.
#include "runtime/coordinator/coordinator.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <functional>
#include <queue>
#include <random>
#include <sstream>

#include "graph/error.h"
#include "runtime/coordinator/follower.h"
#include "runtime/coordinator/training_loop.h"

using namespace pipewright;

namespace {

int64_t cases_of(int64_t usual) {
  const char* asked = std::getenv("PIPEWRIGHT_COORDINATOR_CASES");
  return asked ? std::atoll(asked) : usual;
}

// A plan, as far as it matters: the first `ranks` have a part, of them the first `entries` the first stage.
struct SmallPlan {
  int64_t ranks = 1, entries = 1, period = 1;

  std::string text() const {
    return std::to_string(ranks) + " " + std::to_string(entries) + " " + std::to_string(period);
  }
  static SmallPlan of(const std::string& text) {
    SmallPlan plan;
    std::istringstream(text) >> plan.ranks >> plan.entries >> plan.period;
    return plan;
  }
};

// What a rank has lived through.
struct Life {
  std::vector<std::pair<int64_t, std::string>> changes;  // before which minibatch which plan came into force
  int64_t stopped_before = -1;                           // by a signal
  bool over = false;                                     // it has come to its end
  // By generation: what the ranks with a part in the plan do together, in order.
  std::map<size_t, std::vector<std::string>> together;
  std::map<std::string, int64_t> written;      // "kept 12": how often the checkpoint of a minibatch
  std::map<int64_t, int64_t> told, evaluated;  // by epoch: minibatches of those that were told, evaluations
};

class History {
 public:
  explicit History(uint64_t seed) : random_(seed) {
    ranks_ = between(1, 6);
    minibatches_ = between(1, 60);
    first_ = one_in(3) ? between(0, minibatches_ - 1) : 0;
    draw_rules();
    plans_ = {{first_, draw_plan(one_in(2) ? ranks_ : 0)}};
    // Under a policy: what the past of the run has decided.
    if (policy_ == Policy::kNone || one_in(3)) {
      for (int64_t first = first_ + between(1, 20); first < minibatches_; first += between(1, 20))
        plans_.emplace_back(first, draw_plan(0));
    }
    planned_ = plans_.size() - 1;
    wants_norms_ = one_in(2);
    changes_left_ = between(0, 4);
    slow_ = one_in(2) ? 20 : 2;
    coordinator_.emplace(CoordinatorRules{ranks_, heeds_signals_ = !one_in(5)});
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      LoopStart start{first_, first_, first_ / length_.minibatches_per_epoch, {}};
      for (const auto& plan : plans_) start.plan_begins.push_back(plan.first);
      each_.emplace_back(first_, TrainingLoop(rules_, start));
    }
    for (int64_t rank = 0; rank < ranks_; ++rank) begin_generation(rank, 0);
    begun_.resize(static_cast<size_t>(minibatches_));
  }

  void run() {
    for (int64_t rank = 0; rank < ranks_; ++rank) later(rank, between(0, 30));
    if (one_in(2)) {  // on one rank, or on some of them
      const double when = static_cast<double>(between(0, 5 * (minibatches_ - first_)));
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        if (rank > 0 && one_in(2)) continue;
        const int64_t which = one_in(2) ? rank : between(0, ranks_ - 1);
        const int signal = one_in(2) ? SIGTERM : SIGINT;
        at(when + static_cast<double>(between(0, slow_)), [this, which, signal] {
          for (const AgreementMessage& said : each_[index(which)].follower.take_signal(signal))
            say(which, said);
        });
      }
    }
    while (!queue_.empty() && ++steps_ < 200'000) {
      const auto next = queue_.top().what;
      now_ = queue_.top().when;
      queue_.pop();
      next();
    }
  }

  void check() const {
    REQUIRE(steps_ < 200'000);
    const Life& first = each_[0].life;
    for (const Rank& rank : each_) {
      REQUIRE(rank.life.over);
      CHECK(rank.life.changes == first.changes);
      CHECK(rank.life.stopped_before == first.stopped_before);
      for (const auto& [generation, together] : rank.life.together)
        CHECK(together == first.together.at(generation));
    }
    const int64_t end = first.stopped_before >= 0 ? first.stopped_before : minibatches_;
    CHECK(end > first_);
    size_t plan = 0;
    for (int64_t k = first_; k < minibatches_; ++k) {
      while (plan < first.changes.size() && first.changes[plan].first <= k) ++plan;
      // Once, under the plan in force; behind the end none.
      CHECK(begun_[index(k)] == (k < end ? std::vector<size_t>{plan} : std::vector<size_t>{}));
    }
    if (first.stopped_before >= 0) {
      // Where a round of the plan in force ends, or an epoch.
      const int64_t period = plans_[first.changes.size()].second.period;
      CHECK(
          (first.stopped_before % period == 0 || first.stopped_before % length_.minibatches_per_epoch == 0));
    }
    check_epochs(end);
    check_checkpoints(end);
    for (size_t i = 1; i < first.changes.size(); ++i)
      CHECK(first.changes[i - 1].first < first.changes[i].first);
    // What was proposed, each once; a signal may come before the last.
    for (size_t i = 0; policy_ == Policy::kOnTheWay && i < first.changes.size(); ++i)
      CHECK(first.changes[i].second ==
            (i < planned_ ? plans_[i + 1].second.text() : proposed_.at(i - planned_)));
    // The same decisions from the same log.
    Coordinator again({ranks_, heeds_signals_});
    std::string said;
    for (const CoordinatorEvent& event : log_) said += text_of(again.take(event));
    CHECK(said == said_);
  }
  std::string words() const {
    std::ostringstream words;
    words << ranks_ << " ranks, minibatches " << first_ << ".." << minibatches_ << ", epochs of "
          << length_.minibatches_per_epoch << ", policy " << static_cast<int>(policy_) << ", plan "
          << plans_[0].second.text();
    return words.str();
  }
  size_t changes() const { return each_[0].life.changes.size(); }
  bool stopped() const { return each_[0].life.stopped_before >= 0; }

 private:
  enum class Policy { kNone, kOnTheWay, kAtDrains };

  struct Rank {
    Rank(int64_t first, TrainingLoop its) : follower(first), loop(std::move(its)), next(first) {}
    OrdersNow orders() const { return {follower.stop_before(), follower.signal()}; }
    Follower follower;
    TrainingLoop loop;
    Life life;
    std::optional<LoopCommand> command;  // that it carries out
    int64_t next;                        // the next minibatch of its own
    bool asked = false;                  // it is where a decision is due, and has said so
    bool scheduled = false, changes = false;
    double channel_free = 0, orders_free = 0;  // each direction keeps its order
  };
  struct Scheduled {
    double when;
    int64_t number;
    std::function<void()> what;
    bool operator<(const Scheduled& other) const {
      return std::tie(when, number) > std::tie(other.when, other.number);
    }
  };

  static size_t index(int64_t i) { return static_cast<size_t>(i); }
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  bool one_in(int64_t n) { return between(1, n) == 1; }
  // Epochs, evaluations, checkpoints, and who decides.
  void draw_rules() {
    policy_ = static_cast<Policy>(between(0, 2));
    length_.minibatches = minibatches_;
    length_.minibatches_per_epoch = between(1, 25);
    if ((rules_.evaluates = one_in(2)) && one_in(2)) length_.evaluate_every = between(1, 15);
    rules_.keeps_replicas_equal = !one_in(4);
    CheckpointSettings run, kept;
    if (one_in(2)) run.every_minibatches = between(1, 15);
    if (one_in(3)) run.every_epochs = between(1, 2);
    if (!rules_.keeps_replicas_equal) length_.drain_every = run.every_minibatches;
    rules_.checkpoints[CheckpointKind::kRun] = run;
    kept.every_minibatches = between(1, 10);
    if (one_in(2)) rules_.checkpoints[CheckpointKind::kKept] = kept;
    if (policy_ != Policy::kAtDrains) return;
    rules_.decides_every = length_.decide_every = one_in(3) ? 0 : between(1, 20);
  }
  RunLength length_of(size_t generation) const {
    RunLength length = length_;
    length.period = plan_of(generation).period;
    length.plan_begin = generation == 0 ? 0 : plans_[generation].first;
    if (generation + 1 < plans_.size()) length.plan_end = plans_[generation + 1].first;
    return length;
  }
  SmallPlan draw_plan(int64_t ranks) {
    SmallPlan plan;
    plan.ranks = ranks > 0 ? ranks : between(1, ranks_);
    plan.entries = between(1, plan.ranks);
    plan.period = between(1, 4);
    return plan;
  }

  void at(double when, std::function<void()> what) {
    queue_.push({std::max(when, now_), ++scheduled_, std::move(what)});
  }
  void later(int64_t rank, int64_t delay) {
    if (std::exchange(each_[index(rank)].scheduled, true)) return;
    at(now_ + static_cast<double>(delay), [this, rank] {
      each_[index(rank)].scheduled = false;
      step(rank);
    });
  }

  // Each rank's in order; some come once more, whenever.
  void say(int64_t rank, const AgreementMessage& message) {
    const auto hear = [this, rank, message] { tell(Heard{rank, message}); };
    double& free = each_[index(rank)].channel_free;
    free = std::max(free, now_ + static_cast<double>(rank == 0 ? 0 : between(0, slow_)));
    at(free, hear);
    heard_.push_back(Heard{rank, message});
  }
  // Something that was told before comes once more.
  void repeat() {
    for (int64_t times = one_in(2) ? between(0, 3) : 0; times > 0 && !heard_.empty(); --times) {
      const size_t which =
          index(between(std::max<int64_t>(0, std::ssize(heard_) - 30), std::ssize(heard_) - 1));
      at(now_ + static_cast<double>(between(0, slow_)), [this, again = heard_[which]] { tell(again); });
    }
  }

  void order(int64_t rank, const Order& order) {
    const auto take = [this, rank, order] {
      Rank& mine = each_[index(rank)];
      const bool knew = mine.follower.stop_before() != Follower::kNever;
      for (const AgreementMessage& answer : mine.follower.take(order)) say(rank, answer);
      // It has not asked for the first minibatch that does not come any more.
      const int64_t stop = mine.follower.stop_before();
      if (!knew && stop != Follower::kNever) CHECK((stop == minibatches_ || !all_before_begun(stop)));
      later(rank, 0);
    };
    double& free = each_[index(rank)].orders_free;
    free = std::max(free, now_ + static_cast<double>(rank == 0 ? 0 : between(0, slow_)));
    at(free, take);
    if (one_in(8)) at(free + static_cast<double>(between(0, 200)), take);
  }

  static std::string text_of(const std::vector<CoordinatorCommand>& commands) {
    std::ostringstream text;
    for (const auto& command : commands) {
      text << command.index();
      if (const auto* tell = std::get_if<Tell>(&command)) {
        text << ":" << tell->first_rank << "-" << tell->end_rank << ":" << tell->order.index();
        if (const auto* stop = std::get_if<StopBefore>(&tell->order))
          text << ":" << stop->minibatch << stop->change;
        if (const auto* decided = std::get_if<DrainDecided>(&tell->order)) text << ":" << decided->change;
      }
      if (const auto* place = std::get_if<PlaceStop>(&command)) text << ":" << place->last_begun;
      if (const auto* ask = std::get_if<AskPolicy>(&command)) text << ":" << ask->norms.size();
      text << ";";
    }
    return text.str();
  }

  // As rank 0 carries out what is decided.
  void tell(const CoordinatorEvent& event) {
    log_.push_back(event);
    if (std::holds_alternative<DecisionDue>(event) || std::holds_alternative<PolicyAnswered>(event) ||
        std::holds_alternative<StopPlaced>(event) || std::holds_alternative<GenerationOver>(event))
      heard_.push_back(event);
    if (one_in(4)) repeat();
    const auto commands = coordinator_->take(event);
    said_ += text_of(commands);
    for (const CoordinatorCommand& command : commands) {
      if (const auto* tell = std::get_if<Tell>(&command)) {
        for (int64_t rank = tell->first_rank; rank < tell->end_rank; ++rank) order(rank, tell->order);
      } else if (const auto* place = std::get_if<PlaceStop>(&command)) {
        at(now_, [this, place = *place] {
          this->tell(StopPlaced{place.round, stop_behind(place.last_begun)});
        });
      } else if (const auto* ask = std::get_if<AskPolicy>(&command)) {
        if (wants_norms_)
          CHECK(static_cast<int64_t>(ask->norms.size()) == plan_of(generation_of(each_[0])).ranks);
        at(now_ + static_cast<double>(between(0, 40)), [this, minibatch = ask->minibatch] {
          std::string change;
          if (changes_left_ > 0 && one_in(2)) {
            --changes_left_;
            change = draw_plan(0).text();
            plans_.emplace_back(minibatch, SmallPlan::of(change));
          }
          answer_ = change;
          this->tell(PolicyAnswered{minibatch, change});
          later(0, 0);
        });
      } else {
        answer_ = "";
        later(0, 0);
      }
    }
  }

  const SmallPlan& plan_of(size_t generation) const { return plans_[generation].second; }
  size_t generation_at(int64_t minibatch) const {
    size_t generation = plans_.size() - 1;
    while (generation > 0 && plans_[generation].first > minibatch) --generation;
    return generation;
  }
  // As unplanned_stop(): two turns of the entries behind the last one, to the end of a round.
  int64_t stop_behind(int64_t last_begun) const {
    const auto end_of = [&](int64_t generation) {
      return index(generation) + 1 < plans_.size() ? std::optional(plans_[index(generation) + 1].first)
                                                   : std::nullopt;
    };
    const auto place = [&](int64_t generation, int64_t last) {
      const RunLength length = length_of(index(generation));
      const int64_t cycle = plan_of(index(generation)).entries;
      return next_stop(std::min({last + 1 + 2 * cycle, minibatches_, length.plan_end}), length.period,
                       length);
    };
    return place_within_plan(static_cast<int64_t>(generation_at(last_begun + 1)), last_begun, place, end_of);
  }
  bool all_before_begun(int64_t end) const {
    for (int64_t k = first_; k < end; ++k)
      if (begun_[index(k)].empty()) return false;
    return true;
  }

  static size_t generation_of(const Rank& rank) { return index(rank.loop.generation()); }
  bool has_part(int64_t number) const { return number < plan_of(generation_of(each_[index(number)])).ranks; }
  void begin_generation(int64_t number, size_t generation) {
    each_[index(number)].loop.begin_generation(static_cast<int64_t>(generation), length_of(generation),
                                               number < plan_of(generation).ranks);
  }

  // What a rank's main thread does until it has to wait.
  void step(int64_t number) {
    Rank& rank = each_[index(number)];
    if (rank.life.over || rank.changes) return;
    if (!rank.command) rank.command = rank.loop.next(rank.orders());
    if (!rank.command) return end(number, false);
    // A command that is carried out makes room for the next one.
    const bool done =
        std::visit([&](const auto& command) { return carry_out(number, rank, command); }, *rank.command);
    if (!done || rank.life.over) return;
    rank.command.reset();
    if (!rank.changes) later(number, between(0, 5));
  }
  void note(Rank& rank, const std::string& what) { rank.life.together[generation_of(rank)].push_back(what); }

  bool carry_out(int64_t number, Rank& rank, const TrainSpan& train) {
    const SmallPlan& plan = plan_of(generation_of(rank));
    const int64_t end = std::min(train.span.end(), rank.follower.stop_before());
    if (number < plan.entries) {
      while (rank.next % plan.entries != number) ++rank.next;
      if (rank.next < end) {
        if (number == 0) ask_on_the_way(rank);
        if (!rank.follower.begin(rank.next)) return false;  // until an order comes
        if (rank.next < rank.follower.stop_before()) {
          begun_[index(rank.next)].push_back(generation_of(rank));
          ++rank.next;
          for (int64_t r = 0; r < ranks_; ++r) later(r, between(0, 3));
        }
        later(number, between(1, 10));
        return false;
      }
    }
    // Of the other stages: what has been begun comes. One of the first stage has done what is its own.
    if (number >= plan.entries && !all_before_begun(end)) return false;
    rank.next = end;
    for (const auto& [kind, points] : train.checkpoints)
      for (const int64_t n : points)
        if (n < end || (n == end && stops_undrained(rank, end))) written(rank, kind, n);
    return true;
  }
  // Of a signal, with minibatches in flight: it was a checkpoint on the way.
  bool stops_undrained(const Rank& rank, int64_t end) const {
    return rules_.keeps_replicas_equal && ends_before(rank.orders(), end, length_);
  }
  static void written(Rank& rank, CheckpointKind kind, int64_t minibatch) {
    ++rank.life.written[(kind == CheckpointKind::kRun ? "run " : "kept ") + std::to_string(minibatch)];
  }

  bool carry_out(int64_t, Rank& rank, const Drained& drained) {
    CHECK(rank.loop.pipeline_began() == drained.minibatch);
    return true;
  }
  bool carry_out(int64_t number, Rank& rank, const TakeAgreedChange& agreed) {
    if (number == 0) plans_.emplace_back(agreed.minibatch, SmallPlan::of(rank.follower.change()));
    rank.loop.plan_added(agreed.minibatch);
    return true;
  }

  void ask_on_the_way(Rank& rank) {
    if (policy_ != Policy::kOnTheWay || changes_left_ == 0 || rank.follower.under_way() || !one_in(4)) return;
    if (rank.loop.knows_next_plan()) return;
    --changes_left_;
    rank.follower.propose();
    proposed_.push_back(draw_plan(0).text());
    tell(ChangeProposed{proposed_.back()});
  }

  bool carry_out(int64_t number, Rank& rank, const Decide& decide) {
    if (!rank.asked) {
      rank.asked = true;
      note(rank, "decide " + std::to_string(decide.minibatch));
      if (wants_norms_) say(number, GradientNorms{decide.minibatch, number, {}});
      if (number == 0) {
        answer_.reset();
        tell(DecisionDue{decide.minibatch, plan_of(generation_of(rank)).ranks, wants_norms_});
      }
    }
    std::string change;
    if (number == 0) {
      if (!answer_) return false;
      change = *std::exchange(answer_, {});
    } else {
      const auto next = rank.follower.next_at_drain();
      if (!next) return false;
      const auto* decided = std::get_if<DrainDecided>(&*next);
      REQUIRE(decided);
      REQUIRE(decided->minibatch == decide.minibatch);
      change = decided->change;
    }
    rank.asked = false;
    if (!change.empty()) rank.loop.plan_added(decide.minibatch);
    return true;
  }

  bool carry_out(int64_t, Rank& rank, const TellEpoch& epoch) {
    rank.life.told[epoch.epoch] += epoch.minibatches;
    return true;
  }
  bool carry_out(int64_t, Rank& rank, const Evaluate& evaluate) {
    note(rank, "evaluate " + std::to_string(evaluate.epoch) + " " + std::to_string(evaluate.minibatches));
    if (evaluate.minibatches == 0) ++rank.life.evaluated[evaluate.epoch];
    return true;
  }
  bool carry_out(int64_t, Rank& rank, const WriteCheckpoints& write) {
    std::string kinds;
    for (const CheckpointKind kind : write.kinds) {
      kinds += kind == CheckpointKind::kRun ? "run " : "kept ";
      written(rank, kind, write.minibatch);
    }
    // What its manifest says.
    CHECK(rank.loop.done() == write.minibatch);
    if (!rules_.keeps_replicas_equal) CHECK(rank.loop.pipeline_began() == write.minibatch);
    if (rules_.evaluates) {
      const int64_t of_epoch = length_.minibatches_per_epoch;
      const int64_t over = write.minibatch == minibatches_ ? minibatches_ + of_epoch - 1 : write.minibatch;
      CHECK(rank.loop.evaluated_epochs() == over / of_epoch);
    }
    note(rank, "write " + kinds + std::to_string(write.minibatch) + " " + write.cause);
    return true;
  }
  bool carry_out(int64_t number, Rank& rank, const EndGeneration& ends) {
    note(rank, "end " + std::to_string(ends.how.next_minibatch));
    if (number == 0) tell(GenerationOver{ends.how, plan_of(generation_of(rank)).ranks});
    return true;
  }
  bool carry_out(int64_t, Rank& rank, const AwaitEndOfGeneration&) {
    const auto next = rank.follower.next_at_drain();
    if (!next) return false;
    if (const auto* decided = std::get_if<DrainDecided>(&*next)) {
      rank.loop.plan_added(decided->minibatch);
    } else {
      rank.loop.generation_ended(std::get<GenerationEnded>(*next), rank.orders());
      rank.next = rank.loop.done();
    }
    return true;
  }

  bool carry_out(int64_t number, Rank& rank, const ChangePlan& change) {
    rank.changes = true;
    // State is moved from plan to plan: nobody is there before rank 0 has come to the change.
    when_known(index(change.generation), number);
    return true;
  }
  void when_known(size_t generation, int64_t number) {
    if (number == 0) rank0_changes_to_ = generation;
    if (rank0_changes_to_ < generation) return at(now_ + 1, [=, this] { when_known(generation, number); });
    at(now_, [this, number, generation] {
      Rank& mine = each_[index(number)];
      mine.changes = false;
      mine.life.changes.emplace_back(mine.loop.done(), plan_of(generation).text());
      begin_generation(number, generation);
      if (mine.follower.stop_before() == mine.loop.done() && mine.follower.signal() == 0)
        for (const AgreementMessage& said : mine.follower.made_change()) say(number, said);
      later(number, between(0, 30));
    });
  }

  bool carry_out(int64_t number, Rank&, const StopRun&) {
    end(number, true);
    return true;
  }
  void end(int64_t number, bool stopped) {
    Rank& rank = each_[index(number)];
    rank.life.over = true;
    if (stopped) rank.life.stopped_before = rank.loop.done();
  }

  // Each epoch that is over is told whole by a rank that had a part in all of it, and evaluated once.
  void check_epochs(int64_t end) const {
    const Life& first = each_[0].life;
    const int64_t of_epoch = length_.minibatches_per_epoch;
    for (int64_t epoch = first_ / of_epoch; epoch * of_epoch < end; ++epoch) {
      const int64_t begins = std::max(first_, epoch * of_epoch);
      const int64_t ends = std::min((epoch + 1) * of_epoch, minibatches_);
      const bool over = ends <= end;
      CHECK((first.told.count(epoch) ? first.told.at(epoch) : 0) == (over ? ends - begins : 0));
      CHECK((first.evaluated.count(epoch) ? first.evaluated.at(epoch) : 0) == (over && rules_.evaluates));
    }
  }
  // Each that is due is written once by each rank of the plan, and one where a signal ends the run.
  void check_checkpoints(int64_t end) const {
    const Life& first = each_[0].life;
    for (const Rank& rank : each_)
      for (const auto& [name, times] : rank.life.written) CHECK(times == 1);
    for (const auto& [kind, settings] : rules_.checkpoints) {
      // Where replicas are not held equal state is kept where the pipeline drains, and only there.
      if (kind == CheckpointKind::kKept && !rules_.keeps_replicas_equal) continue;
      const std::string name = kind == CheckpointKind::kRun ? "run " : "kept ";
      size_t generation = 0;
      for (int64_t n = first_ + 1; n <= end; ++n) {
        while (generation < first.changes.size() && first.changes[generation].first < n) ++generation;
        RunLength length = length_of(generation);
        const bool due = checkpoint_due(n, settings, length.period, length);
        if (due) CHECK(first.written.count(name + std::to_string(n)) == 1);
      }
    }
    if (first.stopped_before >= 0) CHECK(first.written.count("run " + std::to_string(end)) == 1);
  }

  std::mt19937_64 random_;
  int64_t ranks_ = 1, minibatches_ = 1, first_ = 0, changes_left_ = 0, slow_ = 2;
  RunLength length_;  // of the run; length_of() a plan
  LoopRules rules_;
  size_t rank0_changes_to_ = 0;
  size_t planned_ = 0;  // changes that were known beforehand
  Policy policy_ = Policy::kNone;
  bool wants_norms_ = false, heeds_signals_ = true;
  std::vector<std::pair<int64_t, SmallPlan>> plans_;  // by generation, as rank 0 knows them
  std::optional<Coordinator> coordinator_;
  std::vector<Rank> each_;
  std::vector<std::vector<size_t>> begun_;  // by minibatch: in which generations
  std::optional<std::string> answer_;       // of the policy, for rank 0
  std::vector<std::string> proposed_;
  std::vector<CoordinatorEvent> log_, heard_;
  std::string said_;
  std::priority_queue<Scheduled> queue_;
  double now_ = 0;
  int64_t scheduled_ = 0, steps_ = 0;
};

}  // namespace

TEST_CASE(
    "coordinator: whatever happens when, all ranks stop and change before the same minibatches, which none "
    "has "
    "begun, and each is begun once") {
  int64_t changes = 0, stops = 0;
  const char* seed_text = std::getenv("PIPEWRIGHT_COORDINATOR_SEED");
  const uint64_t first = seed_text ? static_cast<uint64_t>(std::atoll(seed_text)) : 1;
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(cases_of(100'000)); ++seed) {
    History history(seed);
    CAPTURE(seed, history.words());
    history.run();
    history.check();
    changes += static_cast<int64_t>(history.changes());
    stops += history.stopped();
  }
  std::printf("%ld changes, %ld stops by a signal\n", changes, stops);
}
namespace {

template <typename T>
std::vector<T> tells_of(const std::vector<CoordinatorCommand>& commands) {
  std::vector<T> orders;
  for (const auto& command : commands) {
    const auto* tell = std::get_if<Tell>(&command);
    if (tell && std::holds_alternative<T>(tell->order)) orders.push_back(std::get<T>(tell->order));
  }
  return orders;
}

// All ranks answer what the round asks them, until it is open.
void live_through(Coordinator& coordinator, int64_t ranks, int64_t round, int64_t stop) {
  for (int64_t rank = 0; rank < ranks; ++rank) coordinator.take(Heard{rank, BegunUpTo{round, 3}});
  coordinator.take(StopPlaced{round, stop});
  for (int64_t rank = 0; rank < ranks; ++rank) coordinator.take(Heard{rank, StopKnown{round}});
}

}  // namespace

TEST_CASE("coordinator: the signal that is heard first counts, and waits for the change that is under way") {
  Coordinator coordinator({2, true});
  CHECK(tells_of<BeginNoMore>(coordinator.take(ChangeProposed{"a"})).at(0).signal == 0);
  CHECK(coordinator.take(Heard{1, SignalHeard{SIGTERM}}).empty());
  CHECK(coordinator.take(Heard{0, SignalHeard{SIGINT}}).empty());
  live_through(coordinator, 2, 1, 8);
  CHECK(coordinator.take(Heard{0, ChangeMade{1}}).empty());
  CHECK(coordinator.take(ChangeProposed{"b"}).empty());
  const auto asked = tells_of<BeginNoMore>(coordinator.take(Heard{1, ChangeMade{1}}));
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].round == 2);
  CHECK(asked[0].signal == SIGTERM);  // before the change that waits as well
}

TEST_CASE("coordinator: signals are none of its business where they end the job at once") {
  Coordinator coordinator({3, false});
  CHECK(coordinator.take(Heard{1, SignalHeard{SIGTERM}}).empty());
  CHECK(tells_of<BeginNoMore>(coordinator.take(ChangeProposed{"a"})).at(0).signal == 0);
}

TEST_CASE(
    "coordinator: the place of a stop waits for the policy that is being asked, and lies behind its change") {
  Coordinator coordinator({2, true});
  CHECK(std::get<AskPolicy>(coordinator.take(DecisionDue{8, 2, false}).at(0)).minibatch == 8);
  coordinator.take(Heard{1, SignalHeard{SIGINT}});
  CHECK(coordinator.take(Heard{0, BegunUpTo{1, 7}}).empty());
  CHECK(coordinator.take(Heard{1, BegunUpTo{1, 5}}).empty());
  const auto then = coordinator.take(PolicyAnswered{8, "another"});
  REQUIRE(then.size() == 2);
  CHECK(std::get<DrainDecided>(std::get<Tell>(then[0]).order).change == "another");
  CHECK(std::get<PlaceStop>(then[1]).last_begun == 8);
}

TEST_CASE("coordinator: where a signal is about to end the run no policy is asked any more") {
  Coordinator coordinator({2, true});
  CHECK(coordinator.take(DecisionDue{8, 2, true}).empty());  // waits for norms
  coordinator.take(Heard{1, SignalHeard{SIGINT}});
  coordinator.take(Heard{0, BegunUpTo{1, 7}});
  const auto then = coordinator.take(Heard{1, BegunUpTo{1, 6}});
  REQUIRE(then.size() == 3);
  CHECK(std::get<PlaceStop>(then[0]).last_begun == 7);
  CHECK(std::get<DecideNothing>(then[1]).minibatch == 8);
  CHECK(std::get<DrainDecided>(std::get<Tell>(then[2]).order).change.empty());
  CHECK(coordinator.take(Heard{1, GradientNorms{8, 1, {}}}).empty());
}

TEST_CASE("coordinator: ranks without a part hear of a change that was decided, and of the end") {
  Coordinator coordinator({4, true});
  CHECK(std::get<AskPolicy>(coordinator.take(DecisionDue{8, 2, false}).at(0)).norms.empty());
  const auto none = coordinator.take(PolicyAnswered{8, ""});
  CHECK(std::get<Tell>(none.at(0)).end_rank == 2);
  coordinator.take(DecisionDue{16, 2, false});
  const auto change = coordinator.take(PolicyAnswered{16, "another"});
  CHECK(std::get<Tell>(change.at(0)).first_rank == 1);
  CHECK(std::get<Tell>(change.at(0)).end_rank == 4);
  const auto over = coordinator.take(GenerationOver{{0, false, 16}, 2});
  CHECK(std::get<Tell>(over.at(0)).first_rank == 2);
  CHECK(coordinator.take(GenerationOver{{0, false, 16}, 2}).empty());
  CHECK(coordinator.take(GenerationOver{{1, false, 32}, 4}).empty());  // nobody waits
}

TEST_CASE(
    "follower: a rank that has nothing left to begin may change before the others know, and begins nothing") {
  Follower follower(4);
  CHECK(std::get<BegunUpTo>(follower.take(BeginNoMore{1, 0}).at(0)).minibatch == 3);
  CHECK_FALSE(follower.begin(4));
  CHECK(std::get<StopKnown>(follower.take(StopBefore{1, 6, "another"}).at(0)).round == 1);
  CHECK(follower.change() == "another");
  CHECK(std::get<ChangeMade>(follower.made_change().at(0)).round == 1);
  CHECK_FALSE(follower.begin(6));
  CHECK_FALSE(follower.under_way());
  follower.take(BeginAgain{1});
  CHECK(follower.begin(6));
  CHECK_THROWS_AS(follower.made_change(), CheckError);
}
