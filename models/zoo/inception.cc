// Inception v3 (Szegedy et al. 2015) as torchvision has it, with the auxiliary classifier that trains along:
// loss = cross entropy + 0.4 * cross entropy of the auxiliary scores. In evaluation only the first counts.
// Weights start from N(0, 0.1) (torchvision cuts it off at +-2, which no draw reaches), those of the
// auxiliary classifier's end from N(0, 0.01) and N(0, 0.001).
#include <vector>

#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

constexpr double kAuxiliaryWeight = 0.4;

class InceptionBuilder {
 public:
  explicit InceptionBuilder(ModelBuilder& model) : model_(model) {}

  std::string convolution(const std::string& name, const std::string& x, Conv2dOptions options,
                          double deviation = 0.1) {
    auto outer = model_.layer(name);
    options.bias = false;
    options.weight_start = Initialiser::normal(0, deviation);
    std::string y;
    {
      auto layer = model_.layer("conv");
      y = model_.conv2d(x, options);
    }
    {
      auto layer = model_.layer("bn");
      y = model_.batch_norm(y, 0.001);
    }
    auto layer = model_.layer("relu");
    return model_.relu(y);
  }

  std::string max_pool(const std::string& name, const std::string& x) {
    auto layer = model_.layer(name);
    return model_.max_pool2d(x, {.kernel = 3, .stride = 2});
  }

  std::string a(const std::string& name, const std::string& x, int64_t pool_channels) {
    auto outer = model_.layer(name);
    const std::string one = convolution("branch1x1", x, {.channels = 64, .kernel = 1});
    std::string five = convolution("branch5x5_1", x, {.channels = 48, .kernel = 1});
    five = convolution("branch5x5_2", five, {.channels = 64, .kernel = 5, .padding = 2});
    std::string three = convolution("branch3x3dbl_1", x, {.channels = 64, .kernel = 1});
    three = convolution("branch3x3dbl_2", three, {.channels = 96, .kernel = 3, .padding = 1});
    three = convolution("branch3x3dbl_3", three, {.channels = 96, .kernel = 3, .padding = 1});
    return joined("cat", {one, five, three, pooled(x, pool_channels)});
  }

  std::string b(const std::string& name, const std::string& x) {
    auto outer = model_.layer(name);
    const std::string three = convolution("branch3x3", x, {.channels = 384, .kernel = 3, .stride = 2});
    std::string twice = convolution("branch3x3dbl_1", x, {.channels = 64, .kernel = 1});
    twice = convolution("branch3x3dbl_2", twice, {.channels = 96, .kernel = 3, .padding = 1});
    twice = convolution("branch3x3dbl_3", twice, {.channels = 96, .kernel = 3, .stride = 2});
    return joined("cat", {three, twice, max_pool("pool", x)});
  }

  std::string c(const std::string& name, const std::string& x, int64_t channels) {
    auto outer = model_.layer(name);
    const std::string one = convolution("branch1x1", x, {.channels = 192, .kernel = 1});
    std::string seven = convolution("branch7x7_1", x, {.channels = channels, .kernel = 1});
    seven = convolution("branch7x7_2", seven, wide(channels, 7));
    seven = convolution("branch7x7_3", seven, high(192, 7));
    std::string twice = convolution("branch7x7dbl_1", x, {.channels = channels, .kernel = 1});
    twice = convolution("branch7x7dbl_2", twice, high(channels, 7));
    twice = convolution("branch7x7dbl_3", twice, wide(channels, 7));
    twice = convolution("branch7x7dbl_4", twice, high(channels, 7));
    twice = convolution("branch7x7dbl_5", twice, wide(192, 7));
    return joined("cat", {one, seven, twice, pooled(x, 192)});
  }

  std::string d(const std::string& name, const std::string& x) {
    auto outer = model_.layer(name);
    std::string three = convolution("branch3x3_1", x, {.channels = 192, .kernel = 1});
    three = convolution("branch3x3_2", three, {.channels = 320, .kernel = 3, .stride = 2});
    std::string seven = convolution("branch7x7x3_1", x, {.channels = 192, .kernel = 1});
    seven = convolution("branch7x7x3_2", seven, wide(192, 7));
    seven = convolution("branch7x7x3_3", seven, high(192, 7));
    seven = convolution("branch7x7x3_4", seven, {.channels = 192, .kernel = 3, .stride = 2});
    return joined("cat", {three, seven, max_pool("pool", x)});
  }

