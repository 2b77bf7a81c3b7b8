// bfloat16 where it pays, with float32 weights: LibTorch's autocast.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "models/definition/model.h"

namespace pipewright {

/// For "bfloat16": the model's graph with Graph::autocast set, so that every segment made of it runs under
/// autocast: operators of autocast's list (matrix products, convolutions) cast what they read to bfloat16,
/// some sensitive ones (losses) to float32, the others take what comes. Parameters, their gradients and the
/// optimizer stay as they are. For "float32" and "tf32" the graph as it is; how a GPU multiplies float32
/// numbers is set for the process.
///
/// Which values come out as bfloat16, and so what crosses a cut as such, is found by running the graph once
/// with zeros on `device`, whose list it is, for two samples if it takes any number. InputError for another
/// precision (known_precisions()), and for "tf32" on a CPU.
Graph with_precision(const Model& model, const std::string& precision, at::Device device = at::kCPU);

}  // namespace pipewright
