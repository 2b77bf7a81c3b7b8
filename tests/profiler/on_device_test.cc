// Profiling on a device that is not the CPU: a stand-in whose clock goes as the test says
// (tests/support/fake_device.h).
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "graph/document.h"
#include "graph/error.h"
#include "interference/core_features.h"
#include "models/memory/memory_meter.h"
#include "models/run/autocast.h"
#include "models/zoo/builder.h"
#include "models/zoo/registry.h"
#include "profiler/interference.h"
#include "profiler/layers.h"
#include "profiler/marks.h"
#include "profiler/measure.h"
#include "profiler/synthetic_inputs.h"
#include "profiler/thread_count.h"
#include "test_paths.h"
#include "tests/models/hand_graph.h"
#include "tests/support/fake_device.h"

namespace pipewright::testing {
namespace {

using Catch::Contains;

/// The device's clock goes as the test says, while this lives.
class FakeClock {
 public:
  explicit FakeClock(std::function<double(const std::string&)> seconds_of) {
    reset_fake_device();
    set_fake_clock(std::move(seconds_of));
  }
  ~FakeClock() {
    set_fake_clock();
    reset_fake_device();
  }
};

/// Drawn once for each operator; whole milliseconds.
class DrawnSeconds {
 public:
  explicit DrawnSeconds(uint64_t seed) : random_(seed) {}
  double operator()(const std::string& op) {
    const auto known = drawn_.find(op);
    if (known != drawn_.end()) return known->second;
    return drawn_[op] = 1e-3 * std::uniform_int_distribution<int>(1, 1000)(random_);
  }

 private:
  std::mt19937_64 random_;
  std::map<std::string, double> drawn_;
};

Profile profile_on(at::Device device, const Model& model, int64_t repeats = 1, int64_t warmup = 0) {
  MeasureOptions options;
  options.batch_size = 4;
  options.device = device;
  options.warmup = warmup;
  options.repeats = repeats;
  return measure(model, synthetic_inputs(model.graph, 1), options);
}

std::string provenance(const Profile& profile, const std::string& key) {
  for (const auto& [name, value] : profile.provenance)
    if (name == key) return value;
  return "";
}

/// Nodes in a row, so that no gradients are added up between them.
Model drawn_chain(std::mt19937_64& random) {
  const auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); };
  ModelBuilder builder("chain", 4);
  std::string x = builder.input("x", "float32", {6});
  for (int64_t i = 0, count = 2 + below(6); i < count; ++i) {
    auto layer = builder.layer("layer" + std::to_string(i));
    switch (i == 0 ? 0 : below(4)) {
      case 0:
        x = builder.linear(x, {.features = 2 + below(9), .bias = below(2) == 0});
        break;
      case 1:
        x = builder.relu(x);
        break;
      case 2:
        x = builder.gelu(x);
        break;
      case 3:
        x = builder.layer_norm(x);
        break;
    }
  }
  return builder.finish_classification(x);
}

/// What the device takes for a node that runs alone, with another way to its functions than the profiler's.
struct Alone {
  double forward = 0, backward = 0, input_part = 0;
};

Alone alone(const Graph& graph, size_t i, const std::function<double(const std::string&)>& seconds_of) {
  const Segment segment(graph, {i}, graph.nodes[i].outputs, fake_device());
  double seconds = 0;
  const auto timed = [&](const auto& work) {
    seconds = 0;
    const FakeClock clock([&](const std::string& op) {
      seconds += seconds_of(op);
      return 0.0;
    });
    work();
    return seconds;
  };
  const auto run = [&](bool parameters_train) {
    std::vector<at::Tensor> inputs, parameters, wanted;
    for (const auto& name : segment.inputs()) {
      const TensorType& type = graph.values.at(name);
      const bool floats = type.dtype == "float32";
      at::Tensor value = floats ? at::randn(type.shape) : at::zeros(type.shape, at::kLong);
      value = value.to(fake_device());
      const bool is_input = std::find(graph.inputs.begin(), graph.inputs.end(), name) != graph.inputs.end();
      if (!is_input) wanted.push_back(value.requires_grad_());
      inputs.push_back(value);
    }
    for (const auto& name : segment.parameters()) {
      for (const Parameter& parameter : graph.parameters) {
        if (parameter.name != name) continue;
        parameters.push_back(at::randn(parameter.type.shape).to(fake_device()));
        if (parameters_train) wanted.push_back(parameters.back().requires_grad_());
      }
    }
    std::vector<at::Tensor> made;
    Alone times;
    times.forward = timed([&] { made = segment.forward(inputs, parameters, {}, {}); });
    if (wanted.empty()) return times;
    const at::Tensor gradient = at::ones(made[0].sizes()).to(fake_device());
    times.backward = timed([&] { torch::autograd::grad({made[0]}, wanted, {gradient}); });
    return times;
  };
  Alone times = run(true);
  times.input_part = run(false).backward;
  return times;
}

