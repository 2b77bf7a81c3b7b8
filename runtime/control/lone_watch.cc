#include "runtime/control/lone_watch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "graph/error.h"
#include "graph/file_watch.h"
#include "runtime/control/heartbeat.h"
#include "runtime/control/signals.h"

namespace pipewright {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr auto kTell = std::chrono::seconds(1);
constexpr double kPatienceAfterSignal = 2;  // seconds
constexpr double kMostBetweenLooks = 1;
// What Progress calls stalled is never less than a tenth of the operation, for one that works too. That is no
// reason to end a process that nobody waits for.
constexpr double kStalledShare = 0.2;

}  // namespace

LoneWatch::LoneWatch(Progress& progress, std::chrono::milliseconds timeout,
                     std::function<void(const std::string& why)> last_words,
                     std::function<void(const ProgressNow&)> told)
    : progress_(progress),
      timeout_seconds_(std::chrono::duration<double>(timeout).count()),
      last_words_(std::move(last_words)),
      told_(std::move(told)),
      thread_([this] { run(); }) {}

LoneWatch::~LoneWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LoneWatch::run() {
  using Clock = std::chrono::steady_clock;
  // Only time that this thread has run in counts: a process that was stopped for an hour (Ctrl-Z) goes on.
  double stood = 0;
  auto last = Clock::now();
  auto next_told = last;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kInterval, [this] { return stop_; })) {
    const ProgressNow now = progress_.now();
    const auto time = Clock::now();
    const double since_last = std::min(std::chrono::duration<double>(time - last).count(), kMostBetweenLooks);
    last = time;
    if (told_ && time >= next_told) {
      told_(now);
      next_told = time + kTell;
    }
    const bool idle = now.stalled_seconds > since_last && now.stalled_seconds > kStalledShare * now.seconds;
    stood = idle ? stood + since_last : 0;
    const int signal = received_signal;
    if (stood > timeout_seconds_) {
      end(static_cast<int>(ExitCode::kFailed),
          "does not get on: " + now.activity.operation + " since " + seconds_words(now.seconds) +
              file_waited_for() + ": it waits for something outside, a file's server likely");
    }
    if (signal != 0 && stood > std::min(timeout_seconds_, kPatienceAfterSignal)) {
      end(static_cast<int>(exit_code_of_signal(signal)), words_of_signal(signal) + " while it stood in " +
                                                             now.activity.operation + " since " +
                                                             seconds_words(now.seconds) + file_waited_for());
    }
  }
}

void LoneWatch::end(int code, const std::string& why) {
  if (last_words_) last_words_(why);
  std::fprintf(stderr, "pipewright-runtime: error: %s\n", why.c_str());
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace pipewright
