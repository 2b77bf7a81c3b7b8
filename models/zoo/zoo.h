// The functions behind the rows of the registry, one file per family, and what image models share.
#pragma once

#include <cstdint>
#include <string>

#include "models/zoo/builder.h"
#include "models/zoo/registry.h"

namespace pipewright {

Model build_mlp(ModelOptions& options, int64_t batch_size);
Model build_convnet(ModelOptions& options, int64_t batch_size);
Model build_gpt(ModelOptions& options, int64_t batch_size);
Model build_alexnet(ModelOptions& options, int64_t batch_size);
Model build_vgg11(ModelOptions& options, int64_t batch_size);
Model build_vgg13(ModelOptions& options, int64_t batch_size);
Model build_vgg16(ModelOptions& options, int64_t batch_size);
Model build_vgg19(ModelOptions& options, int64_t batch_size);
Model build_resnet18(ModelOptions& options, int64_t batch_size);
Model build_resnet34(ModelOptions& options, int64_t batch_size);
Model build_resnet50(ModelOptions& options, int64_t batch_size);
Model build_resnet101(ModelOptions& options, int64_t batch_size);
Model build_resnet152(ModelOptions& options, int64_t batch_size);
Model build_resnext50_32x4d(ModelOptions& options, int64_t batch_size);
Model build_squeezenet1_0(ModelOptions& options, int64_t batch_size);
Model build_mobilenet_v2(ModelOptions& options, int64_t batch_size);
Model build_densenet121(ModelOptions& options, int64_t batch_size);
Model build_inception_v3(ModelOptions& options, int64_t batch_size);
Model build_vit(ModelOptions& options, int64_t batch_size);
Model build_vit_ti_16(ModelOptions& options, int64_t batch_size);
Model build_vit_s_16(ModelOptions& options, int64_t batch_size);
Model build_vit_b_16(ModelOptions& options, int64_t batch_size);
Model build_vit_b_32(ModelOptions& options, int64_t batch_size);
Model build_vit_l_16(ModelOptions& options, int64_t batch_size);
Model build_vit_l_32(ModelOptions& options, int64_t batch_size);
Model build_bert(ModelOptions& options, int64_t batch_size);
Model build_bert_classifier(ModelOptions& options, int64_t batch_size);
Model build_bert_span(ModelOptions& options, int64_t batch_size);
Model build_gnmt(ModelOptions& options, int64_t batch_size);

struct ImageOptions {
  int64_t classes;
  int64_t channels;
  int64_t image;  ///< side of the square image
};

inline constexpr int64_t kLargestImage = 4096;

/// Reads the options of these names, with these defaults. InputError naming the limit if the image is smaller
/// or larger than what works.
ImageOptions image_options(ModelOptions& options, const ImageOptions& defaults, int64_t smallest_image,
                           int64_t largest_image = kLargestImage);

/// The option `small`: the form of the model for images of 28 or 32 pixels a side.
bool small_images(ModelOptions& options);

/// The image options of that form, by default 32 x 32 with three channels and 10 classes. Three halvings of
/// 25 to 32 pixels leave the 4 x 4 places that small_pooled_features() takes the mean of.
ImageOptions small_image_options(ModelOptions& options, int64_t smallest_image = 25,
                                 int64_t largest_image = 32);

/// The input "images", float32 (batch, channels, image, image).
std::string image_input(ModelBuilder& model, const ImageOptions& options);

/// A convolution without bias in layer `name` and a batch norm in layer `norm_name`.
std::string normed_convolution(ModelBuilder& model, const std::string& name, const std::string& norm_name,
                               const std::string& x, Conv2dOptions options);

/// A linear layer `name` to `classes` scores.
std::string linear_head(ModelBuilder& model, const std::string& name, const std::string& x, int64_t classes);

/// Layers "avgpool", to size x size, and "flatten": from convolutions to linear layers, as torchvision has
/// it.
std::string pooled_features(ModelBuilder& model, std::string x, int64_t size);

/// The same layers in the small form: the mean of 4 x 4 places.
std::string small_pooled_features(ModelBuilder& model, std::string x);

}  // namespace pipewright
