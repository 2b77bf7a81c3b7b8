#include "runtime/control/rank_channel.h"

#include <algorithm>
#include <utility>

namespace pipewright {
namespace {

constexpr const char* kFinished = "";            // a delivery without a message is the last one
constexpr const char* kDeliveries = "messages";  // of all ranks, counted

// A delivery: messages, a line each.
std::string delivery_key(int64_t rank, int64_t number) {
  return "messages/" + std::to_string(rank) + "/" + std::to_string(number);
}

}  // namespace

RankChannel::RankChannel(int64_t rank, int64_t world_size)
    : rank_(rank),
      world_size_(world_size),
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

void RankChannel::deliver(Store& store) {
  std::vector<RankMessage> messages;
  {
    const std::lock_guard lock(mutex_);
    messages.swap(posted_);
  }
  if (messages.empty()) return;
  if (rank_ == 0) {
    for (RankMessage& message : messages) hand_over(0, std::move(message));
    return;
  }
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
      store.erase(delivery_key(rank, collected_[i]++));
      if (*lines == kFinished) finished_[i] = true;
      for (size_t begin = 0; begin < lines->size();) {
        const size_t end = std::min(lines->find('\n', begin), lines->size());
        hand_over(rank, rank_message_of(lines->substr(begin, end - begin)));
        begin = end + 1;
      }
    }
  }
  return std::all_of(finished_.begin(), finished_.end(), [](bool finished) { return finished; });
}

}  // namespace pipewright
