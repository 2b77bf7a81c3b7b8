// What watches a rank train, beside its progress (runtime/launch/rank_session.h): a class each.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>

#include "graph/summary.h"
#include "interference/core_features.h"
#include "models/memory/memory_meter.h"
#include "runtime/launch/message_delays.h"
#include "runtime/monitor/core_sample.h"
#include "runtime/monitor/message_log.h"
#include "runtime/monitor/rank_monitor.h"
#include "runtime/schedule/disturbance.h"
#include "runtime/schedule/draw.h"
#include "runtime/worker/action_observer.h"

namespace pipewright {

/// Between any two actions: something that must not wait for the end of the span.
class BetweenActions : public ActionObserver {
 public:
  explicit BetweenActions(std::function<void()> work) : work_(std::move(work)) {}
  void before(const Action&) override { work_(); }

 private:
  std::function<void()> work_;
};

/// Before each forward of the rank's first stage: where it is agreed whether a further minibatch begins.
class BeforeForwards : public ActionObserver {
 public:
  BeforeForwards(int64_t first_stage, std::function<void(int64_t minibatch)> ask)
      : first_stage_(first_stage), ask_(std::move(ask)) {}
  void before(const Action& action) override;

 private:
  int64_t first_stage_;
  std::function<void(int64_t)> ask_;
};

/// The rank's times of the run (MeasuredTimes), and its CPU time: that of this thread within actions that
/// compute.
class TimesObserver : public ActionObserver {
 public:
  /// `times` outlives it.
  TimesObserver(int64_t first_stage, MeasuredTimes& times) : first_stage_(first_stage), times_(times) {}
  void before(const Action&) override;
  void after(const Action&, Clock::time_point begin, Clock::time_point end) override;
  /// Runs `load`, within an action: a wait for samples, not compute.
  void wait_for_samples(const std::function<void()>& load);
  /// In the action under way, or the last one.
  double waited_seconds() const { return waited_seconds_; }

 private:
  int64_t first_stage_;
  MeasuredTimes& times_;
  double cpu_before_seconds_ = 0;
  double waited_seconds_ = 0;
};

/// What the rank did, by kind. Comes behind `times`.
class SplitObserver : public ActionObserver {
 public:
  /// `split` outlives it.
  SplitObserver(const TimesObserver& times, EpochTimes& split) : times_(times), split_(split) {}
  void after(const Action& action, Clock::time_point begin, Clock::time_point end) override;

 private:
  const TimesObserver& times_;
  EpochTimes& split_;
};

/// Tells changes of the rank's speed. Comes behind `times`.
class SpeedObserver : public ActionObserver {
 public:
  SpeedObserver(RankMonitor& monitor, const TimesObserver& times,
                std::function<void(const SpeedChange&)> tell)
      : monitor_(monitor), times_(times), tell_(std::move(tell)) {}
  void after(const Action& action, Clock::time_point begin, Clock::time_point end) override;

 private:
  RankMonitor& monitor_;
  const TimesObserver& times_;
  std::function<void(const SpeedChange&)> tell_;
};

/// Notes when messages were sent, asked for and there, and tells it a few times a second: the ends of this
/// rank, for the LinkJudge of rank 0.
class MessageObserver : public ActionObserver {
 public:
  struct Settings {
    int64_t first_stage = 0;
    int64_t generation = 0;
    std::function<void(MessageLog)> tell;
  };
  explicit MessageObserver(Settings settings);
  void after(const Action& action, Clock::time_point begin, Clock::time_point end) override;

 private:
  void tell(Clock::time_point now);

  const Settings settings_;
  MessageLog log_;
  MessageSampler sampler_;
  std::optional<Clock::time_point> told_;  // or when the first message began
  int64_t messages_[4] = {};               // since then, by kind
};

/// Of the core that this process is bound to, and of `device` where that is a GPU; null where there is
/// neither.
std::unique_ptr<const CoreReader> core_reader_of(at::Device device);

/// Tells four times a second what the host says of the core that this rank is bound to, and of its GPU: for a
/// policy that reads it. One that has neither says so, once.
class CoreObserver : public ActionObserver {
 public:
  /// As long as a window of the data set (pipewright-profiler interference).
  static constexpr double kEverySeconds = 0.25;

  /// `reader`: core_reader_of() it; outlives this.
  CoreObserver(const CoreReader* reader, std::function<void(CoreSample)> tell);
  void after(const Action& action, Clock::time_point begin, Clock::time_point end) override;

 private:
  const CoreReader* const reader_;
  const std::function<void(CoreSample)> tell_;
  CoreReading last_;
  Clock::time_point read_ = Clock::now();
};

/// The first minibatches of the run as spans of trace.json, and the rank's tensors by purpose as counters.
/// Comes behind `times`.
class TraceObserver : public ActionObserver {
 public:
  struct Settings {
    int64_t rank = 0;
    int64_t end = 0;  ///< minibatches before this one
    Clock::time_point started;
    const TimesObserver& times;
    const MemoryMeter& memory;
  };
  TraceObserver(Settings settings, TraceWriter& trace) : settings_(settings), trace_(trace) {}
  void after(const Action& action, Clock::time_point begin, Clock::time_point end) override;

 private:
  const Settings settings_;
  TraceWriter& trace_;
  bool within_ = true;  // what a round ends with goes with the minibatch before it
};

/// Makes the rank slow on purpose (`--disturb`), in short steps between which `check` may throw, and says
/// which messages its links hold back.
class Disturber : public ActionObserver {
 public:
  struct Settings {
    const Disturbances& disturbances;
    int64_t rank = 0, replica = 0;
    Clock::time_point started;
    std::function<void()> check;
    MessageDelays& delays;
  };
  Disturber(Settings settings, MeasuredTimes& times) : settings_(std::move(settings)), times_(times) {}
  void before(const Action& action) override;
  void prolong(const Action& action, Clock::time_point begin) override;

 private:
  const Settings settings_;
  MeasuredTimes& times_;
};

/// When the last forward ended: the pipeline drains from then on.
class LastForward : public ActionObserver {
 public:
  void after(const Action& action, Clock::time_point, Clock::time_point end) override {
    if (action.kind == ActionKind::kForward) end_ = end;
  }
  double seconds_since() const { return std::chrono::duration<double>(Clock::now() - end_).count(); }

 private:
  Clock::time_point end_ = Clock::now();
};

}  // namespace pipewright
