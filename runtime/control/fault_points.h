// Faults at known points of a rank's run, for tests: what happens between two actions is then no matter of
// time.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace pipewright {

/// PIPEWRIGHT_TEST_FAULT=RANK:POINT:FAULT in the environment: at its POINT-th point (from 0) rank RANK sends
/// the signal of number FAULT to itself, or throws a RunError where FAULT is "throw", or fails a check of our
/// own where it is "check". RANK:POINT:FAULT:ATTEMPT is of a further start of the job's ranks, or with "*" of
/// every one. Several are separated by ";". A fault that is not of this rank, or of a point that does not
/// come, never happens.
class FaultPoints {
 public:
  explicit FaultPoints(int64_t rank);
  /// The next point. True if a signal was sent and survived.
  bool next();

 private:
  std::map<int64_t, std::string> faults_;  // of this rank, by point
  int64_t next_ = 0;
};

}  // namespace pipewright
