// Vision Transformer (Dosovitskiy et al. 2020) as torchvision has it: square patches, a class token in front,
// pre-norm blocks. The head starts from 0, so the first loss is log(classes). Tiny and small are timm's sizes
// (Touvron et al. 2021).
#include <cmath>

#include "models/zoo/attention.h"
#include "models/zoo/named_layers.h"
#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

constexpr double kVitNormEpsilon = 1e-6;

struct VitOptions {
  int64_t patch;  ///< pixels a side
  int64_t layers, width, heads;
  double dropout = 0;
};

/// torch.nn.init.xavier_uniform_
Initialiser xavier_uniform(int64_t in, int64_t out) {
  return Initialiser::uniform(std::sqrt(6.0 / static_cast<double>(in + out)));
}

class VitBuilder : private NamedLayers {
 public:
  VitBuilder(ModelBuilder& model, const VitOptions& options)
      : NamedLayers(model, options.dropout, kVitNormEpsilon), options_(options) {}

  /// Images to (batch, 1 + patches, width).
  std::string embed(const std::string& images) {
    std::string x;
    {
      auto layer = model_.layer("conv_proj");
      const auto fan_in = static_cast<double>(model_.shape(images)[1] * options_.patch * options_.patch);
      x = model_.conv2d(images, {.channels = options_.width,
                                 .kernel = options_.patch,
                                 .stride = options_.patch,
                                 .weight_start = Initialiser::normal(0, std::sqrt(1 / fan_in)),
                                 .bias_start = Initialiser::constant(0)});
      x = model_.transpose(model_.flatten(x, 2), 1, 2);
    }
    const std::string token =
        model_.parameter("class_token", {1, 1, options_.width}, Initialiser::constant(0));
    auto layer = model_.layer("tokens");
    // One token for each sample: as many as there are first patches, so that no argument holds the batch.
    const std::vector<int64_t> first_shape = {model_.batch_size(), 1, options_.width};
    const std::string first = model_.call_one(
        "narrow", "",
        {{"self", named(x)}, {"dim", int64_t{1}}, {"start", int64_t{0}}, {"length", int64_t{1}}},
        first_shape);
    const std::string tokens =
        model_.call_one("expand_as", "", {{"self", named(token)}, {"other", named(first)}}, first_shape);
    return model_.concatenate({tokens, x}, 1);
  }

  std::string encode(std::string x) {
    auto encoder = model_.layer("encoder");
    const std::string positions = model_.parameter("pos_embedding", {1, model_.shape(x)[1], options_.width},
                                                   Initialiser::normal(0, 0.02));
    {
      auto layer = model_.layer("positions");
      x = model_.add(x, positions);
    }
    x = drop("dropout", x);
    for (int64_t i = 0; i < options_.layers; ++i) {
      auto layer = model_.layer("layers.encoder_layer_" + std::to_string(i));
      x = add("add1", drop("dropout", attention(norm("ln_1", x))), x);
      x = add("add2", x, perceptron(norm("ln_2", x)));
    }
    return norm("ln", x);
  }

 private:
  std::string attention(const std::string& x) {
    auto layer = model_.layer("self_attention");
    const int64_t width = options_.width;
    const std::string weight =
        model_.parameter("in_proj_weight", {3 * width, width}, xavier_uniform(width, 3 * width));
    const std::string bias = model_.parameter("in_proj_bias", {3 * width}, Initialiser::constant(0));
    std::vector<int64_t> shape = model_.shape(x);
    shape[2] = 3 * width;
    const std::string together = model_.call_one(
        "linear", "", {{"input", named(x)}, {"weight", named(weight)}, {"bias", named(bias)}}, shape);
    const std::string y = multi_head_attention(model_, model_.split(together, width, 2),
                                               {.heads = options_.heads, .dropout = 0});
    auto inner = model_.layer("out_proj");
    return model_.linear(y, {.features = width, .bias_start = Initialiser::constant(0)});
  }

