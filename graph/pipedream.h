// PipeDream's profile format (graph.txt): one line a node, one tab-indented line an edge; times in ms, sizes in bytes, all
// for one minibatch of a size that the file does not say. Grammar: docs/formats.md. Independent implementation from the
// format's description.
//
// Facts about the files as PipeDream's profiler writes them (github.com/msr-fiddle/pipedream, profiler/ and profiles/):
//  * The order of the nodes is that of a hash table. The order of the edges into a node is that of its arguments.
//  * Sizes are 4 bytes times the number of elements, whatever the dtype. A node that gives a tuple lists a size for each
//    part, and nodes `__getitem__(k)` pick the parts.
//  * The time of an `Input` node is that of loading data, hundreds of ms in some files.
//  * Functional calls (`Add`, `Concat`, `View`, `__getitem__`) have no time. In-place ones count a full activation.
//  * The same format with ` -- stage_id=K` at the end of node lines is the output of PipeDream's optimizer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/profile.h"

namespace pipewright {

/// Nodes come out in a deterministic order in which they can run (the file's order is arbitrary): of the nodes that are
/// ready, the one that stands first in the file. Each node makes one value, named after it, of the sum of its
/// activation sizes; its description becomes `layer`. Source nodes described as "Input..." become graph inputs: their time
/// is `input_seconds` and their size is no traffic. backward_compute_time goes to backward_input_seconds. saved_bytes is the
/// activation size (an upper bound: the format knows no better); all parameters count as trainable; `whole` is the sum over
/// the nodes. `model` is the name of the file, or of its folder for a "graph.txt". Times are the doubles nearest to the
/// file's decimals. Stage ids are checked and dropped.
/// InputError with file and line for what does not parse, for edges to unknown nodes and for cycles.
Profile parse_pipedream_profile(const std::string& text, const std::string& where);

/// Stage of each node that has a `stage_id`, "Input" nodes too; empty for a plain profile. InputError as above.
std::map<std::string, int64_t> parse_pipedream_stages(const std::string& text, const std::string& where);

/// The inverse, as far as the format can hold: what it cannot (spread, names of parameters, ...) is dropped; the two parts
/// of backward become one. Numbers have the digits that read back equal, three decimals at least. `stages`: empty, or the
/// stage of each node; inputs then get stage 0. InputError for a node or value name that the format cannot hold.
std::string pipedream_profile_text(const Profile& profile, const std::vector<int64_t>& stages = {});

/// True if the text looks like graph.txt rather than JSON: the optimizer's --profile takes both.
bool looks_like_pipedream_profile(const std::string& text);

}  // namespace pipewright
