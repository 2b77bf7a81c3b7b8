// SqueezeNet 1.0 (Iandola et al. 2016) as torchvision has it: convolutions start from kaiming_uniform
// (fan_in), the last one from N(0, 0.01), all biases from 0.
#include <cmath>

#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

/// torch.nn.init.kaiming_uniform_ with its defaults: U(-b, b), b = sqrt(6 / fan_in).
Initialiser kaiming_uniform(int64_t fan_in) {
  return Initialiser::uniform(std::sqrt(6.0 / static_cast<double>(fan_in)));
}

class SqueezeNetBuilder {
 public:
  explicit SqueezeNetBuilder(ModelBuilder& model) : model_(model) {}

  std::string convolution(const std::string& name, const std::string& x, Conv2dOptions options) {
    if (!options.weight_start) {
      options.weight_start = kaiming_uniform(model_.shape(x)[1] * options.kernel.area());
    }
    options.bias_start = Initialiser::constant(0);
    auto layer = model_.layer(name);
    return model_.conv2d(x, options);
  }

  std::string relu(const std::string& name, const std::string& x) {
    auto layer = model_.layer(name);
    return model_.relu(x);
  }

  std::string max_pool(const std::string& name, const std::string& x) {
    auto layer = model_.layer(name);
    return model_.max_pool2d(x, {.kernel = 3, .stride = 2, .ceil_mode = true});
  }

  /// Squeezes to `width` channels, expands to 4 * width by 1x1 and by 3x3, side by side.
  std::string fire(const std::string& name, const std::string& x, int64_t width) {
    auto layer = model_.layer(name);
    const std::string squeezed =
        relu("squeeze_activation", convolution("squeeze", x, {.channels = width, .kernel = 1}));
    const std::string one = relu("expand1x1_activation",
                                 convolution("expand1x1", squeezed, {.channels = 4 * width, .kernel = 1}));
    const std::string three =
        relu("expand3x3_activation",
             convolution("expand3x3", squeezed, {.channels = 4 * width, .kernel = 3, .padding = 1}));
    auto join = model_.layer("cat");
    return model_.concatenate({one, three}, 1);
  }

 private:
  ModelBuilder& model_;
};

}  // namespace

Model build_squeezenet1_0(ModelOptions& options, int64_t batch_size) {
  // 29 -> convolution 12 -> poolings 6 -> 3 -> 1.
  const ImageOptions images = image_options(options, {.classes = 1000, .channels = 3, .image = 224}, 29);
  const double dropout = options.number("dropout", 0.5, 0, 0.99);
  ModelBuilder model(options.spec().text(), batch_size);
  SqueezeNetBuilder net(model);
  std::string x = image_input(model, images);
  {
    auto features = model.layer("features");
    x = net.relu("1", net.convolution("0", x, {.channels = 96, .kernel = 7, .stride = 2}));
    x = net.max_pool("2", x);
    for (const auto& [name, width] : {std::pair("3", 16), {"4", 16}, {"5", 32}}) x = net.fire(name, x, width);
    x = net.max_pool("6", x);
    for (const auto& [name, width] : {std::pair("7", 32), {"8", 48}, {"9", 48}, {"10", 64}})
      x = net.fire(name, x, width);
    x = net.max_pool("11", x);
    x = net.fire("12", x, 64);
  }
  {
    auto classifier = model.layer("classifier");
    if (dropout > 0) {
      auto layer = model.layer("0");
      x = model.dropout(x, dropout);
    }
    x = net.convolution(
        "1", x, {.channels = images.classes, .kernel = 1, .weight_start = Initialiser::normal(0, 0.01)});
    x = net.relu("2", x);
    auto layer = model.layer("3");
    x = model.adaptive_avg_pool2d(x, 1);
  }
  {
    auto layer = model.layer("flatten");
    x = model.flatten(x);
  }
  return model.finish_classification(x);
}

}  // namespace pipewright
