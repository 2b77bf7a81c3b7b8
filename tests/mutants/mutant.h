// The switch of the mutants: sources of the runtime with the defects of mutants.json are compiled with it
// into a program of their own. PIPEWRIGHT_MUTANT says which defect a process has; none without it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pipewright {

inline bool mutant(const char* name) {
  static const char* const chosen = std::getenv("PIPEWRIGHT_MUTANT");
  return chosen && std::strcmp(chosen, name) == 0;
}

/// Messages in pairs, the second of each before the first.
template <typename Receive>
std::vector<at::Tensor> swapped(const char* name, Receive receive) {
  if (!mutant(name)) return receive();
  static std::vector<std::vector<at::Tensor>> kept;
  if (kept.empty()) {
    kept.push_back(receive());
    return receive();
  }
  return std::exchange(kept, {}).front();
}

}  // namespace pipewright
