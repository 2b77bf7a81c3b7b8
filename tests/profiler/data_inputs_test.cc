#include "profiler/data_inputs.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "models/load.h"
#include "tests/runtime/data/set_files.h"

namespace pipewright {
namespace {

TEST_CASE("a model is profiled with the same inputs whether what is timed is made for a device or the CPU") {
  const testing::TemporaryFolder folder;
  testing::write_mnist(folder.path());
  const Model model = load_model("mlp:layers=2,width=8,image=28,classes=10", 4);
  const auto inputs = [&](bool for_device) {
    return data_inputs("mnist:root=" + folder.path().string(), model.graph, 4, /*seed=*/3, for_device);
  };
  const DataInputs here = inputs(false), there = inputs(true);
  const int64_t labels = 4 * static_cast<int64_t>(sizeof(int64_t));
  CHECK(here.bytes == 4 * 28 * 28 * static_cast<int64_t>(sizeof(float)) + labels);
  CHECK(there.bytes == 4 * 28 * 28 + labels);  // images travel as bytes
  REQUIRE(here.tensors.size() == model.graph.inputs.size());
  for (size_t i = 0; i < here.tensors.size(); ++i) {
    CHECK(there.tensors[i].scalar_type() == here.tensors[i].scalar_type());
    CHECK(there.tensors[i].equal(here.tensors[i]));
  }
}

}  // namespace
}  // namespace pipewright
