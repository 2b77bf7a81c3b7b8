#include "runtime/checkpoint/checkpoint_tensors.h"

#include "graph/digest.h"
#include "graph/error.h"

namespace pipewright {

CheckpointTensors::CheckpointTensors(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
  const auto& stages = checkpoint.manifest.stages;
  for (size_t s = 0; s < stages.size(); ++s) {
    const SafetensorsFile file(checkpoint.folder / stages[s].state.file);
    for (const SafetensorsEntry& entry : file.tensors()) {
      if (holder_of_.emplace(entry.name, s).second) names_.push_back(entry.name);
    }
  }
}

std::vector<std::string> CheckpointTensors::names() const { return names_; }

at::Tensor CheckpointTensors::take(const std::string& name) {
  PW_CHECK(has(name), name << " is not in " << checkpoint_.folder.string());
  const size_t s = holder_of_.at(name);
  const CheckpointStage& stage = checkpoint_.manifest.stages[s];
  at::Tensor tensor = read(stage.state, name);
  const bool of_replicas =
      !stage.replicas.empty() && tensor.is_floating_point() &&
      SafetensorsFile(checkpoint_.folder / stage.replicas.begin()->second.file).find(name);
  if (!of_replicas) return tensor;
  for (const auto& [replica, file] : stage.replicas) tensor.add_(read(file, name));
  return tensor.div_(static_cast<double>(stage.replicas.size() + 1));
}

at::Tensor CheckpointTensors::buffer_of(int64_t stage, int64_t replica, const std::string& name) {
  const CheckpointStage& files = checkpoint_.manifest.stages.at(static_cast<size_t>(stage));
  return read(replica == 0 ? files.state : files.replicas.at(replica), name);
}

at::Tensor CheckpointTensors::weight_of(int64_t stage, int64_t version, const std::string& name) {
  return read(checkpoint_.manifest.stages.at(static_cast<size_t>(stage)).versions.at(version), name);
}

at::Tensor CheckpointTensors::read(const CheckpointFile& file, const std::string& name) {
  auto opened = whole_.find(file.file);
  if (opened == whole_.end()) {
    const auto path = checkpoint_.folder / file.file;
    if (digest_of_file(path) != file.digest)
      throw InputError(path.string() + ": is not what was written: its digest differs");
    opened = whole_.emplace(file.file, SafetensorsFile(path)).first;
  }
  const SafetensorsEntry* entry = opened->second.find(name);
  if (!entry) throw InputError(opened->second.path().string() + ": has no tensor '" + name + "'");
  return opened->second.read(*entry);
}

}  // namespace pipewright
