#include "runtime/train/observers.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <thread>

#include "models/device/cuda_plugin.h"
#include "models/device/device.h"

namespace pipewright {
namespace {

using Clock = ActionObserver::Clock;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// Of a core, that this thread has had.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// In the order of MemoryPurpose.
constexpr const char* kPurposeNames[kMemoryPurposes] = {"other",     "weights",     "versions", "gradients",
                                                        "optimizer", "activations", "messages"};

bool computes(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackward ||
         kind == ActionKind::kBackwardInput || kind == ActionKind::kBackwardWeight ||
         kind == ActionKind::kUpdate;
}

bool begins_minibatch(const Action& action, int64_t first_stage) {
  return action.kind == ActionKind::kForward && action.stage_or(first_stage) == first_stage;
}

}  // namespace

void BeforeForwards::before(const Action& action) {
  if (begins_minibatch(action, first_stage_)) ask_(action.index);
}

void TimesObserver::before(const Action&) {
  cpu_before_seconds_ = cpu_seconds();
  waited_seconds_ = 0;
}

void TimesObserver::wait_for_samples(const std::function<void()>& load) {
  const auto began = Clock::now();
  const double processor = cpu_seconds();
  load();
  const double waited = seconds(Clock::now() - began);
  waited_seconds_ += waited;
  times_.load_wait_seconds += waited;
  times_.cpu_seconds -= cpu_seconds() - processor;
}

void TimesObserver::after(const Action& action, Clock::time_point, Clock::time_point) {
  if (computes(action.kind)) times_.cpu_seconds += cpu_seconds() - cpu_before_seconds_;
  if (begins_minibatch(action, first_stage_)) ++times_.minibatches;
}

void SplitObserver::after(const Action& action, Clock::time_point begin, Clock::time_point end) {
  const double took = seconds(end - begin);
  switch (action.kind) {
    case ActionKind::kForward:
      split_.load_seconds += times_.waited_seconds();
      split_.forward_seconds += std::max(0.0, took - times_.waited_seconds());
      break;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      split_.backward_seconds += took;
      break;
    case ActionKind::kUpdate:
      split_.update_seconds += took;
      break;
    case ActionKind::kReduce:
    case ActionKind::kAverage:
      split_.reduce_seconds += took;
      break;
    case ActionKind::kReceiveActivation:
    case ActionKind::kReceiveGradient:
      split_.receive_seconds += took;
      break;
    case ActionKind::kSendActivation:
    case ActionKind::kSendGradient:
      break;
  }
}

void SpeedObserver::after(const Action& action, Clock::time_point begin, Clock::time_point end) {
  if (const auto change = monitor_.ran(action, seconds(end - begin) - times_.waited_seconds()))
    tell_(*change);
}

namespace {

// So often rank 0 hears of messages.
constexpr auto kTell = std::chrono::milliseconds(250);

}  // namespace

MessageObserver::MessageObserver(Settings settings) : settings_(std::move(settings)) {
  log_.generation = settings_.generation;
  log_.clock = clock_of_host();
}

void MessageObserver::after(const Action& action, Clock::time_point begin, Clock::time_point end) {
  if (!is_of_message(action.kind)) return;
  if (!told_) told_ = begin;
  const MessageEnd which = message_end(action, settings_.first_stage);
  ++messages_[2 * static_cast<int>(which.is_gradient) + static_cast<int>(which.is_sender)];
  if (sampler_.takes(action.index)) {
    // All ranks of a host read this one alike, and hosts keep it together.
    const double ended =
        seconds(std::chrono::system_clock::now().time_since_epoch()) - seconds(Clock::now() - end);
    log_.ends.push_back(which);
    log_.ends.back().began_seconds = ended - seconds(end - begin);
    log_.ends.back().ended_seconds = ended;
  }
  if (end - *told_ >= kTell) tell(end);
}

void MessageObserver::tell(Clock::time_point now) {
  sampler_.adjust(*std::max_element(std::begin(messages_), std::end(messages_)), seconds(now - *told_));
  std::fill(std::begin(messages_), std::end(messages_), 0);
  told_ = now;
  if (log_.ends.empty()) return;
  settings_.tell(log_);
  log_.ends.clear();
}

std::unique_ptr<const CoreReader> core_reader_of(at::Device device) {
  const std::optional<int64_t> core = core_of_process();
  std::unique_ptr<const GpuCounters> gpu;
  if (device.is_cuda())
    gpu = std::make_unique<const GpuCounters>(cuda_plugin("device").device_identity(device.index()));
  if (!core && !gpu) return nullptr;
  return std::make_unique<const CoreReader>(core, std::move(gpu));
}

CoreObserver::CoreObserver(const CoreReader* reader, std::function<void(CoreSample)> tell)
    : reader_(reader), tell_(std::move(tell)) {
  if (reader_)
    last_ = reader_->read();
  else
    tell_(CoreSample{});
}

void CoreObserver::after(const Action&, Clock::time_point, Clock::time_point end) {
  if (!reader_ || seconds(end - read_) < kEverySeconds) return;
  read_ = end;
  CoreReading now = reader_->read();
  tell_(CoreSample{core_features(last_, now, reader_->core())});
  last_ = std::move(now);
}

void TraceObserver::after(const Action& action, Clock::time_point begin, Clock::time_point end) {
  if (!is_of_round(action.kind)) within_ = action.index < settings_.end;
  if (!within_) return;
  TraceSpan span = trace_span(settings_.rank, action, seconds(begin - settings_.started),
                              seconds(end - settings_.started));
  if (action.kind == ActionKind::kForward && settings_.times.waited_seconds() > 0) {
    span.arguments.emplace_back(kSamplesWait,
                                static_cast<int64_t>(std::llround(settings_.times.waited_seconds() * 1e6)));
  }
  trace_.add(span);
  // Messages are on their way, what they are made of is counted where it is made.
  if (is_of_message(action.kind)) return;
  std::vector<std::pair<std::string, int64_t>> purposes;
  const MemoryMeter::ByPurpose bytes = settings_.memory.live_bytes_by_purpose();
  for (size_t i = 0; i < bytes.size(); ++i) purposes.emplace_back(kPurposeNames[i], bytes[i]);
  trace_.add_counter(settings_.rank, kMemoryCounter, seconds(end - settings_.started), purposes);
}

void Disturber::before(const Action& action) {
  if (action.kind == ActionKind::kSendActivation || action.kind == ActionKind::kSendGradient)
    settings_.delays.begin(action.index);
}

void Disturber::prolong(const Action& action, Clock::time_point begin) {
  const double extra = settings_.disturbances.extra_seconds({settings_.rank, settings_.replica, action,
                                                             seconds(Clock::now() - begin),
                                                             seconds(begin - settings_.started)});
  const auto until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(extra));
  for (auto now = Clock::now(); now < until; now = Clock::now()) {
    settings_.check();
    std::this_thread::sleep_for(std::min<Clock::duration>(until - now, std::chrono::milliseconds(50)));
  }
  times_.injected_seconds += extra;
}

}  // namespace pipewright
