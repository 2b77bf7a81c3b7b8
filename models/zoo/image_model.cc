#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

std::string flattened(ModelBuilder& model, const std::string& x) {
  auto layer = model.layer("flatten");
  return model.flatten(x);
}

}  // namespace

ImageOptions image_options(ModelOptions& options, const ImageOptions& defaults, int64_t smallest_image,
                           int64_t largest_image) {
  ImageOptions result;
  result.classes = options.integer("classes", defaults.classes, 2, 1 << 20);
  result.channels = options.integer("channels", defaults.channels, 1, 1 << 16);
  result.image = options.integer("image", defaults.image, 1, kLargestImage);
  const auto refuse = [&](const char* most, int64_t limit, const char* kind, const char* beyond) {
    const std::string number = std::to_string(limit);
    options.fail("image",
                 "got " + std::to_string(result.image) + ", expected at " + most + " " + number + ", the " +
                     kind + " image that works for this model",
                 "Next: image=" + number + " or " + beyond + ", with the images resized to that");
  };
  if (result.image < smallest_image) refuse("least", smallest_image, "smallest", "larger");
  if (result.image > largest_image) refuse("most", largest_image, "largest", "smaller");
  return result;
}

bool small_images(ModelOptions& options) { return options.choice("small", "no", {"yes", "no"}) == "yes"; }

ImageOptions small_image_options(ModelOptions& options, int64_t smallest_image, int64_t largest_image) {
  return image_options(options, {.classes = 10, .channels = 3, .image = 32}, smallest_image, largest_image);
}

std::string image_input(ModelBuilder& model, const ImageOptions& options) {
  return model.input("images", "float32", {options.channels, options.image, options.image});
}

std::string normed_convolution(ModelBuilder& model, const std::string& name, const std::string& norm_name,
                               const std::string& x, Conv2dOptions options) {
  options.bias = false;
  std::string y;
  {
    auto layer = model.layer(name);
    y = model.conv2d(x, options);
  }
  auto layer = model.layer(norm_name);
  return model.batch_norm(y);
}

std::string linear_head(ModelBuilder& model, const std::string& name, const std::string& x, int64_t classes) {
  auto layer = model.layer(name);
  return model.linear(x, {.features = classes});
}

std::string pooled_features(ModelBuilder& model, std::string x, int64_t size) {
  {
    auto layer = model.layer("avgpool");
    x = model.adaptive_avg_pool2d(x, size);
  }
  return flattened(model, x);
}

std::string small_pooled_features(ModelBuilder& model, std::string x) {
  {
    auto layer = model.layer("avgpool");
    x = model.avg_pool2d(x, 4, 4);
  }
  return flattened(model, x);
}

}  // namespace pipewright
