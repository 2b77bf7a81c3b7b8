#include "graph/run_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/delay_corrections.h"
#include "graph/error.h"
#include "graph/learning_rate.h"
#include "graph/limits.h"
#include "graph/rows.h"
#include "graph/sync_rules.h"
#include "graph/transport_rules.h"
#include "graph/update_rules.h"

namespace pipewright {

const std::vector<std::string>& known_precisions() {
  static const std::vector<std::string> known = {"float32", "tf32", "bfloat16"};
  return known;
}

namespace {

constexpr int64_t kMostSeed = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostSpares = 1024;  // processes, each with its memory
constexpr int64_t kMostBetweenCopies = 1'000'000;

FieldRule integer(int64_t least, int64_t most) { return {.least = least, .most = most}; }
FieldRule count() { return integer(0, kMostCount); }
FieldRule number(double lowest, double highest) { return {.lowest = lowest, .highest = highest}; }
FieldRule one_of(std::vector<std::string> names) { return {.names = std::move(names)}; }
FieldRule not_empty(const char* expected) { return {.not_empty = expected}; }

// Bias corrections divide by 1 - beta^t.
FieldRule below_one() { return number(0.0, std::nextafter(1.0, 0.0)); }

}  // namespace

#define PW_FIELD(member) [](Run& run) -> FieldValue { return &run.member; }

const std::vector<RunField>& run_fields() {
  using enum FieldForm;
  static const std::vector<RunField> fields = {
      {"", "model", "model", kPlain, PW_FIELD(model), not_empty("a model, such as \"mlp\""),
       "SPEC: of the zoo, e.g. convnet:classes=10, or FILE.pt2"},
      {"",
       "plan",
       "plan",
       kPlain,
       PW_FIELD(plan),
       {},
       "plan file; without one, the whole model on every rank"},
      {"", "emulate", "", kFlag, PW_FIELD(emulate), {}, ""},
      {"", "adapt", "adapt", kPlain, PW_FIELD(adapt), not_empty("a policy, such as \"none\""),
       "SPEC: how the plan changes while the run trains: none, manual:file=CHANGES.json, "
       "watch:file=NEXT.json, slow:plan=PLAN.json, interference:profile=PROFILE.json (and of a predictor: "
       "decide=predict,model=PREDICTOR.json), freeze:rule=alpha"},
      {"", "cache", "cache", kPlain, PW_FIELD(cache), not_empty("where values are kept, such as \"none\""),
       "SPEC: where what frozen layers make of samples is kept: none, memory:memory=2GiB, disk:disk=20GiB"},
      {"", "world_size", "", kPlain, PW_FIELD(world_size), integer(0, kMostRanks), ""},
      {"", "data", "data", kPlain, PW_FIELD(data), not_empty("a data set, such as \"fashion-mnist\""),
       "SPEC of the training data, e.g. fashion-mnist"},
      {"",
       "evaluation_data",
       "evaluation-data",
       kPlain,
       PW_FIELD(evaluation_data),
       {},
       "SPEC of the data for the evaluation at epoch ends"},
      {"", "evaluate_every_minibatches", "evaluate-every-minibatches", kPlain,
       PW_FIELD(evaluate_every_minibatches), count(),
       "evaluate after so many, too; the pipeline drains there; 0 = at epoch ends only"},
      {"", "batch_size", "batch-size", kPlain, PW_FIELD(batch_size), integer(1, kMostCount),
       "samples of a minibatch"},
      {"", "epochs", "epochs", kPlain, PW_FIELD(epochs), integer(1, kMostCount), "passes over the data"},
      {"", "minibatches", "minibatches", kPlain, PW_FIELD(minibatches), count(),
       "stop after so many; 0 = as the epochs say"},
      {"optimizer", "name", "optimizer", kPlain, PW_FIELD(optimizer.name), one_of(update_rule_names()),
       join(update_rule_names(), ", ")},
      {"optimizer", "learning_rate", "learning-rate", kPlain, PW_FIELD(optimizer.learning_rate),
       number(0.0, 1e6), "of the optimizer, before any policy"},
      {"optimizer", "momentum", "momentum", kPlain, PW_FIELD(optimizer.momentum), number(0.0, 1.0),
       "of sgd and muon"},
      {"optimizer", "nesterov", "nesterov", kFlag, PW_FIELD(optimizer.nesterov), {}, "momentum looks ahead"},
      {"optimizer", "weight_decay", "weight-decay", kPlain, PW_FIELD(optimizer.weight_decay),
       number(0.0, 1e6), "pulls weights to 0"},
      {"optimizer", "beta1", "beta1", kPlain, PW_FIELD(optimizer.beta1), below_one(),
       "of adam, adamw, nadam, muon: decay of the first moment; of lion: of its part in the direction"},
      {"optimizer", "beta2", "beta2", kPlain, PW_FIELD(optimizer.beta2), below_one(),
       "of adam, adamw, nadam, muon: decay of the second moment; of lion: of the moment"},
      {"optimizer", "epsilon", "epsilon", kPlain, PW_FIELD(optimizer.epsilon), number(0.0, 1.0),
       "of adam, adamw, nadam, muon: added to the divisor"},
      {"optimizer",
       "no_decay",
       "no-decay",
       kPlain,
       PW_FIELD(optimizer.no_decay),
       {},
       "regular expression: parameters without decay, e.g. 'bias|norm'"},
      {"optimizer",
       "parameter_groups",
       "parameter-group",
       kPlain,
       PW_FIELD(optimizer.parameter_groups),
       {},
       "parameters of another rate or decay, e.g. 'head:learning_rate_scale=10,weight_decay=0'; may be given "
       "several times; matrix=no: to muon it is none"},
      {"optimizer", "delay_correction", "delay-correction", kPlain, PW_FIELD(optimizer.delay_correction),
       one_of(delay_correction_names()), help_of(delay_corrections())},
      {"learning_rate_policy", "name", "learning-rate-policy", kPlain, PW_FIELD(learning_rate_policy.name),
       one_of(learning_rate_policy_names()), join(learning_rate_policy_names(), ", ")},
      {"learning_rate_policy", "warmup_minibatches", "warmup-minibatches", kPlain,
       PW_FIELD(learning_rate_policy.warmup_minibatches), count(), "linear warm-up"},
      {"learning_rate_policy", "constant_minibatches", "constant-minibatches", kPlain,
       PW_FIELD(learning_rate_policy.constant_minibatches), count(),
       "behind the warm-up at the full rate, before the policy begins"},
      {"learning_rate_policy", "decay_minibatches", "decay-minibatches", kPlain,
       PW_FIELD(learning_rate_policy.decay_minibatches), count(),
       "that polynomial, exponential and cosine take from there on; 0 = the rest of the run"},
      {"learning_rate_policy", "lowest_learning_rate", "lowest-learning-rate", kPlain,
       PW_FIELD(learning_rate_policy.lowest_learning_rate), number(0.0, 1e6), "where the policy ends"},
      {"learning_rate_policy",
       "milestones",
       "milestones",
       kPlain,
       PW_FIELD(learning_rate_policy.milestones),
       {},
       "minibatches at which gamma multiplies, e.g. 3000,6000"},
      {"learning_rate_policy", "gamma", "gamma", kPlain, PW_FIELD(learning_rate_policy.gamma),
       number(0.0, 1e6), "factor of step, milestones and exponential"},
      {"learning_rate_policy", "step_epochs", "step-epochs", kPlain,
       PW_FIELD(learning_rate_policy.step_epochs), number(1e-9, 1e9), "epochs between two steps"},
      {"learning_rate_policy", "step_minibatches", "step-minibatches", kPlain,
       PW_FIELD(learning_rate_policy.step_minibatches), count(),
       "minibatches between two steps, instead of epochs"},
      {"learning_rate_policy", "power", "power", kPlain, PW_FIELD(learning_rate_policy.power),
       number(0.0, 1e3), "exponent of polynomial"},
      {"learning_rate_policy", "every", "learning-rate-every", kPlain, PW_FIELD(learning_rate_policy.every),
       one_of({"minibatch", "epoch"}), "rate changes every minibatch or epoch"},
      {"", "learning_rate_scaling", "learning-rate-scaling", kPlain, PW_FIELD(learning_rate_scaling),
       one_of({"none", "pipedream"}), "none, pipedream"},
      {"", "gradient_clipping_norm", "gradient-clipping-norm", kPlain, PW_FIELD(gradient_clipping_norm),
       number(0.0, 1e12), "largest norm of a gradient; 0 = any"},
      {"", "gradient_accumulation", "gradient-accumulation", kPlain, PW_FIELD(gradient_accumulation),
       integer(1, kMostCount), "so many times the minibatches make one update"},
      {"", "loss_average", "loss-average", kPlain, PW_FIELD(loss_average), one_of({"minibatches", "labels"}),
       "of an update: minibatches, the mean of their losses; labels, each counts as many labels as it has"},
      {"", "sync", "sync", kPlain, PW_FIELD(sync),
       not_empty("how replicas are held together, such as \"all-reduce\""), help_of(sync_rules())},
      {"", "precision", "precision", kPlain, PW_FIELD(precision), one_of(known_precisions()),
       "float32; tf32: a GPU multiplies with ten bits; bfloat16 (autocast)"},
      {"", "device_passes", "device-passes", kPlain, PW_FIELD(device_passes), not_empty("names of passes"),
       "operators run in another way on a GPU: auto, none, or of channels-last, aligned-products, "
       "contiguous-operands, fused-cross-entropy, two-stage-layer-norm, weights-cast-once (with commas)"},
      {"",
       "nan_guard",
       "nan-guard",
       kPlain,
       PW_FIELD(nan_guard),
       {},
       "stop at the first value that is not finite"},
      {"", "gradient_bucket_bytes", "gradient-bucket-bytes", kBytes, PW_FIELD(gradient_bucket_bytes),
       integer(1, kMostBytes), "gradients averaged at a time, e.g. 25MiB"},
      {"",
       "initial_weights",
       "initial-weights",
       kPlain,
       PW_FIELD(initial_weights),
       {},
       ".safetensors file or index to start from: FILE, or FILE:match=shared|fitting,prefix=PREFIX"},
      {"checkpoint", "every_minibatches", "checkpoint-every-minibatches", kPlain,
       PW_FIELD(checkpoint.every_minibatches), count(), "0 = none"},
      {"checkpoint", "every_epochs", "checkpoint-every-epochs", kPlain, PW_FIELD(checkpoint.every_epochs),
       count(), "0 = none"},
      {"checkpoint", "keep", "checkpoint-keep", kPlain, PW_FIELD(checkpoint.keep), integer(1, kMostCount),
       "the last so many checkpoints stay"},
      {"checkpoint",
       "on_signal",
       "checkpoint-on-signal",
       kPlain,
       PW_FIELD(checkpoint.on_signal),
       {},
       "SIGINT and SIGTERM leave one"},
      {"checkpoint", "versions", "checkpoint-versions", kPlain, PW_FIELD(checkpoint.versions),
       one_of({"exact", "latest"}),
       "exact: with the weights that minibatches in flight read; latest: without"},
      {"recovery", "on_loss", "on-loss", kPlain, PW_FIELD(recovery.on_loss),
       not_empty("what happens when a rank is lost, such as \"end\""),
       "SPEC: what happens when a rank is lost: end, restart, continue:profile=PROFILE.json"},
      {"recovery", "fewest", "fewest", kPlain, PW_FIELD(recovery.fewest), integer(1, kMostRanks),
       "with --on-loss continue: end when fewer ranks are left"},
      {"recovery", "spares", "spares", kPlain, PW_FIELD(recovery.spares), integer(0, kMostSpares),
       "processes that wait for the place of a lost rank"},
      {"recovery", "copies", "copies", kPlain, PW_FIELD(recovery.copies), integer(0, 1),
       "ranks that keep a copy of each stage's state for its rank's loss"},
      {"recovery", "copy_every_minibatches", "copy-every", kPlain, PW_FIELD(recovery.copy_every_minibatches),
       integer(1, kMostBetweenCopies), "minibatches between two copies"},
      {"",
       "no_save",
       "no-save",
       kFlag,
       PW_FIELD(no_save),
       {},
       "do not write the final weights into the run folder"},
      {"", "resume", "resume", kPlain, PW_FIELD(resume), {}, "latest, or a checkpoint's folder"},
      {"", "seed", "seed", kPlain, PW_FIELD(seed), integer(0, kMostSeed),
       "of first weights, order of samples, dropout"},
      {"",
       "device",
       "device",
       kPlain,
       PW_FIELD(device),
       {},
       "cpu, cuda (ranks of a host take turns) or cuda:K"},
      {"", "cuda_graphs", "cuda-graphs", kPlain, PW_FIELD(cuda_graphs), one_of({"auto", "on", "off"}),
       "start forwards and backwards with one call each: on, where that can be; auto, where the device else "
       "waits "
       "for the host; off"},
      {"", "threads", "threads", kPlain, PW_FIELD(threads), integer(1, 4096), "compute threads of one rank"},
      {"", "data_workers", "data-workers", kPlain, PW_FIELD(data_workers), integer(0, 4096),
       "threads of one rank that make minibatches; 0 = one for each core that is left, 1 to 16"},
      {"", "transport", "transport", kPlain, PW_FIELD(transport), one_of(names_of(transport_rules())),
       help_of(transport_rules())},
      {"",
       "disturb",
       "disturb",
       kPlain,
       PW_FIELD(disturb),
       {},
       "SPEC: ranks that are made slow, for experiments, e.g. fixed:rank=1,factor=3; may be given several "
       "times"},
      {"", "timeout_seconds", "timeout", kSeconds, PW_FIELD(timeout_seconds), number(1e-3, kMostSeconds),
       "a rank silent for longer is lost, e.g. 30s"},
      {"", "start_timeout_seconds", "start-timeout", kSeconds, PW_FIELD(start_timeout_seconds),
       number(1e-3, kMostSeconds), "ranks that have not all met by then end, e.g. 5min"},
      {"", "trace_minibatches", "trace-minibatches", kPlain, PW_FIELD(trace_minibatches), count(),
       "minibatches in trace.json, of each plan in force; 0 = none"},
      {"", "output", "output", kPlain, PW_FIELD(output), not_empty("a folder"), "run folder"},
  };
  return fields;
}

#undef PW_FIELD

const RunField& run_field_of(const std::string& option) {
  const auto found = std::find_if(run_fields().begin(), run_fields().end(),
                                  [&](const RunField& field) { return field.option == option; });
  PW_CHECK(found != run_fields().end(), "no field of a run has --" << option);
  return *found;
}

ConstFieldValue RunField::of(const Run& run) const {
  // `in` finds the member and changes nothing.
  return std::visit([](const auto* value) -> ConstFieldValue { return value; }, in(const_cast<Run&>(run)));
}

}  // namespace pipewright
