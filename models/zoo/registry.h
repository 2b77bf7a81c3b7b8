// The built-in models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/spec.h"
#include "models/definition/model.h"

namespace pipewright {

/// Options of a model's SPEC ("vgg16:classes=10,image=64").
using ModelOptions = SpecOptions;

/// `build` reads its options and returns the training graph; build_model() calls finish() and names the
/// graph.
struct ModelRow {
  const char* name;
  Model (*build)(ModelOptions& options, int64_t batch_size);
  const char* options;  ///< all options with their defaults, as a SPEC takes them: "classes=1000,image=224"
  const char* summary;
};
const std::vector<ModelRow>& model_rows();

/// The training graph with its loss for minibatches of `batch_size` samples; graph.name is `spec`.
/// InputError: unknown model or option (nearest match), value out of range, an image too small for the model.
/// Programs call load_model() of models/load.h, which takes files too.
Model build_model(const std::string& spec, int64_t batch_size);

}  // namespace pipewright
