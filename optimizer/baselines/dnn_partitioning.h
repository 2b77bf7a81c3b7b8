// The input files of dnn-partitioning (github.com/msr-fiddle/dnn-partitioning, README "Input format"). Times
// have no unit there; here they are milliseconds, which the sizes and costs of the operator graphs agree
// with.
#pragma once

#include <string>

#include "optimizer/baselines/max_load.h"

namespace pipewright {

/// InputError with file and place for what does not parse, unknown ids, two costs of one node's edges,
/// cycles.
MaxLoadProblem parse_dnn_partitioning(const std::string& text, const std::string& where);

/// As a profile: forward nodes with the backward nodes of their class; what each sends, in bytes; all of its
/// size counts as saved. Classes, CPUs and memory limits have no place there and are dropped.
Profile dnn_partitioning_profile(const std::string& text, const std::string& where);

/// True if the text has the keys of such a file.
bool looks_like_dnn_partitioning(const std::string& text);

}  // namespace pipewright
