// DynPipe's own data set of interference, for the reader of data sets alone.
#pragma once

#include <string>

#include "graph/json.h"
#include "interference/data_set.h"

namespace pipewright {

/// {"profile": {...}, "output": {...}}.
bool is_dynpipe_row(const Json& json);

/// Counters come as numbers or as texts of numbers. The first row says which features there are. InputError.
void add_dynpipe_row(const Json& json, const std::string& where, InterferenceData* data);

/// Groups of neighbouring rows, where nothing says which ones are like each other.
void group_by_stretches(InterferenceData* data);

}  // namespace pipewright
