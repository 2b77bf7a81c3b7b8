// What this rank says of itself, about once a second, for as long as it lives.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/control/board.h"

namespace pipewright {

class Heart {
 public:
  explicit Heart(int64_t rank) : rank_(rank) {}
  /// From now on beats say what the rank does. `progress` outlives the object. Any thread.
  void watch(Progress& progress) { progress_ = &progress; }

  /// Says which process this is, and that it is there.
  void begin(Board board);
  /// Returns what it has said.
  ProgressNow beat(Board board);
  /// The last one: the rank leaves and is not missed.
  void stop(Board board);

 private:
  const int64_t rank_;
  std::atomic<Progress*> progress_ = nullptr;
  int64_t beats_ = 0;
};

}  // namespace pipewright
