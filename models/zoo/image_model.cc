#include "models/zoo/zoo.h"

namespace pipewright {

ImageOptions image_options(ModelOptions& options, const ImageOptions& defaults, int64_t smallest_image) {
  ImageOptions result;
  result.classes = options.integer("classes", defaults.classes, 2, 1 << 20);
  result.channels = options.integer("channels", defaults.channels, 1, 1 << 16);
  result.image = options.integer("image", defaults.image, 1, 4096);
  if (result.image < smallest_image) {
    options.fail(
        "image",
        "got " + std::to_string(result.image) + ", expected at least " + std::to_string(smallest_image) +
            ", the smallest image that works for this model",
        "Next: image=" + std::to_string(smallest_image) + " or larger, with the images resized to that");
  }
  return result;
}

std::string image_input(ModelBuilder& model, const ImageOptions& options) {
  return model.input("images", "float32", {options.channels, options.image, options.image});
}

std::string pooled_features(ModelBuilder& model, std::string x, int64_t size) {
  {
    auto layer = model.layer("avgpool");
    x = model.adaptive_avg_pool2d(x, size);
  }
  auto layer = model.layer("flatten");
  return model.flatten(x);
}

}  // namespace pipewright
