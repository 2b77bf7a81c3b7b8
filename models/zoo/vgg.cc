// VGG without batch norm (Simonyan and Zisserman 2014), configurations A (11), B (13), D (16) and E (19), as
// torchvision has them: convolutions start from kaiming_normal (fan_out), linear layers from N(0, 0.01), all
// biases from 0. `small=yes` is the form that DDLBench trains on MNIST and CIFAR-10 (kuangliu's): one linear
// layer on one place of 512 channels, all parameters from torch.nn's defaults.
#include <vector>

#include "models/zoo/sequential.h"
#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

using Blocks = std::vector<std::vector<int64_t>>;  // the widths of the convolutions between two poolings

Model build_small_vgg(ModelOptions& options, int64_t batch_size, const Blocks& blocks) {
  if (options.has("hidden"))
    options.fail("hidden", "small=yes has one linear layer and no hidden ones", "Next: leave hidden out");
  if (options.has("dropout")) options.fail("dropout", "small=yes has no dropout", "Next: leave dropout out");
  // Four poolings leave one place of 16 to 31, five of 32 to 63: the last one stays out where nothing is left
  // to pool.
  const ImageOptions images = small_image_options(options, 16, 63);
  ModelBuilder model(options.spec().text(), batch_size);
  Sequential features(model, "features", image_input(model, images));
  for (const std::vector<int64_t>& block : blocks) {
    for (const int64_t channels : block)
      features.conv2d({.channels = channels, .kernel = 3, .padding = 1}).relu();
    if (model.shape(features.value())[2] > 1) features.max_pool2d({.kernel = 2, .stride = 2});
  }
  features.avg_pool2d(1);
  std::string x = features.value();
  {
    auto layer = model.layer("flatten");
    x = model.flatten(x);
  }
  return model.finish_classification(linear_head(model, "classifier", x, images.classes));
}

Model build_vgg(ModelOptions& options, int64_t batch_size, const Blocks& blocks) {
  if (small_images(options)) return build_small_vgg(options, batch_size, blocks);
  // Five poolings halve 32 to one pixel.
  const ImageOptions images = image_options(options, {.classes = 1000, .channels = 3, .image = 224}, 32);
  const int64_t hidden = options.integer("hidden", 4096, 1, 1 << 16);
  const double dropout = options.number("dropout", 0.5, 0, 0.99);

  ModelBuilder model(options.spec().text(), batch_size);
  Sequential features(model, "features", image_input(model, images));
  for (const std::vector<int64_t>& block : blocks) {
    for (const int64_t channels : block) {
      features.conv2d({.channels = channels,
                       .kernel = 3,
                       .padding = 1,
                       .weight_start = kaiming_normal_fan_out(channels, 3),
                       .bias_start = Initialiser::constant(0)});
      features.relu();
    }
    features.max_pool2d({.kernel = 2, .stride = 2});
  }

  Sequential classifier(model, "classifier", pooled_features(model, features.value(), 7));
  const auto linear = [&](int64_t width) {
    classifier.linear({.features = width,
                       .weight_start = Initialiser::normal(0, 0.01),
                       .bias_start = Initialiser::constant(0)});
  };
  for (int i = 0; i < 2; ++i) {
    linear(hidden);
    classifier.relu().dropout(dropout);
  }
  linear(images.classes);
  return model.finish_classification(classifier.value());
}

}  // namespace

Model build_vgg11(ModelOptions& options, int64_t batch_size) {
  return build_vgg(options, batch_size, {{64}, {128}, {256, 256}, {512, 512}, {512, 512}});
}

Model build_vgg13(ModelOptions& options, int64_t batch_size) {
  return build_vgg(options, batch_size, {{64, 64}, {128, 128}, {256, 256}, {512, 512}, {512, 512}});
}

Model build_vgg16(ModelOptions& options, int64_t batch_size) {
  return build_vgg(options, batch_size,
                   {{64, 64}, {128, 128}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}});
}

Model build_vgg19(ModelOptions& options, int64_t batch_size) {
  return build_vgg(options, batch_size,
                   {{64, 64}, {128, 128}, {256, 256, 256, 256}, {512, 512, 512, 512}, {512, 512, 512, 512}});
}

}  // namespace pipewright
