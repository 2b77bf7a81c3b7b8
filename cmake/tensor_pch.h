// The precompiled header of sources that use tensors. Sources still include what they use: they must also compile
// without it.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>
