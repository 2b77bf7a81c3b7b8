// What takes a GPU: its rounds on the CPU, where they are the same work, and which kinds there are.
#include "profiler/gpu_hogs.h"

#include <catch2/catch.hpp>

#include "graph/error.h"
#include "tests/support/error_of.h"

namespace pipewright::testing {

TEST_CASE("gpu hogs: rounds of each kind end") {
  CHECK(gpu_hog_kinds() == std::vector<std::string>{"matrix", "copy"});
  for (const std::string& kind : gpu_hog_kinds()) {
    CAPTURE(kind);
    const auto round = gpu_hog_round(kind, at::kCPU);
    for (int i = 0; i < 3; ++i) round();
  }
}

TEST_CASE("gpu hogs: what is no work for a GPU, or no kind at all, is refused") {
  CHECK_NOTHROW(check_gpu_hog("copy", "--kind"));
  CHECK(error_of<InputError>([] { check_gpu_hog("loopback", "--kind"); }) ==
        "--kind: \"loopback\" takes no GPU: it is TCP through the host to itself");
  CHECK_THAT(error_of<InputError>([] { check_gpu_hog("cpoy", "--kind"); }),
             Catch::Contains("did you mean 'copy'?"));
}

}  // namespace pipewright::testing
