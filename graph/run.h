// What to train, on what, how long. Every key has an option on the runtime's command line
// (graph/run_fields.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/json.h"
#include "graph/parameter_groups.h"

namespace pipewright {

struct OptimizerSettings {
  std::string name = "sgd";  ///< of graph/update_rules.h
  double learning_rate = 0.01;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  std::string no_decay;  ///< expression: parameters that do not decay (graph/parameter_groups.h); "" = none
  std::vector<ParameterGroup> parameter_groups;
  std::string delay_correction = "none";  ///< of graph/delay_corrections.h
};

struct LearningRatePolicy {
  /// "constant", "step", "milestones", "polynomial", "exponential", "cosine"
  std::string name = "constant";
  int64_t warmup_minibatches = 0;    ///< linear from 0
  int64_t constant_minibatches = 0;  ///< behind the warm-up, before the policy begins
  int64_t decay_minibatches = 0;     ///< what the policy takes from there on; 0 = the rest of the run
  double lowest_learning_rate = 0;   ///< the policy never falls below it
  std::string milestones;            ///< "milestones": minibatches at which gamma multiplies, "3000,6000"
  double gamma = 0.1;                ///< factor of "step" and "exponential"
  double step_epochs = 30;           ///< "step": the rate is multiplied by gamma every so many epochs
  int64_t step_minibatches = 0;      ///< above 0: every so many minibatches instead
  double power = 2;                  ///< "polynomial": (1 - progress)^power
  /// How often the rate changes after the warm-up: "minibatch", or "epoch" (then it is that of the epoch's
  /// first minibatch).
  std::string every = "minibatch";
};

/// When checkpoints are written, beside the one at the end of the run if any of these asks for some.
struct CheckpointSettings {
  int64_t every_minibatches = 0;  ///< 0 = none
  int64_t every_epochs = 0;       ///< 0 = none
  int64_t keep = 3;               ///< the last so many stay
  bool on_signal = true;          ///< SIGINT and SIGTERM leave one to resume from
  /// "exact": with the older weight versions that minibatches in flight read, so that the same plan goes on
  /// as if it had never stopped; "latest": without, smaller.
  std::string versions = "exact";
};

/// What happens when a rank is lost: its process is killed, stops, or cannot be reached any more.
/// docs/recovery.md
struct RecoverySettings {
  /// SPEC: "end", "restart" (another process takes the rank's place), "continue:profile=PROFILE.json" (the
  /// ranks that are left go on under a plan made for them).
  std::string on_loss = "end";
  int64_t fewest = 1;  ///< "continue": with fewer ranks the run ends
  int64_t spares = 0;  ///< processes that wait for a rank's place from the start
  /// Other ranks that keep a copy of each stage's state: 0 or 1.
  int64_t copies = 1;
  int64_t copy_every_minibatches = 20;  ///< how often the state is kept, from which a lost rank is recovered
};

/// What decides how gradients become new weights: the same for the runtime and for the serial reference.
struct UpdateSettings {
  OptimizerSettings optimizer;
  LearningRatePolicy learning_rate_policy;
  std::string learning_rate_scaling = "none";  ///< "none", "pipedream"
  double gradient_clipping_norm = 0;  ///< global norm of an update's gradient, at most; 0 = no clipping
  /// Rounds of a stage that make one update (weights "stash", "vertical", "predict"; at least, with "paci").
  int64_t gradient_accumulation = 1;
  /// Over what the loss of an update is averaged where its minibatches count unequal numbers of labels:
  /// "minibatches" (the mean of their means) or "labels" (each counts as many as it has).
  std::string loss_average = "minibatches";
  std::string sync = "all-reduce";  ///< how replicas are held together (graph/sync_rules.h)
  bool nan_guard = true;            ///< stop at the first loss or gradient that is not finite
  int64_t gradient_bucket_bytes =
      25 << 20;  ///< replicas sum their gradients in pieces of up to so many bytes
  int64_t seed = 0;
  /// Forwards and backwards are recorded once and replayed, where they can be: "off", "on", "auto" (where the
  /// device else waits for the host).
  std::string cuda_graphs = "auto";
};

/// "float32", "tf32", "bfloat16" (docs/semantics.md, Precision).
const std::vector<std::string>& known_precisions();

/// Only `model` and `data` have no default. Keys that are absent keep these values; unknown keys are errors.
struct Run : UpdateSettings {
  static constexpr const char* kSchema = "pipewright.run/1";

  std::string model;            ///< SPEC
  std::string plan;             ///< path of a plan; "" = the whole model on every rank
  std::string adapt = "none";   ///< SPEC: which plans take over from it while the run trains
  std::string cache = "none";   ///< SPEC: where what frozen layers make is kept (graph/cache_rules.h)
  int64_t world_size = 0;       ///< ranks of a run without a plan; 0 = as many as are started
  std::string data;             ///< SPEC
  std::string evaluation_data;  ///< SPEC; "" = no evaluation
  int64_t evaluate_every_minibatches = 0;  ///< beside the evaluation after each epoch; 0 = none
  int64_t batch_size = 64;
  int64_t epochs = 1;       ///< used when `minibatches` is 0
  int64_t minibatches = 0;  ///< over the whole run; 0 = as many as the epochs hold
  /// Operators that are run in another way on a GPU: "auto", "none" or names (models/run/device_passes.h).
  std::string device_passes = "auto";
  std::string precision = "float32";  ///< one of known_precisions(); weights are float32 always
  std::string initial_weights;        ///< a .safetensors file or index; "" = the model's own initialisers
  CheckpointSettings checkpoint;
  RecoverySettings recovery;
  bool no_save = false;  ///< true: the run's final weights are not written into its folder
  bool emulate = false;  ///< one process trains what the plan's ranks would
  std::string resume;    ///< "", "latest", or a checkpoint's folder
  std::string device = "cpu";
  int64_t threads = 1;                 ///< compute threads of one rank
  int64_t data_workers = 0;            ///< threads of one rank that make minibatches; 0 = by its cores
  std::string transport = "auto";      ///< "auto", "gloo", "nccl", "shm"
  std::vector<std::string> disturb;    ///< SPECs: ranks that are made slow, for experiments
  double timeout_seconds = 30;         ///< a peer that is silent for longer is lost
  double start_timeout_seconds = 300;  ///< ranks that have not all met by then end
  int64_t trace_minibatches = 64;      ///< how many minibatches the trace holds; 0 = none
  std::string output = "runs/latest";

  static Run from_json(JsonReader& reader);
  Json to_json() const;
  void validate(const std::string& where) const;
};

}  // namespace pipewright
