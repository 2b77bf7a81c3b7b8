// ResNet (He et al. 2015) and ResNeXt (Xie et al. 2016) as torchvision has it: in bottlenecks the 3x3
// convolution has the stride ("v1.5"), convolutions start from kaiming_normal (fan_out), the last linear
// layer from torch.nn.Linear's default. `small=yes` is the form that DDLBench trains on MNIST and CIFAR-10
// (kuangliu's): a 3x3 stem without stride or pooling, names of its own, all parameters from torch.nn's
// defaults.
#include <array>

#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

/// What the four groups of blocks are made of.
struct Design {
  std::array<int64_t, 4> blocks;
  bool bottleneck;               ///< 1x1, 3x3, 1x1 with four times the width at the end, instead of 3x3, 3x3
  int64_t groups = 1;            ///< of the 3x3 in bottlenecks (ResNeXt)
  int64_t width_per_group = 64;  ///< its width in the first group of blocks is groups * width_per_group
};

class ResNetBuilder {
 public:
  ResNetBuilder(ModelBuilder& model, const Design& design, bool small)
      : model_(model), design_(design), small_(small) {}

  std::string stem(const std::string& images) {
    if (small_)
      return relu("relu", convolution("conv1", "bn1", images, {.channels = 64, .kernel = 3, .padding = 1}));
    std::string x =
        convolution("conv1", "bn1", images, {.channels = 64, .kernel = 7, .stride = 2, .padding = 3});
    x = relu("relu", x);
    auto layer = model_.layer("maxpool");
    return model_.max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1});
  }

  std::string groups(std::string x) {
    for (size_t group = 0; group < design_.blocks.size(); ++group) {
      auto layer = model_.layer("layer" + std::to_string(group + 1));
      for (int64_t i = 0; i < design_.blocks[group]; ++i) {
        auto block_layer = model_.layer(std::to_string(i));
        x = block(x, int64_t{64} << group, group > 0 && i == 0 ? 2 : 1);
      }
    }
    return x;
  }

  std::string head(const std::string& x, int64_t classes) {
    if (small_) return linear_head(model_, "linear", small_pooled_features(model_, x), classes);
    return linear_head(model_, "fc", pooled_features(model_, x, 1), classes);
  }

 private:
  std::string convolution(const std::string& name, const std::string& norm_name, const std::string& x,
                          Conv2dOptions options) {
    if (!small_) options.weight_start = kaiming_normal_fan_out(options.channels, options.kernel);
    return normed_convolution(model_, name, norm_name, x, options);
  }

  std::string relu(const std::string& name, const std::string& x) {
    auto layer = model_.layer(name);
    return model_.relu(x);
  }

  // torchvision uses one ReLU module several times in a block; a layer here is a place in the order, so each
  // has its own.
  std::string block(const std::string& x, int64_t width, int64_t stride) {
    const int64_t out = design_.bottleneck ? 4 * width : width;
    std::string y;
    if (design_.bottleneck) {
      const int64_t inner = width * design_.width_per_group / 64 * design_.groups;
      y = relu("relu1", convolution("conv1", "bn1", x, {.channels = inner, .kernel = 1}));
      y = convolution(
          "conv2", "bn2", y,
          {.channels = inner, .kernel = 3, .stride = stride, .padding = 1, .groups = design_.groups});
      y = convolution("conv3", "bn3", relu("relu2", y), {.channels = out, .kernel = 1});
    } else {
      y = convolution("conv1", "bn1", x, {.channels = width, .kernel = 3, .stride = stride, .padding = 1});
      y = convolution("conv2", "bn2", relu("relu1", y), {.channels = out, .kernel = 3, .padding = 1});
    }
    std::string shortcut = x;
    if (stride != 1 || model_.shape(x)[1] != out) {
      const std::string name = small_ ? "shortcut" : "downsample";
      shortcut = convolution(name + ".0", name + ".1", x, {.channels = out, .kernel = 1, .stride = stride});
    }
    {
      auto layer = model_.layer("add");
      y = model_.add(y, shortcut);
    }
    return relu(design_.bottleneck ? "relu3" : "relu2", y);
  }

  ModelBuilder& model_;
  Design design_;
  bool small_;
};

Model images_through(ModelOptions& options, int64_t batch_size, const Design& design, bool small) {
  const ImageOptions images = small
                                  ? small_image_options(options)
                                  : image_options(options, {.classes = 1000, .channels = 3, .image = 224}, 1);
  ModelBuilder model(options.spec().text(), batch_size);
  ResNetBuilder resnet(model, design, small);
  const std::string x = resnet.groups(resnet.stem(image_input(model, images)));
  return model.finish_classification(resnet.head(x, images.classes));
}

Model build_resnet(ModelOptions& options, int64_t batch_size, const Design& design) {
  return images_through(options, batch_size, design, small_images(options));
}

}  // namespace

Model build_resnet18(ModelOptions& options, int64_t batch_size) {
  return build_resnet(options, batch_size, {.blocks = {2, 2, 2, 2}, .bottleneck = false});
}

Model build_resnet34(ModelOptions& options, int64_t batch_size) {
  return build_resnet(options, batch_size, {.blocks = {3, 4, 6, 3}, .bottleneck = false});
}

Model build_resnet50(ModelOptions& options, int64_t batch_size) {
  return build_resnet(options, batch_size, {.blocks = {3, 4, 6, 3}, .bottleneck = true});
}

Model build_resnet101(ModelOptions& options, int64_t batch_size) {
  return build_resnet(options, batch_size, {.blocks = {3, 4, 23, 3}, .bottleneck = true});
}

Model build_resnet152(ModelOptions& options, int64_t batch_size) {
  return build_resnet(options, batch_size, {.blocks = {3, 8, 36, 3}, .bottleneck = true});
}

Model build_resnext50_32x4d(ModelOptions& options, int64_t batch_size) {
  return images_through(options, batch_size,
                        {.blocks = {3, 4, 6, 3}, .bottleneck = true, .groups = 32, .width_per_group = 4},
                        false);
}

}  // namespace pipewright
