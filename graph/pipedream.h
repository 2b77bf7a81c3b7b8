// PipeDream's profile format (graph.txt): one line a node, one tab-indented line an edge; times in ms, sizes in bytes.
// Grammar and quirks: docs/formats.md. Independent implementation from the format's description.
#pragma once

#include <string>

#include "graph/profile.h"

namespace pipewright {

/// Nodes come out in a deterministic order in which they can run (the file's order is arbitrary): of the nodes that are
/// ready, the one that stands first in the file. Each node makes one value, named after it, of the sum of its
/// activation sizes. Source nodes described as "Input..." become graph inputs: their time is `input_seconds` and their
/// size is no traffic. backward_compute_time goes to backward_input_seconds. saved_bytes is the activation size (an
/// upper bound: the format knows no better). InputError with file and line for what does not parse, for edges to
/// unknown nodes and for cycles.
Profile parse_pipedream_profile(const std::string& text, const std::string& where);

/// The inverse, as far as the format can hold: what it cannot (spread, names of parameters, ...) is dropped.
std::string pipedream_profile_text(const Profile& profile);

/// True if the text looks like graph.txt rather than JSON: the optimizer's --profile takes both.
bool looks_like_pipedream_profile(const std::string& text);

}  // namespace pipewright
