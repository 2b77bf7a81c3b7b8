#include "runtime/checkpoint/checkpoint_writer.h"

#include <chrono>

#include "graph/error.h"
#include "runtime/checkpoint/checkpoint_state.h"

namespace pipewright {

using namespace std::chrono_literals;

void CheckpointWriter::settle() noexcept {
  try {
    if (written_.valid()) finish();
  } catch (const std::exception&) {
    // The rank has failed already, of this or of something else.
  }
}

void CheckpointWriter::take(int64_t n, const StatePlace& place, StageState state, bool drained) {
  const StageProgram& program = place.program;
  Part part;
  part.stage = place.stage;
  part.replica = place.replica;
  part.updates = state.updates;
  if (part.replica == 0) {
    part.state = stage_tensors(program, state);
  } else if (!drained) {
    for (size_t i = 0; i < state.buffers.size(); ++i)
      part.buffers.emplace_back(program.buffers()[i], state.buffers[i]);
  }
  if (settings_.older_versions) {
    for (const auto& [number, trainable] : state.older) {
      NamedTensors& version = part.versions[number];
      for (size_t i = 0; i < trainable.size(); ++i)
        version.emplace_back(program.parameters()[program.trainable()[i]], trainable[i]);
    }
  }
  std::vector<Part>& parts = collected_[n];
  parts.push_back(std::move(part));
  if (parts.size() == stages_) start(n, std::move(collected_.extract(n).mapped()));
}

void CheckpointWriter::start(int64_t n, std::vector<Part> parts) {
  wait();
  writing_ = n;
  parts_ = std::move(parts);
  written_ = std::async(std::launch::async, [this] { return write_all(); });
}

CheckpointPart CheckpointWriter::write_all() const {
  if (!settings_.kept) return write_parts();
  try {
    settings_.kept->demand();
    return write_parts();
  } catch (const RunError& error) {
    settings_.kept->give_up();
    return {writing_, {}, /*kept=*/true, error.what()};
  }
}

CheckpointPart CheckpointWriter::write_parts() const {
  CheckpointPart told{writing_, {}, settings_.kept != nullptr};
  std::vector<CheckpointFile> files;
  for (const Part& part : parts_) {
    CheckpointStage stage = write(settings_.run_folder, writing_, part);
    const auto written = stage.files();
    files.insert(files.end(), written.begin(), written.end());
    told.stages[part.stage].add(std::move(stage));
  }
  if (settings_.written) settings_.written(writing_, files);
  return told;
}

CheckpointStage CheckpointWriter::write(const std::filesystem::path& run_folder, int64_t n,
                                        const Part& part) {
  const std::string name = "stage-" + std::to_string(part.stage);
  CheckpointStage written;
  written.updates = part.updates;
  if (part.replica == 0) written.state = write_checkpoint_file(run_folder, n, name, part.state);
  for (const auto& [number, tensors] : part.versions) {
    written.versions[number] =
        write_checkpoint_file(run_folder, n, name + "-version-" + std::to_string(number), tensors);
  }
  if (!part.buffers.empty()) {
    written.replicas[part.replica] =
        write_checkpoint_file(run_folder, n, name + "-replica-" + std::to_string(part.replica), part.buffers);
  }
  return written;
}

void CheckpointWriter::poll() {
  if (written_.valid() && written_.wait_for(0s) == std::future_status::ready) finish();
}

void CheckpointWriter::wait() {
  while (written_.valid() && written_.wait_for(20ms) != std::future_status::ready) settings_.check();
  if (written_.valid()) finish();
}

void CheckpointWriter::finish() {
  CheckpointPart told = written_.get();
  parts_.clear();
  settings_.post(std::move(told));
}

}  // namespace pipewright
