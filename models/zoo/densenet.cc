// DenseNet-121 (Huang et al. 2016) as torchvision has it: every layer of a block reads all layers before it
// in the block, convolutions start from kaiming_normal (fan_in), the bias of the linear layer from 0.
#include <cmath>

#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

constexpr int64_t kGrowth = 32;     // channels that a layer adds
constexpr int64_t kBottleneck = 4;  // its 1x1 convolution makes so many times that
constexpr int64_t kFirstChannels = 64;

class DenseNetBuilder {
 public:
  explicit DenseNetBuilder(ModelBuilder& model) : model_(model) {}

  std::string convolution(const std::string& name, const std::string& x, Conv2dOptions options) {
    const auto fan_in = static_cast<double>(model_.shape(x)[1] * options.kernel.area());
    options.bias = false;
    options.weight_start = Initialiser::normal(0, std::sqrt(2 / fan_in));
    auto layer = model_.layer(name);
    return model_.conv2d(x, options);
  }

  std::string norm(const std::string& name, const std::string& x) {
    auto layer = model_.layer(name);
    return model_.batch_norm(x);
  }

  std::string relu(const std::string& name, const std::string& x) {
    auto layer = model_.layer(name);
    return model_.relu(x);
  }

  std::string dense_block(const std::string& name, const std::string& x, int64_t layers) {
    auto outer = model_.layer(name);
    std::vector<std::string> features = {x};
    for (int64_t i = 1; i <= layers; ++i) {
      auto layer = model_.layer("denselayer" + std::to_string(i));
      std::string y = relu("relu1", norm("norm1", joined(features)));
      y = convolution("conv1", y, {.channels = kBottleneck * kGrowth, .kernel = 1});
      y = relu("relu2", norm("norm2", y));
      features.push_back(convolution("conv2", y, {.channels = kGrowth, .kernel = 3, .padding = 1}));
    }
    return joined(features);
  }

  /// Halves channels, height and width.
  std::string transition(const std::string& name, const std::string& x) {
    auto outer = model_.layer(name);
    std::string y = relu("relu", norm("norm", x));
    y = convolution("conv", y, {.channels = model_.shape(x)[1] / 2, .kernel = 1});
    auto layer = model_.layer("pool");
    return model_.avg_pool2d(y, 2, 2);
  }

 private:
  std::string joined(const std::vector<std::string>& features) {
    if (features.size() == 1) return features[0];
    auto layer = model_.layer("cat");
    return model_.concatenate(features, 1);
  }

  ModelBuilder& model_;
};

}  // namespace

Model build_densenet121(ModelOptions& options, int64_t batch_size) {
  // 29 -> convolution 15 -> pooling 8 -> transitions 4 -> 2 -> 1.
  const ImageOptions images = image_options(options, {.classes = 1000, .channels = 3, .image = 224}, 29);
  ModelBuilder model(options.spec().text(), batch_size);
  DenseNetBuilder net(model);
  std::string x = image_input(model, images);
  {
    auto features = model.layer("features");
    x = net.convolution("conv0", x, {.channels = kFirstChannels, .kernel = 7, .stride = 2, .padding = 3});
    x = net.relu("relu0", net.norm("norm0", x));
    {
      auto layer = model.layer("pool0");
      x = model.max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1});
    }
    int64_t block = 1;
    for (const int64_t layers : {6, 12, 24, 16}) {
      x = net.dense_block("denseblock" + std::to_string(block), x, layers);
      if (block < 4) x = net.transition("transition" + std::to_string(block), x);
      ++block;
    }
    x = net.norm("norm5", x);
  }
  x = pooled_features(model, net.relu("relu", x), 1);
  {
    auto layer = model.layer("classifier");
    x = model.linear(x, {.features = images.classes, .bias_start = Initialiser::constant(0)});
  }
  return model.finish_classification(x);
}

}  // namespace pipewright
