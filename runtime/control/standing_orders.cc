#include "runtime/control/standing_orders.h"

#include <chrono>
#include <utility>
#include <vector>

#include "runtime/control/signals.h"

namespace pipewright {

StandingOrders::StandingOrders(Settings settings)
    : settings_(std::move(settings)), follower_(settings_.first_minibatch) {}

// What rank 0 is to hear of a step is posted when others may ask again: an order may come back at once.
template <typename Step>
void StandingOrders::follow(Step step) {
  std::vector<AgreementMessage> said;
  {
    const std::lock_guard lock(mutex_);
    said = step(follower_);
    under_way_ = follower_.under_way();
    signal_ = follower_.signal();  // before there is a place to stop
    stop_before_ = follower_.stop_before();
  }
  changed_.notify_all();
  for (const AgreementMessage& message : said) settings_.post(message_of(message));
}

void StandingOrders::take(const Order& order) {
  follow([&](Follower& follower) { return follower.take(order); });
}

bool StandingOrders::look_for_signal() {
  if (const int signal = received_signal; settings_.heeds_signals && signal != 0)
    follow([&](Follower& follower) { return follower.take_signal(signal); });
  const std::lock_guard lock(mutex_);
  return follower_.waits();
}

void StandingOrders::enter(int64_t minibatch, const std::function<void()>& check) {
  if (settings_.alone) look_for_signal();
  std::unique_lock lock(mutex_);
  while (!follower_.begin(minibatch)) {
    changed_.wait_for(lock, std::chrono::milliseconds(50));
    lock.unlock();
    check();
    lock.lock();
  }
}

void StandingOrders::propose() {
  follow([](Follower& follower) {
    follower.propose();
    return std::vector<AgreementMessage>();
  });
}

std::string StandingOrders::change() const {
  const std::lock_guard lock(mutex_);
  return follower_.change();
}

void StandingOrders::go_on() {
  follow([](Follower& follower) { return follower.made_change(); });
}

bool StandingOrders::has_at_drain() const {
  const std::lock_guard lock(mutex_);
  return follower_.has_at_drain();
}

std::optional<Follower::AtDrain> StandingOrders::next_at_drain() {
  const std::lock_guard lock(mutex_);
  return follower_.next_at_drain();
}

}  // namespace pipewright
