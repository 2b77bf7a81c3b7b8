// The minibatches of a run as a file of tensors, for another program that is to train on the same.
#pragma once

#include <filesystem>

#include "models/safetensors/safetensors.h"
#include "runtime/generation/training_data.h"

namespace pipewright {

/// Each field of the data that the graph reads is a tensor (minibatches, samples, sample shape...): those
/// from data.first_minibatch() on, in the order and with the augmentation that the run has. Metadata:
/// `first_minibatch`, `batch_size`, `seed`. Holds one field at a time. RunError of samples that cannot be
/// read and of the disk.
WrittenFile write_minibatches(const std::filesystem::path& file, const Job& job, const TrainingData& data);

}  // namespace pipewright