TEST_CASE("on a device a node's times are what the device's clock says") {
  std::mt19937_64 random(1);
  for (uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const Model model = drawn_chain(random);
    DrawnSeconds seconds_of(seed);
    const auto draw = [&](const std::string& op) { return seconds_of(op); };
    std::vector<Alone> expected;
    for (size_t i = 0; i < model.graph.nodes.size(); ++i) expected.push_back(alone(model.graph, i, draw));

    const FakeClock clock(draw);
    const Profile profile = profile_on(fake_device(), model);
    double forward = 0, backward = 0;
    for (size_t i = 0; i < profile.nodes.size(); ++i) {
      const ProfiledNode& node = profile.nodes[i];
      CAPTURE(node.name, i);
      CHECK(node.forward_seconds == Approx(expected[i].forward).epsilon(1e-9));
      const bool trains = node.trainable_parameter_bytes > 0;
      const double input_part = trains ? expected[i].input_part : expected[i].backward;
      CHECK(node.backward_input_seconds == Approx(input_part).epsilon(1e-9).margin(1e-9));
      CHECK(node.backward_weight_seconds ==
            Approx(expected[i].backward - input_part).epsilon(1e-9).margin(1e-9));
      CHECK(node.spread == Approx(0).margin(1e-9));
      forward += expected[i].forward;
      backward += expected[i].backward;
    }
    CHECK(profile.whole.forward_seconds == Approx(forward).epsilon(1e-9));
    CHECK(profile.whole.backward_seconds >= backward * (1 - 1e-9));  // and the gradient of the loss
    CHECK(profile.whole.step_seconds > 0);
    CHECK(provenance(profile, "clocks") == "settled");
  }
}

TEST_CASE("on a device a profile in parts has the times and the bytes of the whole") {
  // Nodes in a row, so that no gradients are added up between them.
  for (const char* spec : {"mlp:layers=5,width=48,image=4,channels=1", "convnet:width=4"}) {
    const Model model = build_model(spec, 4);
    const FakeClock clock{DrawnSeconds(23)};
    MeasureOptions options;
    options.batch_size = 4;
    options.device = fake_device();
    options.warmup = 0;
    options.repeats = 1;
    const auto inputs = synthetic_inputs(model.graph, 1);
    const Profile whole = measure(model, inputs, options);
    size_t most_parts = 1;
    int64_t needed = 5 * 512 * static_cast<int64_t>(model.graph.parameters.size());
    for (const ProfiledNode& node : whole.nodes) needed += 5 * node.parameter_bytes + node.saved_bytes;
    for (const double share : {2.0, 1.0, 0.8, 0.6, 0.5, 0.4}) {
      const auto memory = static_cast<int64_t>(share * static_cast<double>(needed));
      CAPTURE(spec, memory);
      size_t parts = 0;
      options.memory_bytes = memory;
      options.measured_part = [&](const MeasuredPart& part) { parts = part.parts; };
      Profile profile;
      try {
        profile = measure(model, inputs, options);
      } catch (const InputError&) {  // one node alone needs more
        break;
      }
      most_parts = std::max(most_parts, parts);
      for (size_t i = 0; i < whole.nodes.size(); ++i) {
        const ProfiledNode &node = profile.nodes[i], &expected = whole.nodes[i];
        CAPTURE(node.name);
        CHECK(node.forward_seconds == Approx(expected.forward_seconds).epsilon(1e-9));
        CHECK(node.backward_input_seconds ==
              Approx(expected.backward_input_seconds).epsilon(1e-9).margin(1e-9));
        CHECK(node.backward_weight_seconds ==
              Approx(expected.backward_weight_seconds).epsilon(1e-9).margin(1e-9));
        CHECK(node.saved_bytes == expected.saved_bytes);
        CHECK(node.workspace_bytes == expected.workspace_bytes);
      }
      CHECK(profile.whole.forward_seconds == Approx(whole.whole.forward_seconds).epsilon(1e-9));
      CHECK(profile.whole.step_seconds > 0);
      CHECK(profile.whole.allocated_bytes.has_value() == (parts == 1));
      CHECK(provenance(profile, "clocks") == "settled");
    }
    CHECK(most_parts > 1);
  }
}

