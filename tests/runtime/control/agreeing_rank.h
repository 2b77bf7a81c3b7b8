// A rank as far as it agrees with the others about where to stop: what Control and Training put together.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "runtime/control/coordination.h"
#include "runtime/control/rank_channel.h"
#include "runtime/control/standing_orders.h"

namespace pipewright::testing {

class AgreeingRank {
 public:
  struct Settings {
    int64_t rank = 0, world_size = 1;
    int64_t first_minibatch = 0;
    bool heeds_signals = true;
    std::function<int64_t(int64_t last_begun)> stop_behind;
  };
  explicit AgreeingRank(const Settings& settings)
      : alone_(settings.world_size == 1),
        channel_(settings.rank, settings.world_size),
        orders_({settings.first_minibatch, settings.heeds_signals, alone_,
                 [this, rank = settings.rank](RankMessage message) {
                   if (alone_) return channel_.hand_over(rank, std::move(message));
                   channel_.post(std::move(message));
                 }}),
        collects_(settings.rank == 0) {
    channel_.set_order_sink([this](const Order& order) { orders_.take(order); });
    if (!collects_) return;
    coordination_.emplace(Coordination::Settings{{settings.world_size, settings.heeds_signals},
                                                 [this](int64_t first, int64_t end, const Order& order) {
                                                   if (alone_) return channel_.hand_over(order);
                                                   channel_.tell(first, end, order);
                                                 },
                                                 settings.stop_behind});
    channel_.set_sink([this](int64_t rank, const RankMessage& message) {
      if (auto agreement = agreement_in(message)) coordination_->take(rank, std::move(*agreement));
    });
  }

  StandingOrders& orders() { return orders_; }
  RankChannel& channel() { return channel_; }
  void propose(const std::string& change) {
    orders_.propose();
    coordination_->propose(change);
  }
  /// As Control does it.
  void tick(Store& store) {
    if (!collects_) channel_.take_orders(store);
    channel_.deliver(store);
    if (collects_) {
      channel_.collect(store);
      channel_.deliver(store);
    }
    orders_.look_for_signal();
  }

 private:
  const bool alone_;
  RankChannel channel_;
  StandingOrders orders_;
  const bool collects_;
  std::optional<Coordination> coordination_;
};

}  // namespace pipewright::testing
