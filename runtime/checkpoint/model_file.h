// A trained model as a file of tensors that other programs read: RUN/model.safetensors, and what
// `checkpoint export` writes. docs/checkpoints.md
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/definition/model.h"
#include "models/safetensors/safetensors.h"

namespace pipewright {

constexpr const char* kModelFileName = "model.safetensors";

/// `trained`: every parameter and buffer that the graph reads, by the graph's names, each once. Written are,
/// by PyTorch's names, those and what else load_state_dict() wants: of a model of the zoo the batch norms'
/// counters of forwards; of an exported program exactly what its module's state_dict() has (tied tensors
/// under each of their names; what no node reads as the program has it). `minibatches`: trained; it stands in
/// the metadata.
WrittenFile write_model_file(const std::filesystem::path& file, std::vector<TensorSource> trained,
                             const Model& model, int64_t minibatches);

/// Minibatches after which the file was written; nothing if it is not there or is no such file.
std::optional<int64_t> minibatches_of_model_file(const std::filesystem::path& file);

/// How the stages of a run put their weights together at its end. A stage on another rank than 0 is written
/// by its replica 0 into a hidden folder of the run folder; when all have said so, rank 0 writes the model's
/// file, tensor by tensor, and the folder goes.
std::filesystem::path weights_parts_of(const std::filesystem::path& run_folder);
/// RunError (disk full; a run folder that has gone).
void write_weights_part(const std::filesystem::path& run_folder, int64_t stage, const NamedTensors& tensors);
/// `own`: by stage, of the stages that rank 0 has itself; the others' parts are there. InputError or
/// RunError.
void write_final_model(const std::filesystem::path& run_folder, int64_t stages,
                       const std::map<int64_t, NamedTensors>& own, const Model& model, int64_t minibatches);
/// Best effort: gives the room of parts back.
void remove_weights_parts(const std::filesystem::path& run_folder);

}  // namespace pipewright
