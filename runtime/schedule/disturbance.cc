#include "runtime/schedule/disturbance.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "graph/error.h"
#include "graph/limits.h"
#include "graph/nearest.h"
#include "graph/random.h"
#include "graph/spec.h"
#include "graph/speed_trace.h"
#include "graph/units.h"

namespace pipewright {
namespace {

constexpr int64_t kAlways = std::numeric_limits<int64_t>::max();
constexpr double kMostFactor = 1e6;

void demand_rank(const Plan& plan, int64_t rank, const char* kind) {
  if (rank < plan.world_size) return;
  throw PlanError(std::string("--disturb ") + kind + ": rank " + std::to_string(rank) +
                  ", but the plan has ranks 0.." + std::to_string(plan.world_size - 1));
}

/// A rank, or replica q of every stage: "pipeline q".
struct Target {
  std::optional<int64_t> rank, pipeline;

  static Target of(SpecOptions& options) {
    Target target;
    if (options.has("rank")) target.rank = options.integer("rank", 0, 0, kMostRanks);
    if (options.has("pipeline")) target.pipeline = options.integer("pipeline", 0, 0, kMostRanks);
    if (target.rank && target.pipeline) options.fail("pipeline", "given beside a rank", "name one of them");
    return target;
  }
  bool given() const { return rank || pipeline; }
  bool holds(const DisturbedAction& what) const {
    return (!rank || *rank == what.rank) && (!pipeline || *pipeline == what.replica);
  }
  void check(const Plan& plan, const char* kind) const {
    if (rank) demand_rank(plan, *rank, kind);
    if (!pipeline) return;
    for (const Stage& stage : plan.stages) {
      if (*pipeline < static_cast<int64_t>(stage.ranks.size())) continue;
      throw PlanError(std::string("--disturb ") + kind + ": pipeline " + std::to_string(*pipeline) +
                          ", but a stage of the plan has " + std::to_string(stage.ranks.size()) + " replicas",
                      "Name a rank instead, or a replica that all stages have.");
    }
  }
};

/// Minibatches [from, to).
struct Window {
  int64_t from = 0, to = kAlways;

  static Window of(SpecOptions& options) {
    Window window;
    window.from = options.integer("from", 0, 0, kMostCount);
    if (options.has("to")) window.to = options.integer("to", 0, 0, kMostCount);
    if (window.to < window.from) options.fail("to", "lies before 'from'");
    return window;
  }
  bool holds(int64_t minibatch) const { return from <= minibatch && minibatch < to; }
};

class Fixed : public Disturbance {
 public:
  static std::unique_ptr<Disturbance> make(SpecOptions& options) {
    auto fixed = std::make_unique<Fixed>();
    fixed->target_ = Target::of(options);
    fixed->factor_ = options.number("factor", 1, 1, kMostFactor);
    fixed->window_ = Window::of(options);
    options.finish();
    if (!options.has("factor")) options.fail("factor", "missing", "how many times as long, e.g. factor=3");
    return fixed;
  }
  double extra_seconds(const DisturbedAction& what) const override {
    return target_.holds(what) && window_.holds(what.action.index) ? (factor_ - 1) * what.seconds : 0;
  }
  void check(const Plan& plan) const override { target_.check(plan, "fixed"); }

 private:
  Target target_;
  Window window_;
  double factor_ = 1;
};

/// SDPipe's stragglers: at a forward or a backward a wait of a fixed length, now and then.
class Random : public Disturbance {
 public:
  static std::unique_ptr<Disturbance> make(SpecOptions& options) {
    auto random = std::make_unique<Random>();
    random->target_ = Target::of(options);
    random->probability_ = options.number("probability", 0, 0, 1);
    random->seed_ = static_cast<uint64_t>(options.integer("seed", 1, 0, kMostCount));
    const std::string duration = options.string("duration", "");
    random->window_ = Window::of(options);
    options.finish();
    for (const char* needed : {"probability", "duration"})
      if (!options.has(needed)) options.fail(needed, "missing", "e.g. probability=0.1,duration=100ms");
    random->duration_seconds_ = parse_seconds(duration, "--disturb random: duration");
    return random;
  }
  double extra_seconds(const DisturbedAction& what) const override {
    if (!target_.holds(what) || !window_.holds(what.action.index)) return 0;
    KeyedRandom random({seed_, static_cast<uint64_t>(what.rank), static_cast<uint64_t>(what.action.index),
                        static_cast<uint64_t>(what.action.kind)});
    const bool waits = random.uniform() < probability_;
    return waits ? duration_seconds_ : 0;
  }
  void check(const Plan& plan) const override { target_.check(plan, "random"); }