TEST_CASE("on a device a profile has the structure of the CPU's, with the host's times beside") {
  const std::string spec = GENERATE("convnet:width=4", "resnet18:classes=5,image=32", "mlp:layers=3,width=8",
                                    "gpt:layers=2,width=16,heads=2,tokens=8,vocabulary=20,dropout=0.1",
                                    "vit_b_16:classes=5,image=32,layers=1,width=16,heads=2");
  CAPTURE(spec);
  const Model model = build_model(spec, 4);
  const FakeClock clock([](const std::string&) { return 1.0; });
  const Profile here = profile_on(at::kCPU, model), there = profile_on(fake_device(), model);
  CHECK(here.device == "cpu");
  CHECK(there.device == fake_device().str());
  CHECK_NOTHROW(there.validate("test"));
  const auto structure = [](Profile profile) {
    for (ProfiledNode& node : profile.nodes) {
      node.forward_seconds = node.backward_input_seconds = node.backward_weight_seconds = node.spread = 0;
      // The same where a device saves and needs what the CPU does; it may be something else.
      node.saved_bytes = node.workspace_bytes = 0;
      node.keeps.clear();
      node.forward_launch_seconds = node.backward_launch_seconds = {};
    }
    profile.whole = {};
    profile.device.clear();
    profile.provenance.clear();
    return document_text(profile);
  };
  CHECK(structure(here) == structure(there));
  CHECK_THAT(document_text(here), !Contains("launch") && !Contains("allocated_bytes") &&
                                      !Contains("input_bytes") && !Contains("host_cores"));
  CHECK_THAT(document_text(there), !Contains("gap"));  // it has no driver that keeps a record
  CHECK(there.whole.input_bytes.value_or(0) > 0);
  CHECK(there.whole.host_cores == static_cast<int64_t>(cores_of_process().size()));
  int64_t saved = 0;
  for (const ProfiledNode& node : there.nodes) {
    CHECK(node.launch_seconds().value_or(-1) >= 0);
    saved += node.saved_bytes;
  }
  CHECK(saved > 0);
  CHECK(there.whole.forward_launch_seconds.value_or(0) > 0);
  CHECK(there.whole.backward_launch_seconds.value_or(0) > 0);
  std::set<std::string> keys;
  for (const auto& [key, value] : here.provenance) keys.insert(key);
  CHECK(keys.count("clocks") == 0);
  CHECK(provenance(there, "float32_matmul") == "ieee");
  CHECK(provenance(there, "float32_convolution") == "tf32");  // LibTorch's choice
}

TEST_CASE("on a device a pass waits for it once") {
  const Model model = build_model("convnet:width=2", 4);
  const FakeClock clock([](const std::string&) { return 1.0; });
  const auto waits = [&](int64_t repeats) {
    reset_fake_device();
    profile_on(fake_device(), model, repeats);
    const FakeDeviceCounts counts = fake_device_counts();
    return std::pair(counts.event_waits, counts.waits + counts.blocking_uploads);
  };
  const auto few = waits(2), many = waits(7);
  CHECK(many.first - few.first == 5 * 3);
  CHECK(many.second == few.second);  // the first weights
}

TEST_CASE("on a device saved bytes and the allocator's figure are what its allocator counts") {
  const Model model = build_model("mlp:layers=3,width=8,image=4,classes=5", 4);
  const Profile here = profile_on(at::kCPU, model), there = profile_on(fake_device(), model);
  for (size_t i = 0; i < here.nodes.size(); ++i) {
    CAPTURE(here.nodes[i].name);
    CHECK(here.nodes[i].saved_bytes == there.nodes[i].saved_bytes);
  }
  CHECK_FALSE(here.whole.allocated_bytes);

  const Segment segment(model.graph, all_nodes(model.graph), {model.graph.outputs[0]}, fake_device());
  std::vector<at::Tensor> inputs, leaves;
  for (const at::Tensor& input : synthetic_inputs(model.graph, 1)) inputs.push_back(input.to(fake_device()));
  for (const Parameter& parameter : model.graph.parameters)
    leaves.push_back(at::randn(parameter.type.shape).to(fake_device()).requires_grad_());
  segment.forward(inputs, leaves, {}, {});
  MemoryMeter meter(fake_device().type());
  {
    const MemoryMeter::Attached attached(meter);
    torch::autograd::grad({segment.forward(inputs, leaves, {}, {})[0]}, leaves);
  }
  CHECK(meter.peak_bytes() > 0);
  CHECK(there.whole.allocated_bytes == meter.peak_bytes());
  CHECK_FALSE(allocator_bytes(at::kCPU));
}

