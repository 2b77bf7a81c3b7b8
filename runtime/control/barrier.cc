#include "runtime/control/barrier.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "graph/error.h"

namespace pipewright {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

// The lowest of those that are there speaks for all.
bool speaks(int64_t rank, const std::vector<int64_t>& missing) {
  for (int64_t lower = 0; lower < rank; ++lower) {
    if (!std::binary_search(missing.begin(), missing.end(), lower)) return false;
  }
  return true;
}

}  // namespace

Barrier::Barrier(Board board, std::string name, int64_t rank, int64_t world_size)
    : board_(board), name_(std::move(name)), rank_(rank), world_size_(world_size) {}

std::vector<int64_t> Barrier::missing() const {
  std::vector<int64_t> missing;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    if (!board_.has_come_to(name_, rank)) missing.push_back(rank);
  }
  return missing;
}

int64_t Barrier::work_of(const std::vector<int64_t>& ranks) const {
  int64_t work = 0;
  for (const int64_t rank : ranks) {
    if (const auto beat = board_.beat_of(rank)) work += beat->work;
  }
  return work;
}

void Barrier::wait(std::chrono::milliseconds patience, Meeting meeting, const std::function<void()>& check) {
  board_.come_to(name_, rank_, world_size_);
  const auto look_interval = std::min<Clock::duration>(patience / 4, 3s);
  const auto begin = Clock::now();
  auto patient_since = begin;
  auto next_look = begin + look_interval;
  auto next_word = begin + (meeting == Meeting::kStart ? 3s : 30s);
  int64_t work = -1;
  for (auto now = begin; !board_.is_open(name_); now = Clock::now()) {
    check();
    if (meeting == Meeting::kEnd && now > next_look) {
      const int64_t done = work_of(missing());
      if (std::exchange(work, done) != done) patient_since = now;
      next_look = now + look_interval;
    }
    const bool over = now - patient_since > patience;
    if (over || (meeting != Meeting::kPlain && now > next_word)) {
      const auto missing = this->missing();
      if (missing.empty()) continue;  // they have come this moment
      const std::string who = ranks_words(missing) + " of " + std::to_string(world_size_);
      if (over) {
        throw PeerError(
            "rank " + std::to_string(rank_) + ": after " + seconds_words(patience) + " " + who +
                (missing.size() == 1 ? " has" : " have") + " not reached '" + name_ + "' at " +
                board_.address(),
            meeting == Meeting::kEnd
                ? "see what they last did in their logs; --start-timeout is how long is waited"
                : "start the missing ranks, with the same plan and rendezvous; --start-timeout is "
                  "how long is waited");
      }
      if (speaks(rank_, missing)) {
        std::fprintf(stderr, "waiting for %s %s %s (%s so far)\n", who.c_str(),
                     meeting == Meeting::kStart ? "at" : "to end, at", board_.address().c_str(),
                     seconds_words(now - begin).c_str());
      }
      next_word = now + std::clamp<Clock::duration>(2 * (now - begin), 5s, 60s);
    }
    std::this_thread::sleep_for(std::clamp<Clock::duration>((now - begin) / 8, 2ms, 200ms));
  }
}

}  // namespace pipewright
