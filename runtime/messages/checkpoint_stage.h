// What the ranks of a stage have written into a checkpoint, as they tell it and as its manifest has it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/json.h"

namespace pipewright {

/// A file of tensors that belongs to a checkpoint.
struct CheckpointFile {
  std::string file;  ///< a plain name in the checkpoint's folder
  int64_t bytes = 0;
  std::string digest;  ///< digest_of() its bytes
};

/// What the replicas of one stage wrote.
struct CheckpointStage {
  CheckpointFile state;  ///< of replica 0: latest weights, optimizer, buffers
  int64_t updates = 0;   ///< version of the weights
  /// Older versions that minibatches from next_minibatch on read, by number: trainable parameters.
  std::map<int64_t, CheckpointFile> versions;
  /// Buffers of the other replicas, where theirs are not equal to replica 0's.
  std::map<int64_t, CheckpointFile> replicas;

  static CheckpointStage from_json(JsonReader& reader);
  Json to_json() const;
  std::vector<CheckpointFile> files() const;  ///< that there are
  /// What another replica wrote comes to it.
  void add(CheckpointStage part);
};

}  // namespace pipewright