TEST_CASE("on a device bfloat16 is profiled too") {
  Model model = build_model("mlp:layers=2,width=8", 4);
  const FakeClock clock([](const std::string&) { return 1.0; });
  const Profile plain = profile_on(fake_device(), model);
  model.graph = with_precision(model, "bfloat16", fake_device());
  REQUIRE(model.graph.autocast);
  const Profile profile = profile_on(fake_device(), model);
  REQUIRE(profile.nodes.size() == plain.nodes.size());
  bool halved = false;
  double casts = 0;
  for (size_t i = 0; i < profile.nodes.size(); ++i) {
    for (size_t o = 0; o < profile.nodes[i].outputs.size(); ++o)
      halved = halved || 2 * profile.nodes[i].outputs[o].bytes == plain.nodes[i].outputs[o].bytes;
    casts += profile.nodes[i].forward_seconds - plain.nodes[i].forward_seconds;
  }
  CHECK(halved);
  CHECK(casts > 0);
}

TEST_CASE("on a device it is measured when its times have settled, or it is said that they have not") {
  const Model model = build_model("mlp:layers=1,width=4,image=4", 4);
  double seconds = 0, factor = 1;
  const auto profile = [&](int64_t warmup) {
    seconds = 1;
    const FakeClock clock([&](const std::string&) {
      seconds *= factor;
      return seconds;
    });
    return profile_on(fake_device(), model, 1, warmup);
  };
  const Profile steady = profile(0);
  CHECK(provenance(steady, "warmup") == "10");
  CHECK(provenance(steady, "clocks") == "settled");
  CHECK(provenance(profile(17), "warmup") == "17");
  factor = 1.01;  // an operator; a pass has many
  const Profile drifting = profile(0);
  CHECK(std::stoi(provenance(drifting, "warmup")) > 10);  // 100, or what 20 s allow
  CHECK(provenance(drifting, "clocks") == kNotSettled);
}

TEST_CASE("layers whose launches take longer than their work are said to be launch-bound") {
  const Model model = build_model("mlp:layers=2,width=8", 4);
  const auto lines = [&](double seconds, TextTable& table) {
    const FakeClock clock([&](const std::string&) { return seconds; });
    const Profile profile = profile_on(fake_device(), model);
    table = layer_table(profile);
    std::string text;
    for (const std::string& line : headlines(profile)) text += line + "\n";
    return text;
  };
  TextTable table({});
  CHECK_THAT(lines(10, table), Contains("launch-bound: 0 of "));
  CHECK(table.columns().back().head == "bound by");
  CHECK(table.rows()[0].back() == "device");
  CHECK_THAT(lines(1e-12, table), Contains("launch-bound: ") && Contains(", 100.0 % of the nodes' time"));
  for (const auto& row : table.rows()) CHECK(row.back() == "launch");
  CHECK_THAT(lines(10, table), Contains("the device's allocator gave out at most "));
}

TEST_CASE("marks on a device wait for nothing until they are asked to, once for all") {
  double seconds = 0;
  const FakeClock clock([&](const std::string&) { return seconds; });
  const at::Tensor x = at::ones({3}).to(fake_device());
  Marks marks(fake_device());
  for (int pass = 0; pass < 3; ++pass) {
    reset_fake_device();
    marks.clear();
    std::vector<double> given;
    CHECK(marks.set() == 0);
    for (int i = 0; i < 5; ++i) {
      seconds = 0.25 * (pass + 1) * (i + 1);
      const int64_t before = fake_device_counts().operators;
      x.add(1);  // several operators for the device
      given.push_back(seconds * static_cast<double>(fake_device_counts().operators - before));
      CHECK(marks.set() == static_cast<size_t>(i) + 1);
    }
    CHECK(fake_device_counts().event_waits == 0);
    CHECK_THROWS_WITH(marks.between(0, 1), Contains("must be completed"));
    marks.wait();
    CHECK(fake_device_counts().event_waits == 1);
    double sum = 0;
    for (size_t i = 0; i < given.size(); ++i) {
      CHECK(marks.between(i, i + 1).device_seconds == Approx(given[i]));
      CHECK(marks.between(i, i + 1).host_seconds >= 0);
      sum += given[i];
    }
    CHECK(marks.between(0, 5).device_seconds == Approx(sum));
  }
}

