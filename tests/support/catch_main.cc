// main() of every test program: Catch2's, but that what has skipped something and failed nowhere says so.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "tests/support/skip.h"

int main(int argc, char** argv) {
  if (Catch::Session().run(argc, argv) != 0) return 1;
  return pipewright::testing::skipped_cases == 0 ? 0 : 77;  // SKIP_RETURN_CODE of tests/CMakeLists.txt
}
