#include "runtime/control/control.h"

#include <algorithm>
#include <utility>

#include "graph/error.h"

namespace pipewright {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

// The wait for messages of a job that has failed.
constexpr std::chrono::milliseconds kLastWords = 2s;

// How often messages are handed over and failures looked for. Where ranks are many each asks less often: one
// process answers all of them.
std::chrono::milliseconds interval_of(int64_t world_size) {
  return 100ms * std::max<int64_t>(1, world_size / 16);
}

Failure interruption(int64_t rank) {
  return {rank, exit_code_of_signal(received_signal), words_of_signal(received_signal)};
}

}  // namespace

Control::Control(std::optional<Store> store, int64_t rank, int64_t world_size,
                 std::chrono::milliseconds timeout, std::function<void(const std::string&)> on_failure)
    : store_(std::move(store)),
      rank_(rank),
      world_size_(world_size),
      interval_(interval_of(world_size)),
      timeout_(timeout),
      failure_(std::move(on_failure)),
      channel_(rank, world_size),
      heart_(rank),
      neighbour_(rank, world_size),
      guard_(rank, failure_, timeout_) {
  if (!store_) return;
  // Here and not in the thread: a rank that is stopped before its thread has run is missed all the same.
  heart_.begin(*store_);
  thread_ = std::thread([this] { run(); });
  guard_.begin(interval_);
}

Control::~Control() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  // If the thread is stuck in a request to a store that no longer answers, the guard ends the process.
  if (thread_.joinable()) thread_.join();
}

void Control::set_sink(RankChannel::Sink sink) { channel_.set_sink(std::move(sink)); }

void Control::set_order_sink(RankChannel::OrderSink sink) { channel_.set_order_sink(std::move(sink)); }

void Control::call_often(std::function<bool()> tick) {
  const std::lock_guard lock(mutex_);
  tick_ = std::move(tick);
}

void Control::call_at_beats(std::function<void(const ProgressNow&)> told) {
  const std::lock_guard lock(mutex_);
  at_beats_ = std::move(told);
}

void Control::watch(Progress& progress, std::function<void(const std::string&)> last_words) {
  heart_.watch(progress);
  guard_.watch(progress, std::move(last_words));
}

void Control::store_is_served_by(int64_t rank) {
  if (store_) guard_.store_is_served_by(Board(*store_).report_of(rank));
}

void Control::set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

void Control::barrier(const std::string& name, std::chrono::milliseconds patience, Meeting meeting) {
  check();
  if (store_) Barrier(*store_, name, rank_, world_size_).wait(patience, meeting, [this] { check(); });
}

void Control::post(RankMessage message) {
  if (store_) {
    const bool waited_for = agreement_in(message).has_value();
    channel_.post(std::move(message));
    if (waited_for) hurry();
  } else {
    channel_.hand_over(rank_, std::move(message));
  }
}

void Control::tell(int64_t first_rank, int64_t end_rank, const Order& order) {
  if (store_) {
    channel_.tell(first_rank, end_rank, order);
    hurry();
  } else {
    channel_.hand_over(order);
  }
}

void Control::await_orders(Store& store, std::chrono::milliseconds patience,
                           const std::function<bool()>& done) {
  channel_.await_orders(store, patience, done, [this] { check(); });
}

void Control::hurry() {
  {
    const std::lock_guard lock(mutex_);
    hurry_ = true;
  }
  changed_.notify_all();
}

