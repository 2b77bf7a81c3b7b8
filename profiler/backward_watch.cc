#include "profiler/backward_watch.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "graph/error.h"

namespace pipewright {
namespace {

// LibTorch's callbacks are plain functions. They belong to a thread; the engine hands them on to those of its
// threads that run this thread's backward.
std::atomic<BackwardWatch*> current = nullptr;

}  // namespace

BackwardWatch::BackwardWatch(std::vector<SequenceRange> nodes, Started started, Ended ended)
    : nodes_(std::move(nodes)), started_(std::move(started)), ended_(std::move(ended)) {
  BackwardWatch* none = nullptr;
  PW_CHECK(current.compare_exchange_strong(none, this), "two watches of a backward at a time");
  at::RecordFunctionCallback callback(
      [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
        if (BackwardWatch* const watch = current) {
          const std::lock_guard<std::mutex> lock(watch->mutex_);
          watch->started_();
        }
        return nullptr;
      },
      [](const at::RecordFunction& function, at::ObserverContext*) {
        if (BackwardWatch* const watch = current) {
          const std::lock_guard<std::mutex> lock(watch->mutex_);
          watch->ended_(watch->node_of(static_cast<uint64_t>(function.seqNr())));
        }
      });
  handle_ = at::addThreadLocalCallback(callback.scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

BackwardWatch::~BackwardWatch() {
  at::removeCallback(handle_);
  current = nullptr;
}

std::optional<size_t> BackwardWatch::node_of(uint64_t sequence) const {
  const auto after = std::upper_bound(nodes_.begin(), nodes_.end(), sequence,
                                      [](uint64_t s, const SequenceRange& range) { return s < range.begin; });
  // Several nodes may begin at one number when they make no function: the last of them is the one that does.
  if (after == nodes_.begin() || sequence >= std::prev(after)->end) return std::nullopt;
  return static_cast<size_t>(std::prev(after) - nodes_.begin());
}

}  // namespace pipewright
