// The parts in which a model is measured.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/definition/model.h"
#include "models/memory/free_memory.h"
#include "profiler/bench.h"
#include "profiler/crossing.h"
#include "profiler/part.h"

namespace pipewright {

struct PartLimit {
  MemoryThere memory;
  /// Somebody asked for it: types, which know nothing of what operators keep for themselves, are no argument.
  bool is_asked_for = false;
};

/// One part, if measuring the whole surely takes less than half of the memory, by the types of its tensors.
/// Otherwise each piece (profiler/pieces.h) is tried by itself once, and the parts are as long as the memory
/// allows (profiler/parts.h); that may be one. InputError that names the nodes of a piece that needs more.
std::vector<Part> plan_parts(const Model& model, const std::vector<at::Tensor>& inputs, uint64_t seed,
                             at::Device device, const PartLimit& limit);

/// From the part of `pass`, which ends at node `end`, to the next: `crossing` becomes what later nodes read.
/// Calls `add_saved(node, bytes)` for what earlier nodes made and this part is the first to keep.
void go_past(const SavedPass& pass, const std::map<std::string, size_t>& last_reader, size_t end,
             CrossingValues& crossing, const std::function<void(size_t, int64_t)>& add_saved);

}  // namespace pipewright
