// Which of LibTorch's operators a graph may call. A graph may come from a file that somebody made to do harm,
// and LibTorch has operators that write files, take tensors' memory apart, or trust numbers that they are
// given.
#pragma once

#include <ATen/core/function_schema.h>

#include <string>

namespace pipewright {

/// Why no graph may call the operator, for messages ("reads and writes files"); "" if graphs may.
///
/// They may call the operators of `aten` that make tensors from tensors, numbers and choices, or change their
/// first argument `self` in place. Not: operators of other name spaces; with arguments of any other kind
/// (storages, streams, names of files, results to write to); those that PyTorch keeps to itself (`_...`), but
/// for the ones that programs call; backwards; those that trust what they are given; tensors that are not
/// dense.
std::string why_not_allowed(const c10::FunctionSchema& schema);

}  // namespace pipewright
