// Frozen layers cut off and kept: the rest of the stage computes what the whole stage does, bit for bit.
#include "runtime/worker/cached_prefix.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <random>

#include "graph/model_layers.h"
#include "models/definition/frozen.h"
#include "models/initialise.h"
#include "models/run/scalar_types.h"
#include "models/zoo/builder.h"
#include "models/zoo/registry.h"
#include "runtime/stage/partition.h"
#include "runtime/stage/stage_state.h"
#include "tests/support/temporary_folder.h"

namespace pipewright {
namespace {

constexpr int64_t kBatch = 4;
constexpr int64_t kSeed = 7;

// Fields of one sample each: numbers that depend on the sample alone.
std::vector<at::Tensor> load(const Graph& graph, const std::vector<std::string>& fields,
                             const std::vector<int64_t>& samples) {
  std::vector<at::Tensor> tensors;
  for (const std::string& name : fields) {
    const TensorType& type = graph.values.at(name);
    at::Tensor batch = at::empty(type.shape, at::TensorOptions(scalar_type_of(type.dtype)));
    for (size_t i = 0; i < samples.size(); ++i) {
      at::Tensor row = batch[static_cast<int64_t>(i)];
      std::mt19937_64 random(static_cast<uint64_t>(samples[i]) * 1000 + name.size());
      at::Tensor numbers = at::empty({row.numel()}, at::kDouble);
      auto* const into = numbers.data_ptr<double>();
      for (int64_t j = 0; j < row.numel(); ++j)
        into[j] = static_cast<double>(random() % 2000) / 1000 - (row.is_floating_point() ? 1 : 0);
      row.copy_((row.is_floating_point() ? numbers : numbers.floor()).view(row.sizes()));
    }
    tensors.push_back(batch);
  }
  return tensors;
}

// A model on one rank with so many layers frozen.
struct Frozen {
  Model model;
  std::vector<StageInterface> stages;
  std::unique_ptr<StageProgram> whole;
  std::vector<at::Tensor> weights, buffers;

  Frozen(Model training, int64_t layers, size_t first_stage_nodes = SIZE_MAX) : model(std::move(training)) {
    at::set_num_threads(1);
    training_graph = model.graph;
    model.graph = frozen_graph(model.graph, layers);
    end = end_of_layers(model_layers(training_graph), layers, "test");
    Plan plan;
    plan.stages.emplace_back();
    for (size_t i = 0; i < model.graph.nodes.size(); ++i) {
      if (i == first_stage_nodes) plan.stages.emplace_back();
      plan.stages.back().nodes.push_back(model.graph.nodes[i].name);
    }
    stages = partition(model.graph, plan);
    whole = std::make_unique<StageProgram>(model.graph, stages, 0);
    StageState state = first_state(model, *whole, kSeed, at::kCPU);
    weights = std::move(state.weights);
    buffers = std::move(state.buffers);
    for (const size_t i : whole->trainable()) weights[i].requires_grad_(true);
  }
  std::shared_ptr<WeightVersion> version() const {
    auto version = std::make_shared<WeightVersion>();
    version->weights = weights;
    return version;
  }
  std::shared_ptr<PrefixCut> cut() const {
    return std::make_shared<PrefixCut>(model.graph, stages, end, *whole);
  }
  // w -= rate * g, in place: the next forward reads it.
  void step(const StageGradients& gradients) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < whole->trainable().size(); ++i)
      weights[whole->trainable()[i]].sub_(gradients.weights[i], 0.05);
  }

  Graph training_graph;
  size_t end = 0;
};

void check_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(at::equal(a[i], b[i]));
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

// Values, then other fields, as cut.behind() wants them.
std::vector<at::Tensor> fields_behind(const Frozen& frozen, const PrefixCut& cut,
                                      const std::vector<at::Tensor>& values,
                                      const std::vector<at::Tensor>& fields) {
  std::vector<at::Tensor> result;
  for (const std::string& name : cut.behind().fields()) {
    const auto value = std::find(cut.values().begin(), cut.values().end(), name);
    result.push_back(value != cut.values().end() ? values[static_cast<size_t>(value - cut.values().begin())]
                                                 : cut.other_fields(fields, {name})[0]);
  }
  static_cast<void>(frozen);
  return result;
}

