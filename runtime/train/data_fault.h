// Is a number that is not finite the data's fault?
#pragma once

#include <functional>
#include <string>

#include "graph/graph.h"
#include "runtime/data/loader.h"
#include "runtime/stage/not_finite_error.h"

namespace pipewright {

/// Reads the minibatches of `error` again, all fields that the graph reads, and returns what is wrong with
/// them, as part of a sentence: a number that is not finite, with its field and sample; labels of which none
/// asks anything. "" if nothing is, or they cannot be read. `request`: minibatch k of the run.
std::string data_fault(const NotFiniteError& error, const Graph& graph, const Dataset& dataset,
                       const std::function<LoadRequest(int64_t k)>& request);

/// Throws `error`, or, where data_fault() finds something, one that says this instead of the usual cures.
[[noreturn]] void throw_with_cause(const NotFiniteError& error, const std::string& data_fault);

}  // namespace pipewright
