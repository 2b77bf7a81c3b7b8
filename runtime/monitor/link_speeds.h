// What is known of the links that have become slow.
#pragma once

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/monitor/link_judge.h"

namespace pipewright {

/// Said on one thread, asked on another.
class LinkSpeeds {
 public:
  void take(const LinkChange& change) {
    const std::lock_guard lock(mutex_);
    last_[{change.sender, change.receiver}] = change;
  }
  /// The last change of each link that is slow now, by sender and receiver.
  std::vector<LinkChange> slow() const {
    const std::lock_guard lock(mutex_);
    std::vector<LinkChange> links;
    for (const auto& [ranks, change] : last_)
      if (change.change.slowdown > 1) links.push_back(change);
    return links;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<int64_t, int64_t>, LinkChange> last_;
};

}  // namespace pipewright
