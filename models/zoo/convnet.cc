// A small VGG with batch norm, for images of the size of MNIST's: six convolutions, two linear layers. At the
// default width a sample costs 6.5 million floating-point operations forward (2 per multiply-add), at
// most 1.8 million of them in one layer: cheap enough for one core, and even enough to be cut into four
// stages.
#include "models/zoo/sequential.h"
#include "models/zoo/zoo.h"

namespace pipewright {

Model build_convnet(ModelOptions& options, int64_t batch_size) {
  // Three poolings leave at least one pixel of 8.
  const ImageOptions images = image_options(options, {.classes = 10, .channels = 1, .image = 28}, 8);
  const int64_t width = options.integer("width", 16, 1, 1 << 12);

  ModelBuilder model(options.spec().text(), batch_size);
  Sequential features(model, "features", image_input(model, images));
  const auto convolution = [&](int64_t channels) {
    // No bias: batch norm takes it away.
    const Initialiser start = kaiming_normal_fan_out(channels, 3);
    features.conv2d({.channels = channels, .kernel = 3, .padding = 1, .bias = false, .weight_start = start});
    features.batch_norm().relu();
  };
  const auto pool = [&] { features.max_pool2d({.kernel = 2, .stride = 2}); };
  convolution(width);
  pool();
  convolution(width);
  convolution(2 * width);
  pool();
  convolution(2 * width);
  convolution(4 * width);
  pool();
  convolution(4 * width);

  std::string x = features.value();
  {
    auto layer = model.layer("flatten");
    x = model.flatten(x);
  }
  Sequential classifier(model, "classifier", x);
  classifier.linear({.features = 8 * width}).relu().linear({.features = images.classes});
  return model.finish_classification(classifier.value());
}

}  // namespace pipewright