const std::vector<std::string>& some_models() {
  static const std::vector<std::string> specs = {
      "mlp:layers=4,width=24,image=8",
      "convnet:width=4",
      "gpt:layers=3,width=16,heads=2,tokens=8,vocabulary=20,dropout=0.1",
      "bert:layers=3,width=16,heads=2,tokens=8,positions=8,vocabulary=20",
      "vit_b_16:layers=3,width=16,heads=2,image=32,classes=10,dropout=0.1",
  };
  return specs;
}

}  // namespace

TEST_CASE("cut: forward and backward behind frozen layers are those of the whole stage, bit for bit") {
  std::vector<std::string> specs = some_models();
  specs.push_back("resnet18:image=32,classes=10,small=yes");
  for (const std::string& spec : specs) {
    const Model model = build_model(spec, kBatch);
    const auto layers = static_cast<int64_t>(model_layers(model.graph).size());
    std::shared_ptr<PrefixCut> shallower;
    std::vector<at::Tensor> values_before;
    for (int64_t n = 1; n <= layers; n = n < 3 ? n + 1 : n + 3) {
      INFO(spec << ", " << n << " of " << layers << " layers");
      const Frozen frozen(model, n);
      const auto cut = frozen.cut();
      REQUIRE(cut->obstacle() == "");
      const auto fields = load(frozen.model.graph, frozen.whole->fields(), {3, 1, 4, 5});
      std::vector<at::Tensor> buffers = copies(frozen.buffers), buffers_whole = copies(frozen.buffers);
      Pass whole = frozen.whole->forward({}, fields, frozen.version(), buffers_whole, {kSeed, 2});
      const auto values = cut->run(fields, frozen.weights, buffers);
      REQUIRE(values.size() == cut->types().size());
      for (size_t v = 0; v < values.size(); ++v) {
        CHECK(values[v].sizes() == cut->types()[v].shape);
        CHECK_FALSE(values[v].requires_grad());
      }
      Pass behind = cut->behind().forward({}, fields_behind(frozen, *cut, values, fields),
                                          cut->version_behind(*frozen.version()),
                                          cut->buffers_behind(buffers), {kSeed, 2});
      CHECK(at::equal(whole.loss, behind.loss));
      check_equal(buffers, buffers_whole);
      const StageGradients expected = frozen.whole->backward(std::move(whole), {});
      const StageGradients got = cut->behind().backward(std::move(behind), {});
      check_equal(expected.weights, got.weights);
      // From the values of one layer less.
      if (shallower)
        check_equal(cut->run_from(*shallower, values_before, fields, frozen.weights, buffers), values);
      shallower = cut;
      values_before = values;
    }
  }
}

TEST_CASE("cut: of the first of two stages, what it sends is the same, bit for bit") {
  const Model model = build_model("gpt:layers=3,width=16,heads=2,tokens=8,vocabulary=20", kBatch);
  const size_t end = model_layers(model.graph)[1].end;
  const Frozen frozen(model, 1, end);
  const auto cut = frozen.cut();
  REQUIRE(cut->obstacle() == "");
  const auto fields = load(frozen.model.graph, frozen.whole->fields(), {0, 1, 2, 3});
  Pass whole = frozen.whole->forward({}, fields, frozen.version(), frozen.buffers, {kSeed, 2});
  const auto values = cut->run(fields, frozen.weights, frozen.buffers);
  Pass behind = cut->behind().forward({}, fields_behind(frozen, *cut, values, fields),
                                      cut->version_behind(*frozen.version()),
                                      cut->buffers_behind(frozen.buffers), {kSeed, 2});
  check_equal(whole.sent, behind.sent);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& sent : whole.sent)
    if (sent.is_floating_point()) gradients.push_back(at::ones_like(sent));
  gradients.resize(frozen.whole->sent_gradient_parts().size());
  check_equal(frozen.whole->backward(std::move(whole), gradients).weights,
              cut->behind().backward(std::move(behind), gradients).weights);
}

