#include "runtime/control/line_relay.h"

#include <algorithm>
#include <utility>

namespace pipewright {
namespace {

constexpr const char* kFinished = "finished";
constexpr const char* kDeliveries = "lines";  // of all ranks, counted

std::string line_key(int64_t rank, int64_t number) {
  return "line/" + std::to_string(rank) + "/" + std::to_string(number);
}

}  // namespace

LineRelay::LineRelay(int64_t rank, int64_t world_size)
    : rank_(rank),
      world_size_(world_size),
      collected_(static_cast<size_t>(world_size), 0),
      finished_(static_cast<size_t>(world_size), false) {}

void LineRelay::set_sink(Sink sink) {
  const std::lock_guard lock(mutex_);
  sink_ = std::move(sink);
}

void LineRelay::post(std::string line) {
  const std::lock_guard lock(mutex_);
  lines_.push_back(std::move(line));
}

void LineRelay::hand_over(int64_t rank, const std::string& lines) {
  const Sink sink = [&] {
    const std::lock_guard lock(mutex_);
    return sink_;
  }();
  if (!sink) return;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    sink(rank, lines.substr(begin, end - begin));
    begin = end + 1;
  }
}

void LineRelay::deliver(Store& store) {
  std::string lines;
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& line : lines_) lines += line + "\n";
    lines_.clear();
  }
  if (lines.empty()) return;
  if (rank_ == 0) {
    hand_over(0, lines);
  } else {
    store.set(line_key(rank_, delivered_++), lines);
    store.add(kDeliveries, 1);
  }
}

void LineRelay::finish(Store& store) {
  finished_[static_cast<size_t>(rank_)] = true;
  if (rank_ != 0) store.set(line_key(rank_, delivered_++), kFinished);
}

bool LineRelay::collect(Store& store) {
  // One question instead of one to each rank, where nothing has come. Last words are not counted: they are
  // looked for when this rank has said its own.
  const int64_t deliveries = store.add(kDeliveries, 0);
  if (deliveries == deliveries_seen_ && !finished_[0]) return false;
  deliveries_seen_ = deliveries;
  for (int64_t rank = 1; rank < world_size_; ++rank) {
    const auto i = static_cast<size_t>(rank);
    while (!finished_[i]) {
      const auto lines = store.try_get(line_key(rank, collected_[i]));
      if (!lines) break;
      store.erase(line_key(rank, collected_[i]++));
      if (*lines == kFinished) {
        finished_[i] = true;
      } else {
        hand_over(rank, *lines);
      }
    }
  }
  return std::all_of(finished_.begin(), finished_.end(), [](bool finished) { return finished; });
}

}  // namespace pipewright
