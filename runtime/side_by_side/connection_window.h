// How long it takes until meetings at a stage have connected all pipelines.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace pipewright {

/// Of one stage. Counts updates of all pipelines together, as GroupStatistics does.
class ConnectionWindow {
 public:
  explicit ConnectionWindow(int64_t pipelines)
      : reached_(static_cast<size_t>(pipelines), 0), component_(static_cast<size_t>(pipelines)) {
    close();
  }

  /// All are equal.
  void begin_span() {
    close();
    std::fill(reached_.begin(), reached_.end(), 0);
  }
  /// The pipeline has made so many updates of the span, at least.
  void reached(int64_t pipeline, int64_t updates) {
    int64_t& before = reached_.at(static_cast<size_t>(pipeline));
    updates_ += std::max<int64_t>(0, updates - before);
    before = std::max(before, updates);
  }
  void connect(int64_t a, int64_t b) {
    const int64_t from = component_.at(static_cast<size_t>(a)), to = component_.at(static_cast<size_t>(b));
    std::replace(component_.begin(), component_.end(), from, to);
    if (std::count(component_.begin(), component_.end(), to) == static_cast<int64_t>(component_.size()))
      close();
  }
  /// The most updates until all were connected, or since.
  int64_t longest_updates() const { return std::max(longest_, updates_); }

 private:
  void close() {
    longest_ = std::max(longest_, updates_);
    updates_ = 0;
    std::iota(component_.begin(), component_.end(), int64_t{0});
  }

  std::vector<int64_t> reached_;    // by pipeline
  std::vector<int64_t> component_;  // by pipeline, since all were connected last
  int64_t updates_ = 0;             // likewise
  int64_t longest_ = 0;
};

}  // namespace pipewright