TEST_CASE("a driver's record is shared out among marks by when the host launched what is in it") {
  const FakeClock clock([](const std::string&) { return 1.0; });
  Marks marks(fake_device());
  const auto launched = [](int64_t begin_ns, int64_t end_ns) {
    return TracedKernel{std::chrono::system_clock::now(), begin_ns, end_ns};
  };
  std::vector<TracedKernel> record = {launched(0, 500)};  // before the first mark: it counts nowhere
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  marks.set();
  record.push_back(launched(1000, 3000));
  record.push_back(launched(4000, 5000));
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  marks.set();
  marks.set();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  record.push_back(launched(9000, 9500));
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  marks.set();
  marks.wait();
  CHECK(marks.between(0, 3).kernels == 0);
  marks.take(record);
  CHECK(marks.between(0, 1).kernels == 2);
  CHECK(marks.between(0, 1).kernel_seconds == Approx(3e-6));
  CHECK(marks.between(1, 2).kernels == 0);
  CHECK(marks.between(0, 3).kernels == 3);
  CHECK(marks.between(0, 3).kernel_seconds == Approx(3.5e-6));
  CHECK(marks.between(2, 3).kernel_seconds == Approx(0.5e-6));
}

TEST_CASE(
    "between two kernels a device waits the shortest tenth of what it was seen to wait, a microsecond at "
    "most") {
  std::vector<TracedKernel> record;
  CHECK(kernel_gap_seconds(record) == 0);
  int64_t now = 0;
  for (int i = 0; i < 40; ++i) {  // of the gaps a quarter are 0.7 us, the others long
    record.push_back({{}, now, now + 100});
    now += 100 + (i % 4 == 0 ? 700 : 40000);
  }
  CHECK(kernel_gap_seconds(record) == Approx(0.7e-6));
  for (TracedKernel& kernel : record) kernel.begin_ns *= 10, kernel.end_ns *= 10;
  CHECK(kernel_gap_seconds(record) == Approx(1e-6));
  for (TracedKernel& kernel : record) kernel.begin_ns = 0, kernel.end_ns = 10;  // side by side
  CHECK(kernel_gap_seconds(record) == 0);
  CHECK(KernelTrace(at::kCPU).end().empty());
}

TEST_CASE("on the CPU what a thread waits for a core is no part of its work, where one thread computes") {
  for (const int64_t threads : {1, 2}) {
    const ThreadCount count(threads);
    Marks marks(at::kCPU);
    marks.set();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // as if another program had the core
    marks.set();
    marks.wait();
    const Stretch both = marks.between(0, 1);
    CHECK(both.host_seconds >= 0.02);
    CHECK((threads == 1 ? both.device_seconds < 0.01 : both.device_seconds == both.host_seconds));
  }
}

TEST_CASE("on a device interference is measured by the device's clock, beside hogs that are ordered for it") {
  bool beside = false;
  const FakeClock clock([&](const std::string&) { return beside ? 0.003 : 0.001; });
  const Model model = build_model("mlp:layers=2,width=8,image=4", 4);
  const std::vector<at::Tensor> inputs = synthetic_inputs(model.graph, 1);
  InterferenceSettings settings;
  settings.device = fake_device();
  settings.kinds = {"matrix"};
  settings.most_processes = 1;
  settings.repeats = 2;
  settings.window_seconds = 0.01;
  settings.segments = 1;
  settings.core = cores_of_process().back();
  std::vector<std::string> devices;
  settings.hog_command = [&](const HogOrder& order) {
    devices.push_back(order.device);
    beside = true;  // no quiet window comes later
    return std::vector<std::string>{std::string(PIPEWRIGHT_BINARY_DIR) + "/interference_hog", order.kind,
                                    std::to_string(settings.core), std::to_string(order.processes)};
  };
  const Profile profile = profile_on(at::kCPU, model);
  const InterferenceData data = measure_interference(model, inputs, profile, settings);
  CHECK(devices == std::vector<std::string>{fake_device().str()});
  REQUIRE(data.rows.size() == 3 + 2);
  for (const InterferenceRow& row : data.rows)
    CHECK(row.slowdown == Approx(row.group == kQuietGroup ? 1 : 3).epsilon(0.01));
}

}  // namespace
}  // namespace pipewright::testing
