// The tensors of a checkpoint by name, wherever they lie.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/safetensors/safetensors.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/tensors_by_name.h"

namespace pipewright {

/// Opens files when they are asked for; before the first tensor of one is read, its bytes are compared with
/// the manifest. InputError for a damaged file. Borrows the checkpoint.
class CheckpointTensors : public TensorsByName {
 public:
  explicit CheckpointTensors(const Checkpoint& checkpoint);

  /// What any plan goes on from: latest weights, optimizer, buffers.
  std::vector<std::string> names() const;  ///< each once, by stage
  bool has(const std::string& name) const override { return holder_of_.count(name) != 0; }
  /// A floating-point buffer that differs between replicas as it would be after a drain: ((b0 + b1) + ...) /
  /// r. Other tensors are replica 0's.
  at::Tensor take(const std::string& name) override;

  /// What only the same plan goes on from.
  at::Tensor buffer_of(int64_t stage, int64_t replica, const std::string& name);
  at::Tensor weight_of(int64_t stage, int64_t version, const std::string& name);

 private:
  at::Tensor read(const CheckpointFile& file, const std::string& name);

  const Checkpoint& checkpoint_;
  std::vector<std::string> names_;
  std::map<std::string, size_t>
      holder_of_;  // the first stage that has it: copies of tied parameters are equal
  std::map<std::string, SafetensorsFile> whole_;  // by name: compared, and opened
};

}  // namespace pipewright
