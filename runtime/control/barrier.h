// All ranks of a job meet: at its start line, at its end.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/control/board.h"

namespace pipewright {

/// What a rank that waits for all others may take for granted, and says meanwhile.
enum class Meeting {
  kPlain,
  /// Nobody is known to be there: after 3 s, and then at growing intervals, the first of the ranks that are
  /// there says on standard error whom it waits for.
  kStart,
  /// Who is missing may still have work to do: the patience counts from the last time that one of them got
  /// some done (Beat::work). After 30 s it is said as above.
  kEnd,
};

/// One meeting as one rank takes part in it. Its name is used once in a job.
class Barrier {
 public:
  Barrier(Board board, std::string name, int64_t rank, int64_t world_size);
  /// This rank has come; returns when all have. `check` is called meanwhile, and may throw. PeerError, which
  /// names the missing ones, if not all come within `patience`.
  void wait(std::chrono::milliseconds patience, Meeting meeting, const std::function<void()>& check);

 private:
  std::vector<int64_t> missing() const;
  // Grows whenever one of them gets something done.
  int64_t work_of(const std::vector<int64_t>& ranks) const;

  const Board board_;
  const std::string name_;
  const int64_t rank_;
  const int64_t world_size_;
};

}  // namespace pipewright
