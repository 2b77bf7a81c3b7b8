// Ranks that sleep now and then, for tests of pipelines that wait for each other.
#pragma once

#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/runtime/pipelines.h"

namespace pipewright::testing {

/// PIPEWRIGHT_SIDE_BY_SIDE_CASES, if it is set.
inline int64_t side_by_side_cases(int64_t usual) {
  const char* given = std::getenv("PIPEWRIGHT_SIDE_BY_SIDE_CASES");
  return given ? std::stoll(given) : usual;
}

/// A quarter of all backwards begin up to 3 ms late; 0: none.
inline BeforeAction random_delays(int64_t ranks, uint64_t seed) {
  if (seed == 0) return [](int64_t, const Action&) {};
  auto random = std::make_shared<std::vector<std::mt19937_64>>();
  for (int64_t rank = 0; rank < ranks; ++rank)
    random->emplace_back(seed * 1000 + static_cast<uint64_t>(rank));
  return [random](int64_t rank, const Action& action) {
    auto& own = (*random)[static_cast<size_t>(rank)];
    if (action.kind != ActionKind::kBackward || own() % 4 != 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(own() % 3000));
  };
}

}  // namespace pipewright::testing
