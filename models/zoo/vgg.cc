// VGG without batch norm (Simonyan and Zisserman 2014), configurations A (11), B (13), D (16) and E (19), as
// torchvision has them: convolutions start from kaiming_normal (fan_out), linear layers from N(0, 0.01), all
// biases from 0.
#include <vector>

#include "models/zoo/sequential.h"
#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

/// `blocks`: the widths of the convolutions between two poolings.
Model build_vgg(ModelOptions& options, int64_t batch_size, const std::vector<std::vector<int64_t>>& blocks) {
  // Five poolings halve 32 to one pixel.
  const ImageOptions images = image_options(options, {.classes = 1000, .channels = 3, .image = 224}, 32);
  const int64_t hidden = options.integer("hidden", 4096, 1, 1 << 16);

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
    classifier.relu().dropout(0.5);
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
