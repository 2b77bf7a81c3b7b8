// Programs of torch.export as models: the graph of the file, its loss, its weights.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "graph/spec.h"
#include "models/definition/model.h"

namespace pipewright {

/// The program in the file that the SPEC names. Options:
///   loss=program|cross_entropy|mse  `program`: the first output is the loss, a floating-point scalar.
///   Otherwise it is
///                    computed, as a mean, from an output and a field of the minibatch.
///   output=N         the output that the loss is computed from, counted from 0.
///   labels=FIELD     the field that the loss compares it with; by default "labels" (cross_entropy) or
///                    "targets" (mse).
///   INPUT=FIELD      the field of the minibatch that goes to the program's input INPUT: its name, or its
///   number
///                    among the inputs that are tensors, from 0; by default the field of its name.
///   dead_nodes=drop|keep, shared_values=compute|send, constants=fold|run
///                    switch the passes of models/run/passes.h and the folding of Segment; the numbers are
///                    the same.
/// Weights are read when initial_parameter() asks for them. Parameters that share memory are one, under the
/// name that comes first. InputError as Pt2Archive, read_pt2_program(), with_storage_groups() and
/// check_calls(), and for a loss that is none, a weight that the file has not or has otherwise, and weights
/// that share only a part of their memory.
Model build_exported_model(SpecOptions& options, int64_t batch_size);

/// What the state_dict() of an exported program's module has: by PyTorch's name the tensor of the graph, the
/// same one for all names of a tied tensor; "" for one that no node reads. Tensors of the graph that are none
/// of these are not saved (other buffers, constants). Empty for a model of the zoo.
std::map<std::string, std::string> state_dict_of(const Model& model);

}  // namespace pipewright
