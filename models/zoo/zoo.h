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
Model build_vit_b_16(ModelOptions& options, int64_t batch_size);
Model build_bert(ModelOptions& options, int64_t batch_size);
Model build_gnmt(ModelOptions& options, int64_t batch_size);

struct ImageOptions {
  int64_t classes;
  int64_t channels;
  int64_t image;  ///< side of the square image
};

/// Reads the options of these names, with these defaults. InputError saying `smallest_image` if the image is
/// smaller.
ImageOptions image_options(ModelOptions& options, const ImageOptions& defaults, int64_t smallest_image);

/// The input "images", float32 (batch, channels, image, image).
std::string image_input(ModelBuilder& model, const ImageOptions& options);

/// Layers "avgpool", to size x size, and "flatten": from convolutions to linear layers, as torchvision has
/// it.
std::string pooled_features(ModelBuilder& model, std::string x, int64_t size);

}  // namespace pipewright
