#include "runtime/control/stop_agreement.h"

#include <algorithm>
#include <utility>

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/control/control.h"

namespace pipewright {
namespace {

// However many rounds there are, these are all keys. Values say of which round they are.
constexpr const char* kSignalKey = "stop/signal";    // of the first rank that has one
constexpr const char* kRoundKey = "stop/round";      // rank 0: all are asked
constexpr const char* kChangeKey = "stop/change";    // rank 0: what for, if not for a signal
constexpr const char* kDecidedKey = "stop/decided";  // rank 0, then: where to stop
constexpr const char* kReadyKey = "stop/ready";      // ranks that know, counted over all rounds

std::string started_key(int64_t rank) { return "stop/started/" + std::to_string(rank); }

// What the key says of this round, if it does yet.
std::optional<Json> said_of(Store& store, const std::string& key, int64_t round) {
  const auto text = store.try_get(key);
  if (!text) return std::nullopt;
  Json json = parse_json(*text, key);
  return json.at("round").get<int64_t>() == round ? std::optional(std::move(json)) : std::nullopt;
}

}  // namespace

StopAgreement::StopAgreement(Settings settings)
    : settings_(std::move(settings)), last_started_(settings_.first_minibatch - 1) {}

void StopAgreement::enter(int64_t minibatch, const std::function<void()>& check) {
  std::unique_lock lock(mutex_);
  if (settings_.world_size == 1) agree_alone();
  while (gate_closed_) {
    changed_.wait_for(lock, std::chrono::milliseconds(50));
    lock.unlock();
    check();
    lock.lock();
  }
  if (minibatch < stop_before_) last_started_ = std::max(last_started_, minibatch);
}

void StopAgreement::agree_alone() {
  if (stop_before_ != kNever) return;
  const int signal = settings_.heeds_signals ? received_signal.load() : 0;
  if (signal == 0 && !proposal_) return;
  under_way_ = true;
  signal_ = signal;
  if (signal == 0) change_ = *std::exchange(proposal_, {});
  stop_before_ = settings_.stop_after(last_started_);
}

void StopAgreement::propose(std::string change) {
  PW_CHECK(settings_.rank == 0 && !under_way_, "a change is proposed while another one is under way");
  const std::lock_guard lock(mutex_);
  proposal_ = std::move(change);
  under_way_ = true;
}

std::string StopAgreement::change() const {
  const std::lock_guard lock(mutex_);
  return change_;
}

void StopAgreement::go_on() {
  const std::lock_guard lock(mutex_);
  PW_CHECK(stop_before_ != kNever && signal_ == 0, "nothing has been changed");
  stop_before_ = kNever;
  change_.clear();
  gone_on_ = settings_.world_size > 1;  // alone there is no round
  under_way_ = false;
}

bool StopAgreement::tick(Store& store) {
  switch (phase_) {
    case Phase::kNone:
      if (settings_.heeds_signals && received_signal != 0 && !store.try_get(kSignalKey))
        store.set(kSignalKey, std::to_string(received_signal.load()));
      if (settings_.rank == 0) open(store);
      return answer(store);
    case Phase::kAsked:
      if (settings_.rank == 0) decide(store);
      return learn(store);
    case Phase::kKnown:
      return open_gate(store);
    case Phase::kOpen: {
      const std::lock_guard lock(mutex_);
      if (std::exchange(gone_on_, false)) phase_ = Phase::kNone;
      return false;
    }
  }
  return false;
}

void StopAgreement::open(Store& store) {
  const auto signal = settings_.heeds_signals ? store.try_get(kSignalKey) : std::nullopt;
  {
    const std::lock_guard lock(mutex_);
    if (!signal && !proposal_) return;
  }
  Json json;
  json["round"] = round_ + 1;
  json["signal"] = signal ? std::stoi(*signal) : 0;
  store.set(kRoundKey, json.dump());
}

bool StopAgreement::answer(Store& store) {
  const auto asked = said_of(store, kRoundKey, round_ + 1);
  if (!asked) return false;
  Json json;
  {
    const std::lock_guard lock(mutex_);
    under_way_ = true;
    signal_ = asked->at("signal").get<int>();
    gate_closed_ = true;
    json["round"] = ++round_;
    json["started"] = last_started_;
  }
  store.set(started_key(settings_.rank), json.dump());
  phase_ = Phase::kAsked;
  return true;
}

void StopAgreement::decide(Store& store) {
  if (said_of(store, kDecidedKey, round_)) return;
  int64_t last = std::numeric_limits<int64_t>::min();
  for (int64_t rank = 0; rank < settings_.world_size; ++rank) {
    const auto said = said_of(store, started_key(rank), round_);
    if (!said) return;
    last = std::max(last, said->at("started").get<int64_t>());
  }
  if (signal_ == 0) {
    std::string change;
    {
      const std::lock_guard lock(mutex_);
      change = *std::exchange(proposal_, {});
    }
    store.set(kChangeKey, change);
  }
  Json json;
  json["round"] = round_;
  json["before"] = settings_.stop_after(last);
  store.set(kDecidedKey, json.dump());
}

bool StopAgreement::learn(Store& store) {
  const auto decided = said_of(store, kDecidedKey, round_);
  if (!decided) return true;
  if (signal_ == 0) {
    std::string change = store.try_get(kChangeKey).value();
    const std::lock_guard lock(mutex_);
    change_ = std::move(change);
  }
  stop_before_ = decided->at("before").get<int64_t>();
  phase_ = Phase::kKnown;  // before the others may hear of it
  store.add(kReadyKey, 1);
  return true;
}

bool StopAgreement::open_gate(Store& store) {
  if (store.add(kReadyKey, 0) < round_ * settings_.world_size) return true;
  const std::lock_guard lock(mutex_);
  gate_closed_ = false;
  changed_.notify_all();
  phase_ = Phase::kOpen;
  return false;
}

}  // namespace pipewright
