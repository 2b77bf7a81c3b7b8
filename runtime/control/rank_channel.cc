#include "runtime/control/rank_channel.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace pipewright {
namespace {

constexpr const char* kFinished = "";            // a delivery without a message is the last one
constexpr const char* kDeliveries = "messages";  // of all ranks, counted

// A delivery: messages, a line each.
std::string delivery_key(int64_t rank, int64_t number) {
  return "messages/" + std::to_string(rank) + "/" + std::to_string(number);
}

std::string order_key(int64_t rank, int64_t number) {
  return "orders/" + std::to_string(rank) + "/" + std::to_string(number);
}

template <typename Take>
void for_each_line(const std::string& lines, Take take) {
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    take(lines.substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace

RankChannel::RankChannel(int64_t rank, int64_t world_size)
    : rank_(rank),
      world_size_(world_size),
      told_(rank == 0 ? static_cast<size_t>(world_size) : 0),
      delivered_orders_(told_.size(), 0),
      collected_(static_cast<size_t>(world_size), 0),
      finished_(static_cast<size_t>(world_size), false) {}

void RankChannel::set_sink(Sink sink) {
  const std::lock_guard lock(mutex_);
  sink_ = std::move(sink);
}

void RankChannel::post(RankMessage message) {
  const std::lock_guard lock(mutex_);
  posted_.push_back(std::move(message));
}

void RankChannel::hand_over(int64_t rank, RankMessage message) {
  const Sink sink = [&] {
    const std::lock_guard lock(mutex_);
    return sink_;
  }();
  if (sink) sink(rank, std::move(message));
}

void RankChannel::set_order_sink(OrderSink sink) {
  const std::lock_guard lock(mutex_);
  order_sink_ = std::move(sink);
}

void RankChannel::tell(int64_t first_rank, int64_t end_rank, const Order& order) {
  const std::lock_guard lock(mutex_);
  for (int64_t rank = first_rank; rank < end_rank; ++rank)
    told_.at(static_cast<size_t>(rank)).push_back(order);
}

void RankChannel::hand_over(const Order& order) {
  const OrderSink sink = [&] {
    const std::lock_guard lock(mutex_);
    return order_sink_;
  }();
  if (sink) sink(order);
}

// Of rank 0: each order and message may make others.
void RankChannel::deliver_own() {
  while (true) {
    std::optional<Order> order;
    std::vector<RankMessage> messages;
    {
      const std::lock_guard lock(mutex_);
      if (order_sink_ && !told_[0].empty()) {
        order = std::move(told_[0].front());
        told_[0].pop_front();
      } else {
        messages.swap(posted_);
      }
    }
    if (order) {
      hand_over(*order);
      continue;
    }
    if (messages.empty()) return;
    for (RankMessage& message : messages) hand_over(0, std::move(message));
  }
}

void RankChannel::deliver(Store& store) {
  if (rank_ == 0) {
    deliver_own();
    for (int64_t rank = 1; rank < world_size_; ++rank) {
      std::deque<Order> orders;
      {
        const std::lock_guard lock(mutex_);
        orders.swap(told_[static_cast<size_t>(rank)]);
      }
      if (orders.empty()) continue;
      std::string lines;
      for (const Order& order : orders) lines += text_of(order) + "\n";
      store.set(order_key(rank, delivered_orders_[static_cast<size_t>(rank)]++), lines);
    }
    return;
  }
  std::vector<RankMessage> messages;
  {
    const std::lock_guard lock(mutex_);
    messages.swap(posted_);
  }
  if (messages.empty()) return;
  std::string lines;
  for (const RankMessage& message : messages) lines += text_of(message) + "\n";
  store.set(delivery_key(rank_, delivered_++), lines);
  store.add(kDeliveries, 1);
}

void RankChannel::finish(Store& store) {
  finished_[static_cast<size_t>(rank_)] = true;
  if (rank_ != 0) store.set(delivery_key(rank_, delivered_++), kFinished);
}

bool RankChannel::collect(Store& store) {
  // One question instead of one to each rank, where nothing has come. Last words are not counted: they are
  // looked for when this rank has said its own.
  const int64_t deliveries = store.add(kDeliveries, 0);
  if (deliveries == deliveries_seen_ && !finished_[0]) return false;
  deliveries_seen_ = deliveries;
  for (int64_t rank = 1; rank < world_size_; ++rank) {
    const auto i = static_cast<size_t>(rank);
    while (!finished_[i]) {
      const auto lines = store.try_get(delivery_key(rank, collected_[i]));
      if (!lines) break;
      deliver_own();  // what this rank has said before the other one, which may be the answer to it
      store.erase(delivery_key(rank, collected_[i]++));
      if (*lines == kFinished) finished_[i] = true;
      for_each_line(*lines, [&](const std::string& line) { hand_over(rank, rank_message_of(line)); });
    }
  }
  return std::all_of(finished_.begin(), finished_.end(), [](bool finished) { return finished; });
}

void RankChannel::take_in_orders(Store& store, const std::string& lines) {
  store.erase(order_key(rank_, taken_orders_++));
  for_each_line(lines, [&](const std::string& line) { hand_over(order_of(line)); });
}

void RankChannel::take_orders(Store& store) {
  const std::unique_lock taking(taking_orders_, std::try_to_lock);
  if (!taking) return;
  {
    const std::lock_guard lock(mutex_);
    if (!order_sink_) return;
  }
  while (const auto lines = store.try_get(order_key(rank_, taken_orders_))) take_in_orders(store, *lines);
}

void RankChannel::await_orders(Store& store, std::chrono::milliseconds patience,
                               const std::function<bool()>& done, const std::function<void()>& check) {
  const std::lock_guard taking(taking_orders_);
  while (!done()) take_in_orders(store, store.get(order_key(rank_, taken_orders_), patience, check));
}

}  // namespace pipewright