  std::string e(const std::string& name, const std::string& x) {
    auto outer = model_.layer(name);
    const std::string one = convolution("branch1x1", x, {.channels = 320, .kernel = 1});
    std::string three = convolution("branch3x3_1", x, {.channels = 384, .kernel = 1});
    const std::string three_wide = convolution("branch3x3_2a", three, wide(384, 3));
    three = joined("branch3x3_cat", {three_wide, convolution("branch3x3_2b", three, high(384, 3))});
    std::string twice = convolution("branch3x3dbl_1", x, {.channels = 448, .kernel = 1});
    twice = convolution("branch3x3dbl_2", twice, {.channels = 384, .kernel = 3, .padding = 1});
    const std::string twice_wide = convolution("branch3x3dbl_3a", twice, wide(384, 3));
    twice = joined("branch3x3dbl_cat", {twice_wide, convolution("branch3x3dbl_3b", twice, high(384, 3))});
    return joined("cat", {one, three, twice, pooled(x, 192)});
  }

  std::string auxiliary(const std::string& name, std::string x, int64_t classes) {
    auto outer = model_.layer(name);
    {
      auto layer = model_.layer("pool");
      x = model_.avg_pool2d(x, 5, 3);
    }
    x = convolution("conv0", x, {.channels = 128, .kernel = 1});
    x = pooled_features(model_, convolution("conv1", x, {.channels = 768, .kernel = 5}, 0.01), 1);
    auto layer = model_.layer("fc");
    return model_.linear(x, {.features = classes, .weight_start = Initialiser::normal(0, 0.001)});
  }

 private:
  static Conv2dOptions wide(int64_t channels, int64_t side) {
    return {.channels = channels, .kernel = {1, side}, .padding = {0, side / 2}};
  }
  static Conv2dOptions high(int64_t channels, int64_t side) {
    return {.channels = channels, .kernel = {side, 1}, .padding = {side / 2, 0}};
  }

  std::string pooled(const std::string& x, int64_t channels) {
    std::string y;
    {
      auto layer = model_.layer("pool");
      y = model_.avg_pool2d(x, 3, 1, 1);
    }
    return convolution("branch_pool", y, {.channels = channels, .kernel = 1});
  }

  std::string joined(const std::string& name, const std::vector<std::string>& branches) {
    auto layer = model_.layer(name);
    return model_.concatenate(branches, 1);
  }

  ModelBuilder& model_;
};

}  // namespace

Model build_inception_v3(ModelOptions& options, int64_t batch_size) {
  // Without the auxiliary classifier 75 leaves one pixel; its pooling and 5x5 convolution need 17 x 17 of
  // 299.
  const bool auxiliary = options.choice("auxiliary", "yes", {"yes", "no"}) == "yes";
  const ImageOptions images =
      image_options(options, {.classes = 1000, .channels = 3, .image = 299}, auxiliary ? 299 : 75);
  const double dropout = options.number("dropout", 0.5, 0, 0.99);
  ModelBuilder model(options.spec().text(), batch_size);
  InceptionBuilder net(model);
  std::string x = image_input(model, images);
  x = net.convolution("Conv2d_1a_3x3", x, {.channels = 32, .kernel = 3, .stride = 2});
  x = net.convolution("Conv2d_2a_3x3", x, {.channels = 32, .kernel = 3});
  x = net.convolution("Conv2d_2b_3x3", x, {.channels = 64, .kernel = 3, .padding = 1});
  x = net.max_pool("maxpool1", x);
  x = net.convolution("Conv2d_3b_1x1", x, {.channels = 80, .kernel = 1});
  x = net.convolution("Conv2d_4a_3x3", x, {.channels = 192, .kernel = 3});
  x = net.max_pool("maxpool2", x);
  x = net.a("Mixed_5b", x, 32);
  x = net.a("Mixed_5c", x, 64);
  x = net.a("Mixed_5d", x, 64);
  x = net.b("Mixed_6a", x);
  x = net.c("Mixed_6b", x, 128);
  x = net.c("Mixed_6c", x, 160);
  x = net.c("Mixed_6d", x, 160);
  x = net.c("Mixed_6e", x, 192);
  std::string auxiliary_scores;
  if (auxiliary) auxiliary_scores = net.auxiliary("AuxLogits", x, images.classes);
  x = net.d("Mixed_7a", x);
  x = net.e("Mixed_7b", x);
  x = net.e("Mixed_7c", x);
  x = pooled_features(model, x, 1);
  if (dropout > 0) {
    auto layer = model.layer("dropout");
    x = model.dropout(x, dropout);
  }
  {
    auto layer = model.layer("fc");
    x = model.linear(x, {.features = images.classes, .weight_start = Initialiser::normal(0, 0.1)});
  }
  std::string loss = model.classification_loss(x);
  if (auxiliary) {
    auto layer = model.layer("auxiliary_loss");
    const std::string second = model.cross_entropy_loss(auxiliary_scores, "labels");
    loss = model.call_one(
        "add", "Tensor",
        {{"self", TensorArgument{loss}}, {"other", TensorArgument{second}}, {"alpha", kAuxiliaryWeight}}, {});
  }
  return model.finish(loss, x);
}

}  // namespace pipewright
