// What ranks tell rank 0, and what it tells them, on its way over the job's store.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/messages/order.h"
#include "runtime/messages/rank_message.h"
#include "runtime/transport/store.h"

namespace pipewright {

/// Both ways keep their order: each rank's messages, and the orders to each rank. post(), tell(), the sinks'
/// setters, hand_over() and what takes in orders from any thread; the others from one thread, whose store it
/// is.
class RankChannel {
 public:
  using Sink = std::function<void(int64_t rank, RankMessage message)>;
  using OrderSink = std::function<void(const Order&)>;

  RankChannel(int64_t rank, int64_t world_size);
  /// Rank 0: gets every message of every rank.
  void set_sink(Sink sink);
  /// Gets every order to this rank; those that come before there is a sink wait for it.
  void set_order_sink(OrderSink sink);
  /// Does not block: the message goes with the next deliver().
  void post(RankMessage message);
  /// Rank 0, to ranks `first_rank` to `end_rank` - 1. Does not block: the order goes with the next deliver().
  void tell(int64_t first_rank, int64_t end_rank, const Order& order);
  /// Without a store: gives the sink what `rank` tells, and the order sink what it is told, at once. What
  /// comes before there is a sink nobody hears.
  void hand_over(int64_t rank, RankMessage message);
  void hand_over(const Order& order);

  /// Sends what has been posted and told; on rank 0 the sinks get what is its own, and what they post and
  /// tell meanwhile goes too.
  void deliver(Store& store);
  /// This rank's last word: nothing may be delivered after it.
  void finish(Store& store);
  /// Rank 0: the sink gets what the others have delivered, and before that what is its own. True: all ranks,
  /// and this one, have finished. InputError for what is no message.
  bool collect(Store& store);

  /// Other ranks: the order sink gets what has come, on the calling thread, whose store it is, unless another
  /// thread is about it. InputError for what is no order.
  void take_orders(Store& store);
  /// Likewise, until `done`, which is asked at first and after each delivery. PeerError if none comes within
  /// `patience`. `check` is called about once a second meanwhile, and may throw.
  void await_orders(Store& store, std::chrono::milliseconds patience, const std::function<bool()>& done,
                    const std::function<void()>& check);

 private:
  const int64_t rank_;
  const int64_t world_size_;
  void deliver_own();
  void take_in_orders(Store& store, const std::string& lines);

  std::mutex mutex_;
  Sink sink_;                        // protected by mutex_
  std::vector<RankMessage> posted_;  // and not delivered; protected by mutex_

  OrderSink order_sink_;                 // protected by mutex_
  std::vector<std::deque<Order>> told_;  // rank 0, by rank: not delivered; protected by mutex_
  std::mutex taking_orders_;             // by one thread at a time
  int64_t taken_orders_ = 0;             // deliveries; protected by taking_orders_

  std::vector<int64_t> delivered_orders_;  // rank 0, by rank: deliveries
  int64_t delivered_ = 0;
  int64_t deliveries_seen_ = -1;
  std::vector<int64_t> collected_;  // by rank: how many deliveries have been taken in
  std::vector<bool> finished_;      // by rank
};

}  // namespace pipewright
