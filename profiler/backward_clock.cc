#include "profiler/backward_clock.h"

#include <algorithm>
#include <memory>

#include "graph/error.h"

namespace pipewright {
namespace {

// LibTorch's callbacks are plain functions.
thread_local BackwardClock* current = nullptr;

}  // namespace

BackwardClock::BackwardClock(std::vector<SequenceRange> nodes)
    : nodes_(std::move(nodes)), seconds_(nodes_.size(), 0) {
  PW_CHECK(current == nullptr, "two backward clocks on one thread");
  current = this;
  at::RecordFunctionCallback callback(
      [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
        if (current) current->started();
        return nullptr;
      },
      [](const at::RecordFunction& function, at::ObserverContext*) {
        if (current) current->ended(static_cast<uint64_t>(function.seqNr()));
      });
  handle_ = at::addThreadLocalCallback(callback.scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

BackwardClock::~BackwardClock() {
  at::removeCallback(handle_);
  current = nullptr;
}

void BackwardClock::started() {
  if (running_) return;
  running_ = true;
  last_ = std::chrono::steady_clock::now();
}

void BackwardClock::ended(uint64_t sequence) {
  const auto now = std::chrono::steady_clock::now();
  const auto after = std::upper_bound(nodes_.begin(), nodes_.end(), sequence,
                                      [](uint64_t s, const SequenceRange& range) { return s < range.begin; });
  // Several nodes may begin at one number when they make no function: the last of them is the one that does.
  if (after != nodes_.begin() && sequence < std::prev(after)->end)
    seconds_[std::prev(after) - nodes_.begin()] += std::chrono::duration<double>(now - last_).count();
  last_ = now;
}

}  // namespace pipewright