TEST_CASE("records: strides, types and bits of a minibatch come back, bfloat16 rounds float32 only") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 100; ++round) {
    const auto size = [&] { return static_cast<int64_t>(1 + random() % 5); };
    at::Tensor images = at::rand({kBatch, size(), size(), size()});
    if (round % 3 == 1) images = images.contiguous(at::MemoryFormat::ChannelsLast);
    if (round % 3 == 2) images = images.transpose(0, 1).contiguous().transpose(0, 1);
    const at::Tensor tokens = at::randint(100, {kBatch, size()}, at::kLong);
    const PrefixRecords exact({images, tokens}, "float32");
    const auto back = exact.unpack(exact.pack({images, tokens}));
    CHECK(at::equal(back[0], images));
    CHECK(back[0].strides() == images.strides());
    CHECK(at::equal(back[1], tokens));
    const PrefixRecords rounded({images, tokens}, "bfloat16");
    const auto near = rounded.unpack(rounded.pack({images, tokens}));
    CHECK(at::equal(near[0], images.to(at::kBFloat16).to(at::kFloat)));
    CHECK(near[0].strides() == images.strides());
    CHECK(at::equal(near[1], tokens));
    CHECK(rounded.record_bytes() < exact.record_bytes());
  }
}

namespace {

constexpr int64_t kSamples = 22;  // two are left over

// Trains behind the cut for so many minibatches, in data order.
struct CachedTraining {
  Frozen frozen;
  std::shared_ptr<PrefixCut> cut = frozen.cut();
  CacheSpace space;
  std::unique_ptr<CachedPrefix> prefix;
  int64_t loaded = 0;
  std::vector<std::string> lines;
  std::vector<double> losses;

  CachedTraining(const Model& model, int64_t layers, SampleCache& cache,
                 std::vector<CachedPrefix::Shallower> shallower = {}, const std::string& dtype = "float32")
      : frozen(model, layers) {
    space.layers = layers;
    space.dtype = dtype;
    space.finish();
    const auto request = [](int64_t k) {
      LoadRequest request;
      for (int64_t i = 0; i < kBatch; ++i) request.indices.push_back(k % (kSamples / kBatch) * kBatch + i);
      return request;
    };
    PrefixSources sources;
    sources.request = request;
    sources.load = [this, request](int64_t k, const std::vector<std::string>& fields) {
      if (fields == frozen.whole->fields()) ++loaded;
      return load(frozen.model.graph, fields, request(k).indices);
    };
    sources.state = [this] { return std::pair(frozen.weights, frozen.buffers); };
    sources.log = [this](const std::string& line) { lines.push_back(line); };
    prefix = std::make_unique<CachedPrefix>(cut, cache, space, sources,
                                            NextUses(request, kSamples / kBatch, kSamples), shallower);
    prefix->worth_it = true;
  }
  void train(int64_t first, int64_t end) {
    for (int64_t k = first; k < end; ++k) {
      Pass pass = cut->behind().forward({}, prefix->fields(k), cut->version_behind(*frozen.version()),
                                        cut->buffers_behind(frozen.buffers), {kSeed, k});
      losses.push_back(pass.loss.item<double>());
      frozen.step(cut->behind().backward(std::move(pass), {}));
    }
  }
};

// The same without a cache: the whole stage.
std::vector<double> train_whole(Frozen& frozen, int64_t first, int64_t end) {
  std::vector<double> losses;
  for (int64_t k = first; k < end; ++k) {
    std::vector<int64_t> samples;
    for (int64_t i = 0; i < kBatch; ++i) samples.push_back(k % (kSamples / kBatch) * kBatch + i);
    Pass pass = frozen.whole->forward({}, load(frozen.model.graph, frozen.whole->fields(), samples),
                                      frozen.version(), frozen.buffers, {kSeed, k});
    losses.push_back(pass.loss.item<double>());
    frozen.step(frozen.whole->backward(std::move(pass), {}));
  }
  return losses;
}

std::unique_ptr<SampleCache> memory_cache(int64_t bytes) {
  CacheRules rules;
  rules.kind = CacheKind::kMemory;
  rules.memory_bytes = bytes;
  std::vector<std::string> remarks;
  return SampleCache::make(rules, "unused", remarks);
}

}  // namespace

TEST_CASE("cache: training with it is training without, losses and weights to the bit") {
  for (const std::string& spec : some_models()) {
    INFO(spec);
    const Model model = build_model(spec, kBatch);
    const auto cache = memory_cache(64 << 20);
    CachedTraining with(model, 2, *cache);
    Frozen without(model, 2);
    with.train(0, 15);
    CHECK(with.losses == train_whole(without, 0, 15));
    check_equal(with.frozen.weights, without.weights);
    check_equal(with.frozen.buffers, without.buffers);
    CHECK(with.loaded == 5);  // the first epoch
    CHECK(with.prefix->refused() == "");
    REQUIRE(with.lines.size() == 1);
    CHECK_THAT(with.lines[0], Catch::Contains("2 frozen layers are kept"));
    // The first minibatch is fetched once to see how long that takes.
    CHECK(cache->statistics().hits == 11 * kBatch);
    CHECK(cache->statistics().misses == 4 * kBatch);
  }
}