void Control::finish(std::chrono::milliseconds patience) {
  if (!store_) return;
  std::unique_lock lock(mutex_);
  finishing_ = true;
  changed_.notify_all();
  const auto begin = Clock::now();
  while (!stop_ && !collected_all_) {
    // A job that has failed has nothing more to collect than last words.
    if (Clock::now() - begin > (failure_.failed() ? std::min(patience, kLastWords) : patience)) break;
    changed_.wait_for(lock, interval_);
  }
  stop_ = true;
  lock.unlock();
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Control::finishing() const {
  const std::lock_guard lock(mutex_);
  return finishing_;
}

void Control::check() const {
  if (failure_.failed()) {
    const auto failure = this->failure();
    const bool own = is_interruption(failure->code) || failure->rank == rank_;
    throw JobEnded(own ? failure->code : ExitCode::kPeerLost, failure->message, *failure);
  }
  if (!store_ && received_signal != 0 && !signals_held_) {
    const Failure failure = interruption(rank_);
    throw JobEnded(failure.code, failure.message, failure);
  }
}

Failure Control::fail(Failure failure) {
  if (!store_) return failure;
  if (const auto known = this->failure()) return *known;
  try {
    return failure_.announce(*store_, failure, timeout_);
  } catch (const std::exception&) {
    // The store has gone: what we know ourselves is all there is.
  }
  failure_.take(failure);
  return failure;
}

Failure Control::peer_lost(const std::string& message) {
  // The peer may have left because of a failure elsewhere that is about to be announced, or has been.
  for (const auto deadline = Clock::now() + 1s; Clock::now() < deadline; std::this_thread::sleep_for(20ms)) {
    if (const auto known = failure()) return *known;
  }
  std::string waiting;
  try {
    if (store_) waiting = who_waits_for(Board(*store_).reports_of_all(world_size_), rank_);
  } catch (const PeerError&) {
    // The store has gone as well.
  }
  return fail({rank_, ExitCode::kPeerLost, joined({message, waiting})});
}

std::optional<Failure> Control::failure() const { return failure_.failure(); }

void Control::run() {
  std::optional<Store> store;
  try {
    store = store_->clone();
    talk_to(*store);
  } catch (const PeerError& error) {
    failure_.take({rank_, ExitCode::kPeerLost, joined({error.what(), guard_.words_without_store()})});
  } catch (const std::exception& error) {
    // The sink: rank 0 cannot write its book.
    const auto* coded = dynamic_cast<const Error*>(&error);
    const Failure failure{rank_, coded ? coded->code() : ExitCode::kFailed,
                          "rank " + std::to_string(rank_) + ": " + error.what()};
    try {
      if (store) failure_.announce(*store, failure, timeout_);
    } catch (const std::exception&) {
    }
    failure_.take(failure);
  }
  guard_.end();
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

void Control::talk_to(Store& store) {
  auto next_beat = Clock::now();
  bool said_finished = false;
  bool soon = false;
  while (true) {
    const auto [last, finishing] = [&] {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, soon ? interval_ / 50 : interval_,
                        [this] { return stop_ || finishing_ || hurry_; });
      hurry_ = false;
      return std::pair(stop_, finishing_);
    }();
    // What has come is answered at once. `finishing` was read before: what has been posted by then is
    // delivered, and nothing comes after it.
    if (rank_ != 0 && !said_finished) channel_.take_orders(store);
    channel_.deliver(store);
    if (finishing && !said_finished) {
      heart_.stop(store);
      channel_.finish(store);
      said_finished = true;
    }
    if (rank_ == 0) {
      const bool all = channel_.collect(store);
      channel_.deliver(store);  // what follows from it
      if (all) {
        const std::lock_guard lock(mutex_);
        collected_all_ = true;
        changed_.notify_all();
      }
    }
    // Rank 0 may serve the store and be gone as soon as it knows that all have finished: others ask nothing
    // after they have said so.
    if (last || (said_finished && rank_ != 0)) return;
    if (received_signal != 0 && !failure_.failed() && !signals_held_) {
      failure_.announce(store, interruption(rank_), timeout_);
    }
    failure_.look(store);
    const auto tick = [&] {
      const std::lock_guard lock(mutex_);
      return tick_;
    }();
    soon = tick && !failure_.failed() && tick();
    if (!said_finished && Clock::now() >= next_beat) {
      beat_and_watch(store);
      next_beat = Clock::now() + std::min<std::chrono::milliseconds>(1s, timeout_.load() / 10);
    }
    guard_.contact();
    if (!said_finished) continue;
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 5ms, [this] { return stop_; });
  }
}

void Control::beat_and_watch(Store& store) {
  const ProgressNow now = heart_.beat(store);
  const auto told = [&] {
    const std::lock_guard lock(mutex_);
    return at_beats_;
  }();
  if (told) told(now);
  if (world_size_ == 1 || failure_.failed()) return;
  guard_.heed_server(store);
  const auto announce = [&](const std::optional<Failure>& failure) {
    if (failure) failure_.announce(store, *failure, timeout_);
  };
  announce(neighbour_.look(store, timeout_));
  if (!failure_.failed()) announce(not_getting_on(store, rank_, world_size_, now, timeout_));
}

}  // namespace pipewright
