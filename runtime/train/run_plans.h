// The plans of a run, one generation after the other: those that are known beforehand, and those that are
// decided on the way. Rank 0 has them in the run folder, for `verify --run` and a run that goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/job/job.h"

namespace pipewright {

class RunPlans {
 public:
  /// Borrows the job, whose changes grow here and nowhere else.
  explicit RunPlans(Job& job) : job_(job) {}

  /// The run may have further plans than its first.
  bool may_change() const { return job_.decides || !job_.changes.empty(); }
  /// The first minibatch of each, as far as they are known.
  std::vector<int64_t> begins() const;
  /// In the run folder.
  std::string file_of(int64_t generation) const;

  /// A change takes effect from the minibatch on, like one that was known beforehand.
  void add(PlannedChange change, int64_t minibatch);
  /// A minibatch before which all ranks can stop if `last_begun` is the last that has begun, as
  /// place_within_plan() says it. `place`: likewise. Any thread.
  int64_t stop_behind(int64_t last_begun,
                      const std::function<int64_t(int64_t generation, int64_t last_begun)>& place) const;

  // Rank 0.
  /// Before the run: all that are known, for a run of so many minibatches.
  void write_all(int64_t minibatches) const;
  /// The last one that was added, and a line on standard error.
  void tell_last() const;
  /// Those that an earlier run left in the folder are removed.
  void remove_others() const;

 private:
  void write_list() const;

  Job& job_;
  mutable std::mutex mutex_;  // while the changes grow, and while another thread reads them
};

}  // namespace pipewright
