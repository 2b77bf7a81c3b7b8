// LibTorch's Gloo header includes headers that the wheel does not ship; runtime/transport/gloo_shim stands in
// for them.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

#include "test_paths.h"

TEST_CASE("gloo shim: every header that this LibTorch's ProcessGroupGloo.hpp wants of Gloo has a stand-in") {
  const std::filesystem::path header =
      std::filesystem::path(PIPEWRIGHT_TORCH_INCLUDE) / "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp";
  const std::filesystem::path shim =
      std::filesystem::path(PIPEWRIGHT_SOURCE_DIR) / "runtime/transport/gloo_shim";
  std::ifstream in(header);
  REQUIRE(in);
  int found = 0;
  const std::regex include(R"(^\s*#\s*include\s*<(gloo/[^>]+)>)");
  for (std::string line; std::getline(in, line);) {
    std::smatch match;
    if (!std::regex_search(line, match, include)) continue;
    ++found;
    INFO("this LibTorch's ProcessGroupGloo.hpp includes <" << match[1] << ">: add a stand-in to " << shim);
    CHECK(std::filesystem::exists(shim / match[1].str()));
  }
  CHECK(found > 0);
}
