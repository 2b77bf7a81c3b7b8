// torch.nn.Sequential for the builder: the i-th operator is layer "NAME.i", which gives parameters
// torchvision's names.
#pragma once

#include <string>
#include <utility>

#include "models/zoo/builder.h"

namespace pipewright {

/// Borrows the builder. Each call is the builder's method of that name on the value so far.
class Sequential {
 public:
  Sequential(ModelBuilder& model, std::string name, std::string x)
      : model_(model), name_(std::move(name)), x_(std::move(x)) {}

  Sequential& conv2d(const Conv2dOptions& options) { return next(&ModelBuilder::conv2d, options); }
  Sequential& linear(const LinearOptions& options) { return next(&ModelBuilder::linear, options); }
  Sequential& max_pool2d(const MaxPool2dOptions& options) { return next(&ModelBuilder::max_pool2d, options); }
  Sequential& avg_pool2d(int64_t kernel) {
    return next(&ModelBuilder::avg_pool2d, kernel, kernel, int64_t{0});
  }
  /// With 0 there is no node; the layers behind it are called as if there were one.
  Sequential& dropout(double probability) {
    if (probability > 0) return next(&ModelBuilder::dropout, probability);
    ++position_;
    return *this;
  }
  Sequential& batch_norm() { return next(&ModelBuilder::batch_norm, kDefaultEpsilon); }
  Sequential& relu() { return next(&ModelBuilder::relu); }
  const std::string& value() const { return x_; }

 private:
  template <typename Method, typename... Options>
  Sequential& next(Method method, const Options&... options) {
    auto layer = model_.layer(name_ + "." + std::to_string(position_++));
    x_ = (model_.*method)(x_, options...);
    return *this;
  }

  ModelBuilder& model_;
  std::string name_;
  std::string x_;
  int64_t position_ = 0;
};

}  // namespace pipewright
