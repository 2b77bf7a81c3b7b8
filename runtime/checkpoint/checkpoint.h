// A checkpoint: a folder `checkpoints/minibatch-N` with a file of tensors for each stage and manifest.json,
// which is written last and says what belongs to it. docs/checkpoints.md
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/json.h"
#include "graph/plan.h"
#include "graph/run.h"
#include "models/definition/model.h"
#include "runtime/messages/checkpoint_stage.h"

namespace pipewright {

struct CheckpointManifest {
  static constexpr const char* kSchema = "pipewright.checkpoint/1";

  int64_t next_minibatch = 0;  ///< all before it are in the weights, none from it on
  /// The pipeline was last empty before this minibatch: next_minibatch itself where it had drained.
  int64_t pipeline_began = 0;
  int64_t minibatches_per_epoch = 1;
  int64_t evaluated_epochs = 0;                  ///< whose evaluation was over
  std::string cause;                             ///< "interval", "signal", "end"
  std::map<std::string, std::string> libraries;  ///< versions, by name
  std::vector<CheckpointStage> stages;           ///< by stage of the plan
  std::string graph_digest;
  Run run;
  Plan plan;

  /// Reading checks the document's own digest too: a flipped bit that leaves it readable is found.
  static CheckpointManifest from_json(JsonReader& reader);
  Json to_json() const;
  void validate(const std::string& where) const;

  std::vector<CheckpointFile> files() const;  ///< all of them, by stage
};

struct Checkpoint {
  std::filesystem::path folder;
  CheckpointManifest manifest;
};

constexpr const char* kManifestName = "manifest.json";
std::string checkpoint_name(int64_t next_minibatch);  ///< "minibatch-N"
/// N of a folder "minibatch-N"; nothing for other names.
std::optional<int64_t> minibatch_of(const std::filesystem::path& checkpoint);
std::filesystem::path checkpoints_of(const std::filesystem::path& run_folder);

/// Whole checkpoints of a run folder, by falling N; by their names only.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run_folder);

/// Reads the manifest and demands that each file is there with the size it says. InputError otherwise.
Checkpoint open_checkpoint(const std::filesystem::path& folder);
/// Demands that every byte is as it was written, and that the files are readable. InputError otherwise.
void verify_checkpoint(const Checkpoint& checkpoint);

/// The tensors of a stage's `state` file: parameters and buffers by their own names, and beside them
inline const std::string kOptimizerPrefix = "optimizer/";
/// "optimizer/SLOT/NAME" and "optimizer/updates/NAME" (a scalar, int64) for each trainable parameter.
std::string slot_tensor(const std::string& slot, const std::string& parameter);
constexpr const char* kUpdatesSlot = "updates";

/// RUN/earlier-N: what the run before left.
constexpr const char* kEarlierRunPrefix = "earlier-";

/// What `run.resume` means: nothing for "", and for "latest" where the run folder has no checkpoint yet.
/// InputError for one that cannot be taken, with the reason, and for "latest" where only earlier runs'
/// checkpoints stand aside; the remedy names the last good one and the command. `every_byte`:
/// verify_checkpoint() too.
std::optional<Checkpoint> find_resume(const Run& run, bool every_byte);

/// InputError unless the run may go on from the checkpoint: same model, batch size, seed and data set,
/// tensors for every parameter and buffer of the graph in its dtype and shape, slots of the run's optimizer.
/// Everything else (plan, world, rates, number of epochs, ...) may differ.
void check_resume(const Checkpoint& checkpoint, const Run& run, const Model& model);

}  // namespace pipewright
