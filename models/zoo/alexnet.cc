// AlexNet of "One weird trick for parallelizing convolutional neural networks" (Krizhevsky 2014), as
// torchvision has it: default initialisation, dropout before the first two linear layers.
#include "models/zoo/sequential.h"
#include "models/zoo/zoo.h"

namespace pipewright {

Model build_alexnet(ModelOptions& options, int64_t batch_size) {
  // 63 -> convolution 15 -> pooling 7 -> 3 -> 1.
  const ImageOptions images = image_options(options, {.classes = 1000, .channels = 3, .image = 224}, 63);
  const int64_t hidden = options.integer("hidden", 4096, 1, 1 << 16);
  const double dropout = options.number("dropout", 0.5, 0, 0.99);

  ModelBuilder model(options.spec().text(), batch_size);
  Sequential features(model, "features", image_input(model, images));
  features.conv2d({.channels = 64, .kernel = 11, .stride = 4, .padding = 2}).relu();
  features.max_pool2d({.kernel = 3, .stride = 2});
  features.conv2d({.channels = 192, .kernel = 5, .padding = 2}).relu();
  features.max_pool2d({.kernel = 3, .stride = 2});
  features.conv2d({.channels = 384, .kernel = 3, .padding = 1}).relu();
  features.conv2d({.channels = 256, .kernel = 3, .padding = 1}).relu();
  features.conv2d({.channels = 256, .kernel = 3, .padding = 1}).relu();
  features.max_pool2d({.kernel = 3, .stride = 2});

  Sequential classifier(model, "classifier", pooled_features(model, features.value(), 6));
  classifier.dropout(dropout).linear({.features = hidden}).relu();
  classifier.dropout(dropout).linear({.features = hidden}).relu();
  classifier.linear({.features = images.classes});
  return model.finish_classification(classifier.value());
}

}  // namespace pipewright
