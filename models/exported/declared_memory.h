// Sizes that a program declares, against the memory there is: before anything of it runs.
#pragma once

#include <cstdint>
#include <string>

#include "graph/graph.h"

namespace pipewright {

struct MemoryThere {
  int64_t bytes;
  std::string what;  ///< for messages: "of memory are free", "are the limit of this process (ulimit -v)"
};

/// The least of what the host has free (MemAvailable) and this process may have (RLIMIT_AS). Of neither: all
/// there is.
MemoryThere memory_there();

/// InputError, naming the node: one whose tensors, those that it reads and those that it makes, take more
/// than `there` all at once, counting each piece of memory once. Whatever is cut how, they are on one device.
void check_declared_memory(const Graph& graph, const MemoryThere& there = memory_there());

}  // namespace pipewright
