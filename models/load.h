// Models as users name them: built in, or in a file.
#pragma once

#include <cstdint>
#include <string>

#include "models/definition/model.h"

namespace pipewright {

/// The training graph with its loss for minibatches of `batch_size` samples; graph.name is `spec`:
/// "NAME:option=value,..." of the registry, or "FILE.pt2:option=value,..." of an exported program
/// (models/exported/exported_model.h). InputError as build_model() and build_exported_model().
Model load_model(const std::string& spec, int64_t batch_size);

}  // namespace pipewright
