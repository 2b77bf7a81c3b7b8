// First values of parameters and buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/definition/model.h"

namespace pipewright {

/// What the model's archive has under this name; without one, a pure function of (seed, name, type,
/// initialiser): see Initialiser. Contiguous, on the CPU, no gradient required. The same on every machine and
/// for every thread count (but for the last bit of numbers in the tails of a normal distribution, where the C
/// library computes a logarithm). InputError for an unknown name, or an archive that is damaged.
at::Tensor initial_parameter(const Model& model, const std::string& name, uint64_t seed);
/// InputError too for a stored parameter or saved buffer that is not a number, or a trainable parameter that
/// is infinite: no training could go on from it. (What a program keeps as a constant may be.)
at::Tensor initial_buffer(const Model& model, const std::string& name);

/// InputError, which begins with `where` and says the first element and how many there are, if an element is
/// not a number, or with `infinities` is infinite.
void demand_numbers(const at::Tensor& tensor, const std::string& where, const std::string& name,
                    bool infinities);

}  // namespace pipewright
