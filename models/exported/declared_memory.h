// Sizes that a program declares, against the memory there is: before anything of it runs.
#pragma once

#include "graph/graph.h"
#include "models/memory/free_memory.h"

namespace pipewright {

/// InputError, naming the node: one whose tensors, those that it reads and those that it makes, take more
/// than `there` all at once, counting each piece of memory once. Whatever is cut how, they are on one device.
void check_declared_memory(const Graph& graph, const MemoryThere& there = memory_there());

}  // namespace pipewright
