// Gradients that are summed over the replicas while the backward runs.
#include "models/initialise.h"
#include "runtime/stage/gradient_buckets.h"
#include "runtime/sync/bucket_reducer.h"
#include "runtime/transport/all_reduce.h"
#include "tests/runtime/pipelines.h"
#include "tests/support/error_of.h"

namespace pipewright::testing {
namespace {

std::vector<at::Tensor> some_parameters() {
  return {at::zeros({3, 4}), at::zeros({5}),   at::zeros({2}, at::kDouble),
          at::zeros({4}),    at::zeros({100}), at::zeros({1})};
}

TEST_CASE("buckets: from the last parameter to the first, up to a size, one dtype each") {
  const GradientBuckets buckets(some_parameters(), 36);
  std::vector<size_t> places;
  for (size_t i = 0; i < 6; ++i) places.push_back(buckets.bucket_of(i));
  CHECK(places == std::vector<size_t>{5, 4, 3, 2, 1, 0});
  const GradientBuckets larger(some_parameters(), 404);
  places.clear();
  for (size_t i = 0; i < 6; ++i) places.push_back(larger.bucket_of(i));
  CHECK(places == std::vector<size_t>{3, 3, 2, 1, 0, 0});
  CHECK(larger.flat(0).numel() == 101);
  larger.gradients()[0].fill_(7);
  CHECK(larger.flat(3).narrow(0, 0, 12).eq(7).all().item<bool>());
  CHECK(GradientBuckets({}, 10).count() == 0);
}

TEST_CASE("buckets: each is summed as soon as it and those before it are complete, whatever the order") {
  spawn(make_local_world(2), [](int64_t rank, Transport& transport) {
    const GradientBuckets buckets(some_parameters(), 1);  // one parameter each
    for (size_t i = 0; i < 6; ++i) buckets.gradients()[i].fill_(static_cast<double>(i + 1));
    if (rank == 1) {
      // A peer that only sums: it gets through the first five buckets although rank 0 never finishes its
      // round before it has.
      for (size_t b = 0; b < 5; ++b) all_reduce_sum(transport, {0, 1}, 50, buckets.flat(b));
      transport.send(at::ones({1}), 0, 99)->wait();
      all_reduce_sum(transport, {0, 1}, 50, buckets.flat(5));
      return;
    }
    BucketReducer reducer(transport, {0, 1}, 50, buckets, true);
    for (const size_t parameter : {4, 3, 5, 1, 2, 0}) reducer.complete(parameter);
    transport.receive(at::empty({1}), 1, 99)->wait();
    reducer.finish();
    for (size_t i = 0; i < 6; ++i) {
      if (!buckets.gradients()[i].eq(static_cast<double>(2 * (i + 1))).all().item<bool>())
        throw std::runtime_error("wrong sum");
    }
  });
}

TEST_CASE("buckets: replicas with and without a core to spare sum together") {
  spawn(make_local_world(3), [](int64_t rank, Transport& transport) {
    const GradientBuckets buckets(some_parameters(), 1);
    BucketReducer reducer(transport, {0, 1, 2}, 50, buckets, rank != 1);
    for (int round = 0; round < 20; ++round) {
      for (size_t i = 6; i-- > 0;) {
        buckets.gradients()[i].fill_(round);
        if (rank < 2) reducer.complete(i);  // rank 2 had no minibatch in the round
      }
      reducer.finish();
      for (const at::Tensor& sum : buckets.gradients())
        if (!sum.eq(3 * round).all().item<bool>()) throw std::runtime_error("wrong sum");
    }
  });
}

TEST_CASE(
    "buckets: a peer that is lost during a sum ends the round with its error, a rank that fails, its own") {
  auto world = make_local_world(2);
  const GradientBuckets buckets(some_parameters(), 1);
  {
    BucketReducer reducer(*world[0], {0, 1}, 50, buckets, true);
    reducer.complete(5);
    world[0]->abort("rank 1 was lost");
    CHECK_THAT(error_of<PeerError>([&] { reducer.finish(); }), Catch::Contains("rank 1 was lost"));
    CHECK_THAT(error_of<PeerError>([&] { reducer.finish(); }), Catch::Contains("rank 1 was lost"));
  }
  BucketReducer reducer(*world[1], {0, 1}, 50, buckets, true);
  reducer.complete(5);  // goes out of scope while its sum waits for rank 0
}

TEST_CASE("a backward tells of each gradient as soon as it is there: the last layer's before the first's") {
  at::set_num_threads(1);
  ModelBuilder builder("chain", 4);
  std::string x = builder.input("images", "float32", {6});
  for (int i = 0; i < 4; ++i) {
    const auto layer = builder.layer("layer" + std::to_string(i));
    x = builder.relu(builder.linear(x, {.features = 6}));
  }
  const Model model = builder.finish_classification(x);
  const Plan plan = plan_of(model, {2}, {1});
  for (const bool split : {false, true}) {
    StageProgramOptions options;
    options.split_backward = split;
    const StageProgram program(model.graph, partition(model.graph, plan), 0, options);
    auto version = std::make_shared<WeightVersion>();
    for (const std::string& name : program.parameters())
      version->weights.push_back(initial_parameter(model, name, 1).requires_grad_(true));
    const auto fields = random_minibatches(model.graph, 1, 5)[0];
    const auto run = [&](const GradientMade& made) {
      std::vector<at::Tensor> inputs;
      for (const std::string& name : program.fields()) inputs.push_back(fields.at(name));
      Pass pass = program.forward({}, inputs, version, {}, {});
      if (!split) return program.backward(std::move(pass), {}, made).weights;
      program.backward_input(pass, {});
      return program.backward_weight(std::move(pass), made);
    };
    std::vector<size_t> order;
    std::vector<at::Tensor> early(8);
    const auto gradients = run([&](size_t i, const at::Tensor& gradient) {
      order.push_back(i);
      early[i] = gradient.clone();
    });
    REQUIRE(order.size() == 8);
    for (size_t at = 0; at < 8; ++at) CHECK(order[at] / 2 == 3 - at / 2);  // weight and bias of a layer
    const auto again = run({});                                            // nothing is left on the weights
    for (size_t i = 0; i < 8; ++i) {
      CHECK(early[i].equal(gradients[i]));
      CHECK(again[i].equal(gradients[i]));
    }
    CHECK(order.size() == 8);
  }
}

TEST_CASE("buckets of any size make the same bits, with every schedule, short rounds and idle replicas too") {
  at::set_num_threads(1);
  const Model model = [] {
    ModelBuilder builder("chain", 3);
    std::string x = builder.input("images", "float32", {7});
    for (int i = 0; i < 6; ++i) {
      const auto layer = builder.layer("layer" + std::to_string(i));
      x = builder.relu(builder.linear(x, {.features = 7}));
    }
    return builder.finish_classification(x);
  }();
  for (const int64_t bytes : {1, 100, 300, 1 << 20}) {
    TrainingRules rules = momentum_rules();
    rules.gradient_bucket_bytes = bytes;
    const auto check = [&](const Plan& plan, int64_t minibatches) {
      compare(model, plan, rules, {{0, minibatches}}, make_local_world(plan.world_size));
    };
    check(plan_of(model, {3}, {1}), 7);
    check(plan_of(model, {2, 2}, {2, 1}), 5);
    check(with_schedule(plan_of(model, {1, 3}, {4, 4}), "zb-h1", "flush", 2), 7);
    check(with_schedule(plan_of(model, {2, 1}, {2, 3}), "1f1b", "2bw", 3), 8);
    check(interleaved_plan(model, 4, 2, 2, 3), 8);
    rules.gradient_accumulation = 2;
    check(plan_of(model, {2, 1}, {2, 2}), 7);
  }
}

}  // namespace
}  // namespace pipewright::testing
