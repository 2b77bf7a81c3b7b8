// Equal layers of known cost: what plans and schedules are tried on. The first layer reads all numbers of an
// image.
#include "models/zoo/sequential.h"
#include "models/zoo/zoo.h"

namespace pipewright {

Model build_mlp(ModelOptions& options, int64_t batch_size) {
  const ImageOptions images = image_options(options, {.classes = 10, .channels = 1, .image = 32}, 1);
  const int64_t layers = options.integer("layers", 8, 0, 10000);
  const int64_t width = options.integer("width", 1024, 1, 1 << 20);

  ModelBuilder model(options.spec().text(), batch_size);
  std::string x = image_input(model, images);
  {
    auto layer = model.layer("flatten");
    x = model.flatten(x);
  }
  Sequential stack(model, "layers", x);
  for (int64_t i = 0; i < layers; ++i) stack.linear({.features = width}).relu();
  stack.linear({.features = images.classes});
  return model.finish_classification(stack.value());
}

}  // namespace pipewright
