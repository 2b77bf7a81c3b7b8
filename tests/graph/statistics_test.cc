#include "graph/statistics.h"

#include <catch2/catch.hpp>

namespace pipewright {
namespace {

TEST_CASE("median and spread") {
  CHECK(median({3}) == 3);
  CHECK(median({5, 1, 3}) == 3);
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(relative_spread({2, 2, 2}) == 0);
  CHECK(relative_spread({1, 2, 4, 100}) == Approx(1.5 / 3));  // deviations 2, 1, 1, 97
  CHECK(relative_spread({0, 0, 0}) == 0);
}

}  // namespace
}  // namespace pipewright
