// MobileNetV2 (Sandler et al. 2018) as torchvision has it: inverted residuals of expansion 6 with ReLU6,
// convolutions start from kaiming_normal (fan_out), the linear layer from N(0, 0.01) and 0.
#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

class MobileNetBuilder {
 public:
  explicit MobileNetBuilder(ModelBuilder& model) : model_(model) {}

  /// Convolution NAME.0, batch norm NAME.1, ReLU6 NAME.2.
  std::string block(const std::string& name, const std::string& x, const Conv2dOptions& options) {
    auto outer = model_.layer(name);
    const std::string y = normed("0", "1", x, options);
    auto layer = model_.layer("2");
    return model_.hardtanh(y, 0, 6);
  }

  std::string inverted_residual(const std::string& name, const std::string& x, int64_t expansion,
                                int64_t channels, int64_t stride) {
    auto outer = model_.layer(name);
    const int64_t in = model_.shape(x)[1];
    const int64_t hidden = in * expansion;
    std::string y = x;
    {
      auto layers = model_.layer("conv");
      int position = 0;
      if (expansion != 1) y = block(std::to_string(position++), y, {.channels = hidden, .kernel = 1});
      y = block(std::to_string(position++), y,
                {.channels = hidden, .kernel = 3, .stride = stride, .padding = 1, .groups = hidden});
      y = normed(std::to_string(position), std::to_string(position + 1), y,
                 {.channels = channels, .kernel = 1});
    }
    if (stride != 1 || in != channels) return y;
    auto layer = model_.layer("add");
    return model_.add(x, y);
  }

 private:
  std::string normed(const std::string& convolution_name, const std::string& norm_name, const std::string& x,
                     Conv2dOptions options) {
    options.bias = false;
    options.weight_start = kaiming_normal_fan_out(options.channels, options.kernel);
    std::string y;
    {
      auto layer = model_.layer(convolution_name);
      y = model_.conv2d(x, options);
    }
    auto layer = model_.layer(norm_name);
    return model_.batch_norm(y);
  }

  ModelBuilder& model_;
};

}  // namespace

Model build_mobilenet_v2(ModelOptions& options, int64_t batch_size) {
  const ImageOptions images = image_options(options, {.classes = 1000, .channels = 3, .image = 224}, 1);
  ModelBuilder model(options.spec().text(), batch_size);
  MobileNetBuilder net(model);
  std::string x = image_input(model, images);
  {
    auto features = model.layer("features");
    int position = 0;
    x = net.block(std::to_string(position++), x, {.channels = 32, .kernel = 3, .stride = 2, .padding = 1});
    struct Group {
      int64_t expansion, channels, blocks, stride;
    };
    for (const Group& group : {Group{1, 16, 1, 1},
                               {6, 24, 2, 2},
                               {6, 32, 3, 2},
                               {6, 64, 4, 2},
                               {6, 96, 3, 1},
                               {6, 160, 3, 2},
                               {6, 320, 1, 1}}) {
      for (int64_t i = 0; i < group.blocks; ++i) {
        x = net.inverted_residual(std::to_string(position++), x, group.expansion, group.channels,
                                  i == 0 ? group.stride : 1);
      }
    }
    x = net.block(std::to_string(position), x, {.channels = 1280, .kernel = 1});
  }
  x = pooled_features(model, x, 1);
  {
    auto classifier = model.layer("classifier");
    {
      auto layer = model.layer("0");
      x = model.dropout(x, 0.2);
    }
    auto layer = model.layer("1");
    x = model.linear(x, {.features = images.classes,
                         .weight_start = Initialiser::normal(0, 0.01),
                         .bias_start = Initialiser::constant(0)});
  }
  return model.finish_classification(x);
}

}  // namespace pipewright
