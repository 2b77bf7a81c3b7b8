// Samples travel to a device as they are stored, and are there what they are on the CPU.
#include "runtime/worker/stage_loaders.h"

#include <deque>

#include "graph/random.h"
#include "models/definition/frozen.h"
#include "models/load.h"
#include "models/memory/memory_meter.h"
#include "runtime/worker/frozen_prefix.h"
#include "tests/runtime/data/every_byte.h"
#include "tests/runtime/data/helpers.h"
#include "tests/runtime/data/pictures.h"
#include "tests/runtime/data/set_files.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/random_pipelines.h"
#include "tests/support/fake_device.h"

namespace pipewright {
namespace {

using namespace pipewright::testing;

TEST_CASE("every byte is normalised to the same bits on the host and on a device") {
  check_every_byte(fake_device());
}

TEST_CASE(
    "a device is given images as bytes, for every number of workers, and makes of them the CPU's bits") {
  at::set_num_threads(1);
  const TemporaryFolder folder;
  write_pictures(folder.path() / "pictures");
  write_mnist(folder.path() / "mnist");
  write_cifar10(folder.path() / "cifar10");
  const std::string root = folder.path().string(),
                    pictures = "image-folder:image=24,root=" + root + "/pictures";
  const std::vector<std::string> specs = {pictures,
                                          pictures + ",crop=padded,channels=1",
                                          pictures + ",crop=centre,flip=no",
                                          "mnist:root=" + root + "/mnist",
                                          "mnist:image=31,channels=3,root=" + root + "/mnist",
                                          "cifar10:root=" + root + "/cifar10",
                                          "synthetic-images:image=24,channels=3"};
  const std::string& spec = specs[GENERATE(range<size_t>(0, 7))];
  // What a stage does with its fields: trains on them, or evaluates.
  const bool evaluates = GENERATE(false, true);
  CAPTURE(spec, evaluates);
  constexpr int64_t kMinibatches = 9, kSamples = 4;
  const Model model = load_model("mlp:layers=2,width=8,image=4,classes=10", kSamples);  // names its fields
  const auto data = open_dataset(spec, "train");
  const Sampler sampler(data->size(), kSamples, /*seed=*/5, /*shuffle=*/true);
  const auto request = [&](int64_t k) { return LoadRequest{sampler.indices(k), {5, sampler.epoch_of(k)}}; };

  const auto loaded = [&](at::Device device, int64_t workers, int64_t ahead) {
    TrainingRules rules = momentum_rules();
    rules.total_minibatches = kMinibatches;
    rules.device = device;
    Worker worker(model, plan_of(model, {1}, {1}), 0, nullptr, rules);
    const Span span{0, kMinibatches};
    const auto program = [&](int64_t) -> const StageProgram& { return worker.stage().program(); };
    StageLoaders loaders(*data, worker, evaluates ? worker.open_evaluation(span) : worker.open(span), request,
                         Loading{{.count = workers}, ahead, {}, {}}, {},
                         evaluates ? std::function<const StageProgram&(int64_t)>(program) : nullptr);
    reset_fake_device();
    std::vector<at::Tensor> all;
    for (int64_t k = 0; k < kMinibatches; ++k)
      for (const at::Tensor& field : loaders.next(0, k)) all.push_back(field.clone());
    CHECK(fake_device_counts().waits + fake_device_counts().blocking_uploads == 0);
    return all;
  };
  const std::vector<at::Tensor> expected = loaded(at::kCPU, 0, 0);
  const DataField& images = data->fields()[0];
  CHECK(images.normalisation.has_value() == !spec.starts_with("synthetic"));
  const int64_t of_images = kMinibatches * kSamples * images.stored_type().bytes();
  if (images.normalisation) CHECK(4 * images.stored_type().bytes() == images.sample_type.bytes());
  const int64_t of_labels = kMinibatches * kSamples * static_cast<int64_t>(sizeof(int64_t));
  KeyedRandom random{3};
  for (int round = 0; round < 6; ++round) {
    const auto workers = static_cast<int64_t>(random.below(5)), ahead = static_cast<int64_t>(random.below(6));
    const std::vector<at::Tensor> there = loaded(fake_device(), workers, ahead);
    REQUIRE(there.size() == expected.size());
    for (size_t i = 0; i < there.size(); ++i) REQUIRE(same_bits(there[i], expected[i]));
    // What is not made there goes there when it is read.
    const int64_t expected_bytes = evaluates ? (images.normalisation ? of_images : 0) : of_images + of_labels;
    CHECK(fake_device_counts().uploaded_bytes == expected_bytes);
  }
  reset_fake_device();
}

TEST_CASE("a device holds what minibatches in flight have read, and at most two more as bytes") {
  const TemporaryFolder folder;
  write_mnist(folder.path());
  constexpr int64_t kSamples = 2, kHeld = 3;
  const Model model = load_model("mlp:layers=2,width=8,image=28,classes=10", kSamples);
  const auto data = open_dataset("mnist:root=" + folder.path().string(), "train");
  const Sampler sampler(data->size(), kSamples, /*seed=*/5, /*shuffle=*/true);
  TrainingRules rules = momentum_rules();
  rules.total_minibatches = 40;
  rules.device = fake_device();
  Worker worker(model, plan_of(model, {1}, {1}), 0, nullptr, rules);
  MemoryMeter meter(fake_device().type());
  const MemoryMeter::Attached attached(meter);
  StageLoaders loaders(
      *data, worker, worker.open({0, rules.total_minibatches}),
      [&](int64_t k) {
        return LoadRequest{sampler.indices(k), {5, sampler.epoch_of(k)}};
      },
      Loading{{.count = 2}, /*ahead=*/4, {}, {}});
  const int64_t numbers = meter.live_bytes();  // by which images are normalised
  const int64_t labels = kSamples * static_cast<int64_t>(sizeof(int64_t)), pixels = kSamples * 28 * 28;
  std::deque<std::vector<at::Tensor>> held;
  for (int64_t k = 0; k < rules.total_minibatches; ++k) {
    held.push_back(loaders.next(0, k));
    if (held.size() > kHeld) held.pop_front();
    const auto in_flight = static_cast<int64_t>(held.size());
    const int64_t read = in_flight * (4 * pixels + labels), ahead = kUploadsAhead * (pixels + labels);
    CHECK(meter.live_bytes() >= numbers + read);
    CHECK(meter.live_bytes() <= numbers + read + ahead);
  }
  reset_fake_device();
}

TEST_CASE("what frozen layers read travels to a device as bytes too, and gives the CPU's values") {
  at::set_num_threads(1);
  const TemporaryFolder folder;
  write_mnist(folder.path());
  constexpr int64_t kSamples = 2, kMinibatches = 2, kFrozenLayers = 1;  // less than an epoch
  const Model model =
      frozen_model(load_model("mlp:layers=3,width=8,image=28,classes=10", kSamples), kFrozenLayers);
  Plan plan = plan_of(model, {1}, {1});
  plan.frozen_layers = kFrozenLayers;
  const auto data = open_dataset("mnist:root=" + folder.path().string(), "train");
  const Sampler sampler(data->size(), kSamples, /*seed=*/5, /*shuffle=*/true);
  const auto fields_on = [&](at::Device device) {
    TrainingRules rules = momentum_rules();
    rules.total_minibatches = kMinibatches;
    rules.device = device;
    Worker worker(model, plan, 0, nullptr, rules);
    CacheRules kept;
    kept.kind = CacheKind::kMemory;
    kept.memory_bytes = 64 << 20;
    std::vector<std::string> remarks;
    const auto cache = SampleCache::make(kept, folder.path(), remarks);
    const PrefixInputs inputs{.data = *data,
                              .data_spec = "mnist",
                              .dtype = "float32",
                              .measures = false,
                              .request =
                                  [&](int64_t k) {
                                    return LoadRequest{sampler.indices(k), {5, 0}};
                                  },
                              .minibatches_per_epoch = sampler.minibatches_per_epoch(),
                              .cache = *cache,
                              .log = [](const std::string&) {},
                              .impure = [](const std::string& why) { FAIL(why); }};
    const auto prefix = cache_frozen_prefix(model, plan, {}, worker, inputs);
    REQUIRE(prefix);
    std::vector<at::Tensor> all;
    prefix->fields(0);  // uploads also the numbers by which images are normalised
    reset_fake_device();
    for (int64_t k = 1; k < kMinibatches; ++k)
      for (const at::Tensor& field : prefix->fields(k)) all.push_back(field.cpu());
    return all;
  };
  const std::vector<at::Tensor> expected = fields_on(at::kCPU), there = fields_on(fake_device());
  const int64_t a_sample = 28 * 28 + static_cast<int64_t>(sizeof(int64_t));
  CHECK(fake_device_counts().uploaded_bytes == kSamples * a_sample);
  REQUIRE(there.size() == expected.size());
  for (size_t i = 0; i < there.size(); ++i) CHECK(same_bits(there[i], expected[i]));
  reset_fake_device();
}

}  // namespace
}  // namespace pipewright
