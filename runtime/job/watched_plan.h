// The policy `watch`: who wants another plan writes it into a file while the run trains.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "runtime/job/adapt.h"

namespace pipewright {

/// Decides for the plan in the file whenever that differs from the plan in force. Looks ten times a second at
/// most, and into the file when it has changed. A file that is not there says nothing. One that cannot be
/// read is refused once, when it has not changed for a second: it may have been half written.
class WatchedPlan : public AdaptPolicy {
 public:
  explicit WatchedPlan(std::filesystem::path file) : file_(std::move(file)) {}
  bool decides() const override { return true; }
  std::optional<PlanDecision> decide(const RunNow& now) override;

 private:
  using Clock = std::chrono::steady_clock;
  /// What changes when the file is written: time, size, place on the disk.
  struct Stamp {
    int64_t seconds = 0, nanoseconds = 0, bytes = 0, inode = 0;
    bool operator==(const Stamp&) const = default;
  };
  std::optional<Stamp> stamp() const;

  const std::filesystem::path file_;
  Clock::time_point looked_{};
  std::optional<Stamp> seen_;
  Clock::time_point seen_since_{};
  bool done_with_ = true;  // with what the file held when it was seen
};

/// "watch:file=NEXT.json".
std::unique_ptr<AdaptPolicy> watched_plan(SpecOptions& options);

}  // namespace pipewright
