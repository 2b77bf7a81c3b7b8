// What only a GPU can show of profiles; skipped, and said so, where there is none. Tagged [alone]: beside
// other work on the GPU they would measure that.
#include <ATen/Context.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>

#include <catch2/catch.hpp>

#include "models/memory/memory_meter.h"
#include "models/run/autocast.h"
#include "models/zoo/registry.h"
#include "profiler/layers.h"
#include "profiler/marks.h"
#include "profiler/measure.h"
#include "profiler/synthetic_inputs.h"
#include "tests/support/gpu.h"

namespace pipewright::testing {
namespace {

Profile profile_on(at::Device device, const Model& model, int64_t batch_size) {
  MeasureOptions options;
  options.batch_size = batch_size;
  options.device = device;
  options.repeats = 5;
  return measure(model, synthetic_inputs(model.graph, 1), options);
}

std::string provenance(const Profile& profile, const std::string& key) {
  for (const auto& [name, value] : profile.provenance)
    if (name == key) return value;
  return "";
}

TEST_CASE("cuda: what lies between two marks is the device's time, and the host is ahead", "[cuda][alone]") {
  const auto device = gpu();
  if (!device) return;
  const at::Tensor x = at::randn({4096, 4096}, at::TensorOptions().device(*device));
  at::matmul(x, x);
  Marks marks(*device);
  marks.set();
  for (int i = 0; i < 20; ++i) {
    at::matmul(x, x);
    marks.set();
  }
  marks.wait();
  double seconds = 0;
  for (size_t i = 0; i < 20; ++i) {
    // 1.4e11 operations: no device of today makes 1e16 of them in a second.
    CHECK(marks.between(i, i + 1).device_seconds > 1e-5);
    seconds += marks.between(i, i + 1).device_seconds;
  }
  const Stretch whole = marks.between(0, 20);
  CHECK(whole.device_seconds == Approx(seconds).epsilon(0.01));
  CHECK(whole.host_seconds < whole.device_seconds);
}

TEST_CASE("cuda: a profile is complete, and its nodes add up to about the whole", "[cuda][alone]") {
  const auto device = gpu();
  if (!device) return;
  Model model = build_model("gpt:layers=2,width=512,heads=8,tokens=256,vocabulary=512", 16);
  const std::string precision = GENERATE("float32", "bfloat16");
  CAPTURE(precision);
  model.graph = with_precision(model, precision, *device);
  const Profile profile = profile_on(*device, model, 16);
  CHECK_NOTHROW(profile.validate("test"));
  CHECK_THAT(profile.device, Catch::StartsWith("cuda:0 ("));
  for (const char* key : {"cuda", "clocks", "float32_matmul", "float32_convolution"})
    CHECK_FALSE(provenance(profile, key).empty());
  for (const ProfiledNode& node : profile.nodes) {
    CAPTURE(node.name);
    CHECK(node.forward_seconds >= 0);
    CHECK(node.launch_seconds().value_or(0) > 0);
    CHECK(node.forward_gap_seconds.has_value());
  }
  // Kernels take no longer than the passes that they are made in, and nearly none is charged to no node.
  const double passes = profile.whole.forward_seconds + profile.whole.backward_seconds;
  CHECK(profile.compute_seconds() > 0.01 * passes);  // the host takes the rest of a small model's
  CHECK(profile.compute_seconds() < 1.05 * passes);
  CHECK(profile.whole.library_bytes.has_value());
  CHECK(profile.whole.input_bytes.value_or(0) > 0);
  CHECK(nodes_over_whole(profile) > 0.3);
  CHECK(nodes_over_whole(profile) < 3);
  // What is saved for the backward is a part of what the allocator gives out.
  int64_t saved = 0;
  for (const ProfiledNode& node : profile.nodes) saved += node.saved_bytes;
  CHECK(saved > 0);
  CHECK(profile.whole.allocated_bytes.value_or(0) >= saved);
}

TEST_CASE("cuda: tiny layers are launch-bound, large ones are not", "[cuda][alone]") {
  const auto device = gpu();
  if (!device) return;
  const auto share = [&](const std::string& spec, int64_t batch_size) {
    double bound = 0;
    for (const LayerCost& layer : layer_costs(profile_on(*device, build_model(spec, batch_size), batch_size)))
      if (layer.is_launch_bound()) bound += layer.share;
    return bound;
  };
  CHECK(share("mlp:layers=4,width=8,image=4", 4) > 0.9);
  CHECK(share("mlp:layers=4,width=4096,image=32", 8192) < 0.1);
}

}  // namespace
}  // namespace pipewright::testing
