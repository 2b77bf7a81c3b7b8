#include "models/zoo/builder.h"

#include <catch2/catch.hpp>

#include "graph/error.h"

namespace pipewright {
namespace {

using Catch::Matchers::Contains;
using Shape = std::vector<int64_t>;

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("layers nest and name nodes and parameters") {
  ModelBuilder model("test", 2);
  const std::string x = model.input("images", "float32", {4});
  CHECK(x == "images");
  {
    auto outer = model.layer("block");
    std::string y;
    {
      auto inner = model.layer("fc");
      y = model.linear(x, {.features = 3});
      CHECK(y == "block.fc.linear");
    }
    CHECK(model.relu(y) == "block.relu");
    CHECK(model.relu(y) == "block.relu_2");
    CHECK(model.relu(y) == "block.relu_3");
  }
  const std::string z = model.relu(x);
  CHECK(z == "relu");
  CHECK_THROWS_AS(model.input("images", "float32", {4}), CheckError);
  CHECK_THROWS_AS(model.relu("nothing"), CheckError);
  const Model made = model.finish_classification("block.relu");
  CHECK(made.graph.parameters[0].name == "block.fc.weight");
  CHECK(made.graph.nodes[0].layer == "block.fc");
  CHECK(made.graph.nodes[1].layer == "block");
  CHECK(made.graph.nodes[4].layer.empty());
  CHECK(made.graph.inputs == std::vector<std::string>{"images", "labels"});
  CHECK(made.graph.outputs == std::vector<std::string>{"loss.cross_entropy_loss", "block.relu"});
}

TEST_CASE("an operator's value never takes the name of a parameter") {
  ModelBuilder model("test", 2);
  const std::string x = model.input("relu", "float32", {4});
  CHECK(model.relu(x) == "relu_2");
}

TEST_CASE("shapes of convolution and pooling count window positions") {
  // Against a loop over positions: a window fits when it ends within the padded image.
  for (int64_t image = 1; image <= 12; ++image) {
    for (int64_t kernel = 1; kernel <= 5; ++kernel) {
      for (int64_t stride = 1; stride <= 3; ++stride) {
        for (int64_t padding = 0; padding <= 2; ++padding) {
          int64_t positions = 0;
          for (int64_t begin = -padding; begin + kernel <= image + padding; begin += stride) ++positions;
          ModelBuilder model("test", 3);
          const std::string x = model.input("images", "float32", {2, image, image});
          const Conv2dOptions options = {
              .channels = 5, .kernel = kernel, .stride = stride, .padding = padding};
          if (positions == 0) {
            CHECK_THAT(error_of([&] { model.conv2d(x, options); }), Contains("does not fit"));
          } else {
            CHECK(model.shape(model.conv2d(x, options)) == Shape{3, 5, positions, positions});
          }
          if (positions == 0 || padding > kernel / 2) continue;  // pooling pads by half the window at most
          const std::string y = model.max_pool2d(x, {.kernel = kernel, .stride = stride, .padding = padding});
          CHECK(model.shape(y) == Shape{3, 2, positions, positions});
        }
      }
    }
  }
}

TEST_CASE("shape operators") {
  ModelBuilder model("test", 2);
  const std::string x = model.input("x", "float32", {3, 4, 5});
  CHECK(model.shape(model.flatten(x)) == Shape{2, 60});
  CHECK(model.shape(model.flatten(x, 2)) == Shape{2, 3, 20});
  CHECK(model.shape(model.reshape(x, {-1, 12, 5})) == Shape{2, 12, 5});
  CHECK(model.shape(model.transpose(x, 1, 3)) == Shape{2, 5, 4, 3});
  CHECK(model.shape(model.adaptive_avg_pool2d(x, 7)) == Shape{2, 3, 7, 7});
  const auto parts = model.split(x, 2, 3);
  REQUIRE(parts.size() == 3);
  CHECK(parts[0] == "split.0");
  CHECK(model.shape(parts[0]) == Shape{2, 3, 4, 2});
  CHECK(model.shape(parts[2]) == Shape{2, 3, 4, 1});
  const std::string row = model.parameter("row", {4, 1}, Initialiser::constant(0));
  CHECK(model.shape(model.add(x, row)) == Shape{2, 3, 4, 5});
  CHECK(model.shape(model.add(row, x)) == Shape{2, 3, 4, 5});
}

TEST_CASE("what does not fit is an error that names model, layer and shapes") {
  ModelBuilder model("tiny:image=5", 2);
  const std::string image = model.input("images", "float32", {1, 5, 5});
  const std::string flat = model.flatten(image);
  auto layer = model.layer("features.3");
  CHECK_THAT(error_of([&] { model.conv2d(image, {.channels = 1, .kernel = 7}); }),
             Contains("tiny:image=5: features.3: conv2d") && Contains("(2, 1, 5, 5)"));
  CHECK_THAT(error_of([&] { model.conv2d(flat, {.channels = 1, .kernel = 1}); }),
             Contains("(2, 25)") && Contains("(batch, channels, height, width)"));
  CHECK_THAT(error_of([&] { model.max_pool2d(image, {.kernel = 6, .stride = 6}); }), Contains("max_pool2d"));
  CHECK_THAT(error_of([&] { model.reshape(image, {-1, 7}); }), Contains("cannot become (-1, 7)"));
  CHECK_THAT(error_of([&] { model.reshape(image, {-1, -1}); }), Contains("cannot become"));
  CHECK_THAT(error_of([&] { model.reshape(image, {-1, 0}); }), Contains("cannot become"));
  CHECK_THAT(error_of([&] { model.add(image, flat); }), Contains("do not fit together"));
  CHECK_THAT(error_of([&] { model.transpose(image, 0, 4); }), Contains("transpose"));
  CHECK_THAT(error_of([&] { model.flatten(image, 4); }), Contains("flatten"));
  CHECK_THAT(error_of([&] { model.split(image, 0, 1); }), Contains("split"));
  CHECK_THAT(error_of([&] { model.scaled_dot_product_attention(flat, flat, flat, true); }),
             Contains("heads"));
  CHECK_THAT(error_of([&] { model.cross_entropy_loss(flat, flat); }), Contains("expected int64 (2)"));
  CHECK_THAT(error_of([&] { model.finish(flat, flat); }), Contains("expected a scalar"));
}

TEST_CASE("options and types that LibTorch would refuse are refused here") {
  ModelBuilder model("test", 2);
  const std::string image = model.input("images", "float32", {1, 5, 5});
  const std::string tokens = model.input("tokens", "int64", {5});
  const auto refused = [&](auto&& make) {
    CHECK_THAT(error_of(make), Contains("got ") && Contains("expected"));
  };
  refused([&] { model.conv2d(image, {.channels = 0, .kernel = 1}); });
  refused([&] { model.conv2d(image, {.channels = 1, .kernel = 0}); });
  refused([&] { model.conv2d(image, {.channels = 1, .kernel = 1, .stride = 0}); });
  refused([&] { model.conv2d(image, {.channels = 1, .kernel = 1, .padding = -1}); });
  refused([&] { model.max_pool2d(image, {.kernel = 3, .stride = 2, .padding = 2}); });
  refused([&] { model.adaptive_avg_pool2d(image, 0); });
  refused([&] { model.linear(image, {.features = 0}); });
  refused([&] { model.linear(tokens, {.features = 1}); });
  refused([&] { model.embedding(image, {.rows = 2, .features = 2}); });
  refused([&] { model.dropout(image, 1.5); });
  refused([&] { model.layer_norm(tokens); });
  refused([&] { model.batch_norm(tokens); });
}

TEST_CASE("call() adds any operator") {
  ModelBuilder model("test", 2);
  const std::string x = model.input("x", "float32", {3});
  const auto made = model.call("topk", "", {{"self", TensorArgument{x}}, {"k", int64_t{1}}},
                               {{"float32", {2, 1}}, {"int64", {2, 1}}});
  CHECK(made == std::vector<std::string>{"topk.0", "topk.1"});
  CHECK(model.type(made[1]).dtype == "int64");
}

}  // namespace
}  // namespace pipewright
