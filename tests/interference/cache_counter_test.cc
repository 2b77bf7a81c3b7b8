// Misses of the last cache: none where the kernel gives none, and a number that grows where it does.
#include "interference/cache_counter.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

namespace pipewright::testing {

TEST_CASE("cache counter: NaN or a number that does not fall while memory is read, and never an error") {
  const CacheCounter counter;
  const double before = counter.misses();
  std::vector<char> large(32 << 20, 1);  // more than most caches
  for (size_t i = 0; i < large.size(); i += 64) large[i] = static_cast<char>(large[i] + 1);
  const double after = counter.misses();
  CAPTURE(before, after);
  CHECK((std::isnan(before) || (std::isfinite(before) && before >= 0)));
  CHECK((std::isnan(after) || std::isfinite(after)));
  if (!std::isnan(before) && !std::isnan(after))
    CHECK(after >= 0.9 * before);  // estimated where counters share
}

TEST_CASE("cache counter: a count of a part of the time stands for all of it") {
  CHECK(whole_count(500, 1000, 1000) == 500);
  CHECK(whole_count(500, 1000, 250) == 2000);
  CHECK(whole_count(0, 1000, 250) == 0);
  CHECK(std::isnan(whole_count(0, 1000, 0)));
}

}  // namespace pipewright::testing
