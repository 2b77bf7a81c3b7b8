#include <ATen/core/grad_mode.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/sync/meeting_messages.h"
#include "runtime/sync/weight_meetings.h"

namespace pipewright {
namespace {

using Tensors = std::vector<at::Tensor>;

// Asks with what an update has left, one meeting after the other.
class ActiveMeetings : public WeightMeetings {
 public:
  ActiveMeetings(Transport& transport, WeightMeetingSettings settings)
      : transport_(transport), settings_(std::move(settings)) {}

  ~ActiveMeetings() override {
    if (!thread_.joinable()) return;
    bool under_way = false;
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
      under_way = state_ == State::kAsked;
    }
    changed_.notify_all();
    if (under_way) transport_.abort("this rank stops");
    thread_.join();
  }

  void begin(Tensors, int64_t span) override {
    span_ = span;
    over_ = false;
    thread_ = std::thread([this] { run(); });
  }

  std::optional<Tensors> update(Tensors weights, int64_t updates) override {
    std::optional<Tensors> changed;
    {
      const std::lock_guard lock(mutex_);
      if (error_) std::rethrow_exception(error_);
      if (state_ == State::kAsked) return std::nullopt;
      changed = take(weights, updates);
      published_ = changed ? *changed : std::move(weights);
      meeting_ = {settings_.replica, settings_.partners.drawn(settings_.replica, span_, updates), updates};
      state_ = State::kAsked;
    }
    changed_.notify_all();
    return changed;
  }

  std::optional<Tensors> end(Tensors weights, int64_t updates) override {
    std::optional<Tensors> changed;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return state_ != State::kAsked || error_; });
      if (error_) std::rethrow_exception(error_);
      changed = take(weights, updates + 1);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
    std::vector<std::unique_ptr<Request>> sends;
    for (const int64_t passive : settings_.partners.passive())
      for (auto& send : send_meeting(transport_, rank_of(passive), settings_.tag, kNoMoreMeetings))
        sends.push_back(std::move(send));
    for (const auto& send : sends) send->wait();
    return changed;
  }

  int64_t take_sent_bytes() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(sent_bytes_, 0);
  }

 private:
  enum class State { kNone, kAsked, kMet };

  int64_t rank_of(int64_t pipeline) const { return settings_.ranks.at(static_cast<size_t>(pipeline)); }

  // Under the mutex.
  std::optional<Tensors> take(const Tensors& weights, int64_t added) {
    if (state_ != State::kMet) return std::nullopt;
    state_ = State::kNone;
    meeting_.added = added;
    settings_.told(meeting_);
    return with_change(weights, std::exchange(published_, {}), std::exchange(met_, {}));
  }

  void run() {
    const at::NoGradGuard no_grad;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return over_ || state_ == State::kAsked; });
      if (over_) return;
      const Tensors own = published_;
      const int64_t peer = rank_of(meeting_.passive);
      lock.unlock();
      std::exception_ptr error;
      MeetingHead answer{};
      Tensors mean;
      try {
        const auto sends = send_meeting(transport_, peer, settings_.tag, kAsksToMeet, own);
        answer = receive_meeting(transport_, peer, settings_.tag);
        mean = mean_of(own, receive_weights(transport_, peer, settings_.tag, own));
        for (const auto& send : sends) send->wait();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = error;
      met_ = std::move(mean);
      meeting_.met = answer[0];
      meeting_.turn = answer[1];
      state_ = State::kMet;
      sent_bytes_ += bytes_of(own);
      changed_.notify_all();
      if (error) return;
    }
  }

  Transport& transport_;
  const WeightMeetingSettings settings_;
  int64_t span_ = 0;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  State state_ = State::kNone;
  WeightMeeting meeting_;  // the last one
  Tensors published_;  // what it asks with
  Tensors met_;        // the mean
  int64_t sent_bytes_ = 0;
  bool over_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // of the span
};

}  // namespace

std::unique_ptr<WeightMeetings> make_active_meetings(Transport& transport, WeightMeetingSettings settings) {
  return std::make_unique<ActiveMeetings>(transport, std::move(settings));
}

}  // namespace pipewright
