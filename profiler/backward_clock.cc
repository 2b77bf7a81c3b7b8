#include "profiler/backward_clock.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "graph/error.h"

namespace pipewright {
namespace {

// LibTorch's callbacks are plain functions. They belong to a thread; the engine hands them on to those of its
// threads that run this thread's backward.
std::atomic<BackwardClock*> current = nullptr;

}  // namespace

BackwardClock::BackwardClock(std::vector<SequenceRange> nodes, Marks& marks)
    : nodes_(std::move(nodes)), marks_(marks) {
  BackwardClock* none = nullptr;
  PW_CHECK(current.compare_exchange_strong(none, this), "two backward clocks at a time");
  at::RecordFunctionCallback callback(
      [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
        if (BackwardClock* const clock = current) clock->started();
        return nullptr;
      },
      [](const at::RecordFunction& function, at::ObserverContext*) {
        if (BackwardClock* const clock = current) clock->ended(static_cast<uint64_t>(function.seqNr()));
      });
  handle_ = at::addThreadLocalCallback(callback.scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

BackwardClock::~BackwardClock() {
  at::removeCallback(handle_);
  current = nullptr;
}

void BackwardClock::started() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!last_) last_ = marks_.set();
}

void BackwardClock::ended(uint64_t sequence) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t mark = marks_.set();
  const auto after = std::upper_bound(nodes_.begin(), nodes_.end(), sequence,
                                      [](uint64_t s, const SequenceRange& range) { return s < range.begin; });
  // Several nodes may begin at one number when they make no function: the last of them is the one that does.
  if (after != nodes_.begin() && sequence < std::prev(after)->end)
    charges_.push_back({static_cast<size_t>(std::prev(after) - nodes_.begin()), last_.value(), mark});
  last_ = mark;
}

std::vector<Stretch> BackwardClock::stretches() const {
  std::vector<Stretch> stretches(nodes_.size());
  for (const Charge& charge : charges_) stretches[charge.node] += marks_.between(charge.from, charge.to);
  return stretches;
}

}  // namespace pipewright
