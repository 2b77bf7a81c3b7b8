// MobileNetV2 (Sandler et al. 2018) as torchvision has it: inverted residuals of expansion 6 with ReLU6,
// convolutions start from kaiming_normal (fan_out), the linear layer from N(0, 0.01) and 0.
// `small=yes` is the form that DDLBench trains on MNIST and CIFAR-10 (kuangliu's): strides for small images,
// ReLU, every block with its expansion and, where it keeps the size, a shortcut; all parameters from
// torch.nn's defaults.
#include <array>

#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

struct Group {
  int64_t expansion, channels, blocks, stride;
};
constexpr std::array<Group, 7> kGroups = {{{1, 16, 1, 1},
                                           {6, 24, 2, 2},
                                           {6, 32, 3, 2},
                                           {6, 64, 4, 2},
                                           {6, 96, 3, 1},
                                           {6, 160, 3, 2},
                                           {6, 320, 1, 1}}};

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
    options.weight_start = kaiming_normal_fan_out(options.channels, options.kernel);
    return normed_convolution(model_, convolution_name, norm_name, x, options);
  }

  ModelBuilder& model_;
};

class SmallMobileNetBuilder {
 public:
  explicit SmallMobileNetBuilder(ModelBuilder& model) : model_(model) {}

  std::string features(const std::string& images) {
    std::string x = rectified("1", images, {.channels = 32, .kernel = 3, .padding = 1});
    {
      auto layers = model_.layer("layers");
      int position = 0;
      for (const Group& group : kGroups) {
        const int64_t stride = group.channels == 24 ? 1 : group.stride;
        for (int64_t i = 0; i < group.blocks; ++i) {
          auto layer = model_.layer(std::to_string(position++));
          x = block(x, group.expansion, group.channels, i == 0 ? stride : 1);
        }
      }
    }
    return rectified("2", x, {.channels = 1280, .kernel = 1});
  }

 private:
  std::string block(const std::string& x, int64_t expansion, int64_t channels, int64_t stride) {
    const int64_t in = model_.shape(x)[1];
    const int64_t hidden = in * expansion;
    std::string y = rectified("1", x, {.channels = hidden, .kernel = 1});
    y = rectified("2", y,
                  {.channels = hidden, .kernel = 3, .stride = stride, .padding = 1, .groups = hidden});
    y = normed_convolution(model_, "conv3", "bn3", y, {.channels = channels, .kernel = 1});
    if (stride != 1) return y;
    std::string shortcut = x;
    if (in != channels)
      shortcut =
          normed_convolution(model_, "shortcut.0", "shortcut.1", x, {.channels = channels, .kernel = 1});
    auto layer = model_.layer("add");
    return model_.add(y, shortcut);
  }

  /// convN, bnN and the ReLU after them.
  std::string rectified(const std::string& number, const std::string& x, const Conv2dOptions& options) {
    const std::string y = normed_convolution(model_, "conv" + number, "bn" + number, x, options);
    auto layer = model_.layer("relu" + number);
    return model_.relu(y);
  }

  ModelBuilder& model_;
};

Model build_small_mobilenet_v2(ModelOptions& options, int64_t batch_size) {
  if (options.has("dropout")) options.fail("dropout", "small=yes has no dropout", "Next: leave dropout out");
  const ImageOptions images = small_image_options(options);
  ModelBuilder model(options.spec().text(), batch_size);
  const std::string x = SmallMobileNetBuilder(model).features(image_input(model, images));
  return model.finish_classification(
      linear_head(model, "linear", small_pooled_features(model, x), images.classes));
}

}  // namespace

Model build_mobilenet_v2(ModelOptions& options, int64_t batch_size) {
  if (small_images(options)) return build_small_mobilenet_v2(options, batch_size);
  const ImageOptions images = image_options(options, {.classes = 1000, .channels = 3, .image = 224}, 1);
  const double dropout = options.number("dropout", 0.2, 0, 0.99);
  ModelBuilder model(options.spec().text(), batch_size);
  MobileNetBuilder net(model);
  std::string x = image_input(model, images);
  {
    auto features = model.layer("features");
    int position = 0;
    x = net.block(std::to_string(position++), x, {.channels = 32, .kernel = 3, .stride = 2, .padding = 1});
    for (const Group& group : kGroups) {
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
    if (dropout > 0) {
      auto layer = model.layer("0");
      x = model.dropout(x, dropout);
    }
    auto layer = model.layer("1");
    x = model.linear(x, {.features = images.classes,
                         .weight_start = Initialiser::normal(0, 0.01),
                         .bias_start = Initialiser::constant(0)});
  }
  return model.finish_classification(x);
}

}  // namespace pipewright
