// Operators that are a layer of their own each: what the sequence models of the zoo are made of.
#pragma once

#include <string>

#include "models/zoo/builder.h"

namespace pipewright {

/// The part that their builders have in common. Borrows the builder.
class NamedLayers {
 protected:
  /// `dropout`: the probability of every drop(); with 0 it makes no node.
  NamedLayers(ModelBuilder& model, double dropout, double norm_epsilon = kDefaultEpsilon)
      : model_(model), dropout_(dropout), norm_epsilon_(norm_epsilon) {}

  std::string norm(const std::string& name, const std::string& x) {
    auto layer = model_.layer(name);
    return model_.layer_norm(x, norm_epsilon_);
  }
  std::string add(const std::string& name, const std::string& x, const std::string& y) {
    auto layer = model_.layer(name);
    return model_.add(x, y);
  }
  std::string drop(const std::string& name, const std::string& x) {
    if (dropout_ == 0) return x;
    auto layer = model_.layer(name);
    return model_.dropout(x, dropout_);
  }

  ModelBuilder& model_;

 private:
  double dropout_, norm_epsilon_;
};

}  // namespace pipewright