 private:
  Target target_;
  Window window_;
  double probability_ = 0, duration_seconds_ = 0;
  uint64_t seed_ = 1;
};

/// In the place of compute, where there are fewer cores than ranks.
class Compute : public Disturbance {
 public:
  static std::unique_ptr<Disturbance> make(SpecOptions& options) {
    const std::string duration = options.string("duration", "");
    options.finish();
    if (duration.empty()) options.fail("duration", "missing", "e.g. duration=10ms");
    auto compute = std::make_unique<Compute>();
    compute->duration_seconds_ = parse_seconds(duration, "--disturb compute: duration");
    return compute;
  }
  double compute_seconds(const DisturbedAction&) const override { return duration_seconds_; }
  void check(const Plan&) const override {}

 private:
  double duration_seconds_ = 0;
};

/// Slowness over time, as it was recorded somewhere.
class Traced : public Disturbance {
 public:
  static std::unique_ptr<Disturbance> make(SpecOptions& options) {
    const std::string file = options.string("file", "");
    options.finish();
    if (file.empty()) options.fail("file", "missing", "a document of schema pipewright.speeds/1");
    auto traced = std::make_unique<Traced>();
    traced->trace_ = read_speed_trace(file);
    return traced;
  }
  double extra_seconds(const DisturbedAction& what) const override {
    return (trace_.factor(what.rank, what.now_seconds) - 1) * what.seconds;
  }
  void check(const Plan& plan) const override {
    for (const auto& [rank, points] : trace_.ranks) demand_rank(plan, rank, "trace");
  }

 private:
  SpeedTrace trace_;
};

/// A link in one direction.
class Link : public Disturbance {
 public:
  static std::unique_ptr<Disturbance> make(SpecOptions& options) {
    auto link = std::make_unique<Link>();
    link->sender_ = options.integer("sender", 0, 0, kMostRanks);
    link->receiver_ = options.integer("receiver", 0, 0, kMostRanks);
    const std::string delay = options.string("delay", "");
    link->window_ = Window::of(options);
    options.finish();
    for (const char* needed : {"sender", "receiver", "delay"})
      if (!options.has(needed)) options.fail(needed, "missing", "e.g. sender=0,receiver=1,delay=20ms");
    if (link->sender_ == link->receiver_) options.fail("receiver", "is the sender");
    link->delay_seconds_ = parse_seconds(delay, "--disturb link: delay");
    return link;
  }
  double message_seconds(const DisturbedMessage& what) const override {
    const bool mine = what.sender == sender_ && what.receiver == receiver_ && window_.holds(what.minibatch);
    return mine ? delay_seconds_ : 0;
  }
  bool slows_links() const override { return true; }
  void check(const Plan& plan) const override {
    for (const int64_t rank : {sender_, receiver_}) demand_rank(plan, rank, "link");
  }

 private:
  int64_t sender_ = 0, receiver_ = 0;
  Window window_;
  double delay_seconds_ = 0;
};

bool is_disturbed(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackward ||
         kind == ActionKind::kBackwardInput || kind == ActionKind::kBackwardWeight;
}

}  // namespace

const std::vector<DisturbanceRow>& disturbance_rows() {
  static const std::vector<DisturbanceRow> rows = {
      {"fixed", Fixed::make, "a rank or a pipeline computes so many times as long"},
      {"random", Random::make, "now and then a forward or backward waits"},
      {"compute", Compute::make, "every forward and backward waits, in the place of compute"},
      {"trace", Traced::make, "ranks compute as slowly as a file says, over time"},
      {"link", Link::make, "messages from a rank to another take longer"},
  };
  return rows;
}

Disturbances::Disturbances(const std::vector<std::string>& specs) {
  for (const std::string& text : specs) {
    SpecOptions options(parse_spec(text, "disturb"));
    const std::vector<DisturbanceRow>& rows = disturbance_rows();
    const auto row = std::find_if(rows.begin(), rows.end(),
                                  [&](const DisturbanceRow& r) { return options.spec().name == r.name; });
    if (row == rows.end()) {
      std::vector<std::string> names;
      for (const DisturbanceRow& known : rows) names.emplace_back(known.name);
      throw InputError("disturb: there is no kind '" + options.spec().name + "'" +
                       suggestion(options.spec().name, names));
    }
    all_.push_back(row->make(options));
  }
}

void Disturbances::check(const Plan& plan) const {
  for (const auto& one : all_) one->check(plan);
}

double Disturbances::extra_seconds(const DisturbedAction& what) const {
  if (!is_disturbed(what.action.kind)) return 0;
  double extra = 0;
  for (const auto& one : all_) extra += one->compute_seconds(what);
  DisturbedAction as_if = what;
  as_if.seconds += extra;
  for (const auto& one : all_) extra += one->extra_seconds(as_if);
  return extra;
}

double Disturbances::message_seconds(const DisturbedMessage& what) const {
  double seconds = 0;
  for (const auto& one : all_) seconds += one->message_seconds(what);
  return seconds;
}

bool Disturbances::slows_links() const {
  return std::any_of(all_.begin(), all_.end(), [](const auto& one) { return one->slows_links(); });
}

}  // namespace pipewright