TEST_CASE("cache: a budget too small for the set, and damaged records, change no bit") {
  const Model model = build_model(some_models()[1], kBatch);
  const auto cache = memory_cache(120'000);
  CachedTraining with(model, 1, *cache);
  Frozen without(model, 1);
  with.train(0, 10);
  for (int64_t sample = 0; sample < kSamples; ++sample)
    if (cache->tier(0)->touch(with.space.key(sample), 14)) cache->tier(0)->damage(with.space.key(sample));
  with.train(10, 20);
  CHECK(with.losses == train_whole(without, 0, 20));
  check_equal(with.frozen.weights, without.weights);
  CHECK(cache->statistics().damaged > 0);
  CHECK(cache->statistics().hits > 0);
  CHECK(cache->statistics().memory_bytes <= 120'000);
  CHECK(with.loaded > 5);
}

TEST_CASE("cache: when more layers are frozen values are computed from those that are kept, to the bit") {
  for (const std::string& spec : some_models()) {
    INFO(spec);
    const Model model = build_model(spec, kBatch);
    const auto cache = memory_cache(64 << 20);
    CachedTraining first(model, 1, *cache);
    first.train(0, 5);
    Frozen without(model, 2);
    const auto further_ahead =
        std::make_shared<PrefixCut>(without.model.graph, without.stages, first.frozen.end, *without.whole);
    CachedTraining then(model, 2, *cache, {{further_ahead, first.space}});
    then.train(5, 15);
    CHECK(then.losses == train_whole(without, 5, 15));
    check_equal(then.frozen.weights, without.weights);
    CHECK(cache->statistics().upgrades == 5 * kBatch);
    CHECK(cache->tier(0)->records() == 5 * kBatch);
  }
}

TEST_CASE("cache: not used where fetching would not be faster, and rounded where asked for") {
  const Model model = build_model(some_models()[0], kBatch);
  const auto cache = memory_cache(1 << 20);
  CachedTraining slow(model, 1, *cache);
  slow.prefix->worth_it = false;
  Frozen without(model, 1);
  slow.train(0, 10);
  CHECK(slow.losses == train_whole(without, 0, 10));
  CHECK(slow.loaded == 10);
  REQUIRE(slow.lines.size() == 1);
  CHECK_THAT(slow.lines[0], Catch::Contains("not used: fetching would not be faster"));

  CachedTraining rounded(model, 1, *cache, {}, "bfloat16");
  Frozen exact(model, 1);
  rounded.train(0, 10);
  const auto losses = train_whole(exact, 0, 10);
  for (size_t k = 0; k < losses.size(); ++k) CHECK(rounded.losses[k] == Approx(losses[k]).margin(0.05));
  CHECK(rounded.loaded == 5);
}

TEST_CASE("cache: refused where a value depends on more than its sample") {
  ModelBuilder builder("mixing", kBatch);
  std::string x;
  {
    const auto layer = builder.layer("blocks.0");
    x = builder.linear(builder.input("images", "float32", {6}), {.features = 6});
    // Of the whole minibatch.
    const std::string mean = builder.call(
        "mean", "dim", {{"self", TensorArgument{x}}, {"dim", std::vector<int64_t>{0}}, {"keepdim", true}},
        {{"float32", {1, 6}}})[0];
    x = builder.add(x, builder.relu(mean));
  }
  {
    const auto layer = builder.layer("blocks.1");
    x = builder.relu(builder.linear(x, {.features = 6}));
  }
  const auto layer = builder.layer("head");
  const Model model = builder.finish_classification(builder.linear(x, {.features = 5}));
  const auto cache = memory_cache(1 << 20);
  CachedTraining mixing(model, 1, *cache);
  Frozen without(model, 1);
  mixing.train(0, 10);
  CHECK(mixing.losses == train_whole(without, 0, 10));
  CHECK_THAT(mixing.prefix->refused(), Catch::Contains("depends on more than its sample"));
}

}  // namespace pipewright
