#include <ATen/core/grad_mode.h>

#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/sync/meeting_messages.h"
#include "runtime/sync/weight_meetings.h"

namespace pipewright {
namespace {

using Tensors = std::vector<at::Tensor>;

// Answers, on a thread for each active replica.
class PassiveMeetings : public WeightMeetings {
 public:
  PassiveMeetings(Transport& transport, WeightMeetingSettings settings)
      : transport_(transport), settings_(std::move(settings)) {}

  ~PassiveMeetings() override {
    if (threads_.empty()) return;
    transport_.abort("this rank stops");
    for (std::thread& thread : threads_) thread.join();
  }

  void begin(Tensors weights, int64_t) override {
    publish(std::move(weights), 0);
    turn_ = 0;
    for (const int64_t active : settings_.partners.active()) {
      const int64_t peer = settings_.ranks.at(static_cast<size_t>(active));
      threads_.emplace_back([this, peer] { answer_until_end(peer); });
    }
  }

  std::optional<Tensors> update(Tensors weights, int64_t updates) override {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    std::optional<Tensors> changed = take(weights);
    publish(changed ? *changed : std::move(weights), updates);
    return changed;
  }

  std::optional<Tensors> end(Tensors weights, int64_t) override {
    for (std::thread& thread : std::exchange(threads_, {})) thread.join();
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    std::optional<Tensors> changed = take(weights);
    publish({}, 0);
    return changed;
  }

  int64_t take_sent_bytes() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(sent_bytes_, 0);
  }

 private:
  // Under the mutex, as the next one.
  std::optional<Tensors> take(const Tensors& weights) const {
    if (!has_met_) return std::nullopt;
    return with_change(weights, published_, met_);
  }
  void publish(Tensors weights, int64_t updates) {
    published_ = met_ = std::move(weights);
    updates_ = updates;
    has_met_ = false;
  }

  void answer_until_end(int64_t peer) {
    const at::NoGradGuard no_grad;
    try {
      while (receive_meeting(transport_, peer, settings_.tag) != kNoMoreMeetings) answer(peer);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
  }

  void answer(int64_t peer) {
    Tensors own;
    {
      const std::lock_guard lock(mutex_);
      own = published_;
    }
    const Tensors theirs = receive_weights(transport_, peer, settings_.tag, own);
    MeetingHead head{};
    {
      const std::lock_guard lock(mutex_);
      own = std::exchange(met_, mean_of(met_, theirs));
      has_met_ = true;
      head = {updates_, turn_++};
      sent_bytes_ += bytes_of(own);
    }
    for (const auto& send : send_meeting(transport_, peer, settings_.tag, head, own)) send->wait();
  }

  Transport& transport_;
  const WeightMeetingSettings settings_;
  std::mutex mutex_;  // of what follows
  Tensors published_, met_;
  int64_t updates_ = 0;   // of the span: what was published comes from them
  int64_t turn_ = 0;      // meetings of the span
  bool has_met_ = false;  // since published_ was
  int64_t sent_bytes_ = 0;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;  // of the span
};

}  // namespace

std::unique_ptr<WeightMeetings> make_passive_meetings(Transport& transport, WeightMeetingSettings settings) {
  return std::make_unique<PassiveMeetings>(transport, std::move(settings));
}

}  // namespace pipewright
