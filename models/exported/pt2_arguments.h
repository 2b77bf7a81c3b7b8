// Arguments of calls as exported programs spell them (torch/_export/serde/schema.py, version 8.17).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "graph/graph.h"
#include "graph/json.h"

namespace pipewright {

/// What the program around the call says.
struct Pt2Surroundings {
  std::function<std::string(const std::string& local)>
      tensor;  ///< the graph's name of a tensor; throws if it has none
  std::function<int64_t(const std::string& local)> size;  ///< the value of a size; throws if it has none
  std::function<void(const std::string& message)> fail;   ///< throws an InputError that names the call
  std::string where;                                      ///< for messages: the file and the call
};

/// The argument `name` of a call: `input` is {"name": ..., "arg": {KIND: VALUE}}. InputError for a kind that
/// Pipewright has not, or a value that is none of its kind.
Argument pt2_argument(JsonReader& input, const std::string& name, const Pt2Surroundings& around);

}  // namespace pipewright
