#include "runtime/control/stop_agreement.h"

#include <algorithm>
#include <string>

#include "runtime/control/control.h"

namespace pipewright {
namespace {

constexpr const char* kSignalKey = "stop/signal";
constexpr const char* kBeforeKey = "stop/before";
constexpr const char* kReadyKey = "stop/ready";

std::string started_key(int64_t rank) { return "stop/started/" + std::to_string(rank); }

}  // namespace

StopAgreement::StopAgreement(int64_t rank, int64_t world_size, int64_t first_minibatch,
                             std::vector<int64_t> entries, std::function<int64_t(int64_t)> stop_after)
    : rank_(rank),
      world_size_(world_size),
      entries_(std::move(entries)),
      stop_after_(std::move(stop_after)),
      last_started_(first_minibatch - 1) {}

void StopAgreement::enter(int64_t minibatch, const std::function<void()>& check) {
  std::unique_lock lock(mutex_);
  if (world_size_ == 1 && received_signal != 0 && signal_ == 0) {
    stop_before_ = stop_after_(last_started_);
    signal_ = received_signal.load();
  }
  while (gate_closed_) {
    changed_.wait_for(lock, std::chrono::milliseconds(50));
    lock.unlock();
    check();
    lock.lock();
  }
  if (minibatch < stop_before_) last_started_ = std::max(last_started_, minibatch);
}

void StopAgreement::tick(Store& store) {
  switch (phase_) {
    case Phase::kNone: {
      if (received_signal != 0 && !store.try_get(kSignalKey))
        store.set(kSignalKey, std::to_string(received_signal.load()));
      const auto text = store.try_get(kSignalKey);
      if (!text) return;
      signal_ = std::stoi(*text);
      phase_ = Phase::kAsked;
      if (std::find(entries_.begin(), entries_.end(), rank_) == entries_.end()) return;
      int64_t started = 0;
      {
        const std::lock_guard lock(mutex_);
        gate_closed_ = true;
        started = last_started_;
      }
      store.set(started_key(rank_), std::to_string(started));
      return;
    }
    case Phase::kAsked: {
      if (rank_ == 0) decide(store);
      const auto text = store.try_get(kBeforeKey);
      if (!text) return;
      stop_before_ = std::stoll(*text);
      store.add(kReadyKey, 1);
      phase_ = Phase::kKnown;
      return;
    }
    case Phase::kKnown: {
      if (store.add(kReadyKey, 0) < world_size_) return;
      const std::lock_guard lock(mutex_);
      gate_closed_ = false;
      changed_.notify_all();
      phase_ = Phase::kOpen;
      return;
    }
    case Phase::kOpen:
      return;
  }
}

void StopAgreement::decide(Store& store) {
  if (store.try_get(kBeforeKey)) return;
  int64_t last = std::numeric_limits<int64_t>::min();
  for (const int64_t entry : entries_) {
    const auto started = store.try_get(started_key(entry));
    if (!started) return;
    last = std::max<int64_t>(last, std::stoll(*started));
  }
  store.set(kBeforeKey, std::to_string(stop_after_(last)));
}

}  // namespace pipewright