  std::string perceptron(const std::string& x) {
    auto layer = model_.layer("mlp");
    std::string y = linear("0", x, 4 * options_.width);
    {
      auto activation = model_.layer("1");
      y = model_.gelu(y);
    }
    y = drop("2", y);
    return drop("4", linear("3", y, options_.width));
  }

  std::string linear(const std::string& name, const std::string& x, int64_t features) {
    auto layer = model_.layer(name);
    return model_.linear(x, {.features = features,
                             .weight_start = xavier_uniform(model_.shape(x)[2], features),
                             .bias_start = Initialiser::normal(0, 1e-6)});
  }

  VitOptions options_;
};

void read_blocks(ModelOptions& options, VitOptions& vit) {
  vit.layers = options.integer("layers", vit.layers, 1, 1000);
  vit.width = options.integer("width", vit.width, 1, 1 << 16);
  vit.heads = options.integer("heads", vit.heads, 1, 1 << 10);
  vit.dropout = options.number("dropout", 0, 0, 0.99);
  check_heads(options, vit.width, vit.heads);
}

Model images_in_patches(ModelOptions& options, int64_t batch_size, const ImageOptions& images,
                        VitOptions vit) {
  if (images.image % vit.patch != 0) {
    options.fail("image", "got " + std::to_string(images.image) + ", expected a multiple of the patches' " +
                              std::to_string(vit.patch));
  }
  read_blocks(options, vit);
  ModelBuilder model(options.spec().text(), batch_size);
  VitBuilder net(model, vit);
  std::string x = net.encode(net.embed(image_input(model, images)));
  {
    auto layer = model.layer("class");
    x = model.call_one("select", "int",
                       {{"self", TensorArgument{x}}, {"dim", int64_t{1}}, {"index", int64_t{0}}},
                       {batch_size, vit.width});
  }
  {
    auto layer = model.layer("heads.head");
    x = model.linear(x, {.features = images.classes,
                         .weight_start = Initialiser::constant(0),
                         .bias_start = Initialiser::constant(0)});
  }
  return model.finish_classification(x);
}

Model build_for_imagenet(ModelOptions& options, int64_t batch_size, const VitOptions& vit) {
  return images_in_patches(options, batch_size,
                           image_options(options, {.classes = 1000, .channels = 3, .image = 224}, vit.patch),
                           vit);
}

}  // namespace

Model build_vit(ModelOptions& options, int64_t batch_size) {
  const int64_t patch = options.integer("patch", 7, 1, kLargestImage);
  return images_in_patches(options, batch_size,
                           image_options(options, {.classes = 10, .channels = 1, .image = 28}, patch),
                           {.patch = patch, .layers = 8, .width = 64, .heads = 4});
}

Model build_vit_ti_16(ModelOptions& options, int64_t batch_size) {
  return build_for_imagenet(options, batch_size, {.patch = 16, .layers = 12, .width = 192, .heads = 3});
}

Model build_vit_s_16(ModelOptions& options, int64_t batch_size) {
  return build_for_imagenet(options, batch_size, {.patch = 16, .layers = 12, .width = 384, .heads = 6});
}

Model build_vit_b_16(ModelOptions& options, int64_t batch_size) {
  return build_for_imagenet(options, batch_size, {.patch = 16, .layers = 12, .width = 768, .heads = 12});
}

Model build_vit_b_32(ModelOptions& options, int64_t batch_size) {
  return build_for_imagenet(options, batch_size, {.patch = 32, .layers = 12, .width = 768, .heads = 12});
}

Model build_vit_l_16(ModelOptions& options, int64_t batch_size) {
  return build_for_imagenet(options, batch_size, {.patch = 16, .layers = 24, .width = 1024, .heads = 16});
}

Model build_vit_l_32(ModelOptions& options, int64_t batch_size) {
  return build_for_imagenet(options, batch_size, {.patch = 32, .layers = 24, .width = 1024, .heads = 16});
}

}  // namespace pipewright
