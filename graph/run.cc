#include "graph/run.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/device_name.h"
#include "graph/limits.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

constexpr int64_t kMinInt = std::numeric_limits<int64_t>::min();
constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();

// Ranges are checked once, in validate(): a setting may come from the command line too.
void read(JsonReader& reader, const char* key, std::string& value) {
  if (reader.has(key)) value = reader.string(key);
}
void read(JsonReader& reader, const char* key, bool& value) {
  if (reader.has(key)) value = reader.boolean(key);
}
void read(JsonReader& reader, const char* key, int64_t& value) {
  if (reader.has(key)) value = reader.integer(key, kMinInt, kMaxInt);
}
void read(JsonReader& reader, const char* key, double& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (reader.has(key)) value = reader.number(key, -kInfinity, kInfinity);
}

void check_name(const std::string& where, const std::string& path, const std::string& value,
                const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  const std::string near = nearest(value, known);
  fail_document(where, path,
                in_quotes(value) + " is not one of " + join(known, ", ") +
                    (near.empty() ? "" : "; did you mean '" + near + "'?"));
}

}  // namespace

Run Run::from_json(JsonReader& reader) {
  Run run;
  reader.expect({"schema",
                 "model",
                 "plan",
                 "adapt",
                 "world_size",
                 "data",
                 "evaluation_data",
                 "evaluate_every_minibatches",
                 "batch_size",
                 "epochs",
                 "minibatches",
                 "optimizer",
                 "learning_rate_policy",
                 "learning_rate_scaling",
                 "gradient_clipping_norm",
                 "gradient_accumulation",
                 "precision",
                 "nan_guard",
                 "gradient_bucket_bytes",
                 "initial_weights",
                 "checkpoint",
                 "no_save",
                 "resume",
                 "seed",
                 "device",
                 "cuda_graphs",
                 "threads",
                 "transport",
                 "timeout_seconds",
                 "start_timeout_seconds",
                 "trace_minibatches",
                 "output"});
  run.model = reader.string("model");
  read(reader, "plan", run.plan);
  read(reader, "adapt", run.adapt);
  read(reader, "world_size", run.world_size);
  run.data = reader.string("data");
  read(reader, "evaluation_data", run.evaluation_data);
  read(reader, "evaluate_every_minibatches", run.evaluate_every_minibatches);
  read(reader, "batch_size", run.batch_size);
  read(reader, "epochs", run.epochs);
  read(reader, "minibatches", run.minibatches);
  if (reader.has("optimizer")) {
    JsonReader entry = reader.object("optimizer");
    read(entry, "name", run.optimizer.name);
    read(entry, "learning_rate", run.optimizer.learning_rate);
    read(entry, "momentum", run.optimizer.momentum);
    read(entry, "nesterov", run.optimizer.nesterov);
    read(entry, "weight_decay", run.optimizer.weight_decay);
    read(entry, "beta1", run.optimizer.beta1);
    read(entry, "beta2", run.optimizer.beta2);
    read(entry, "epsilon", run.optimizer.epsilon);
    read(entry, "no_decay", run.optimizer.no_decay);
    if (entry.has("parameter_groups")) {
      for (JsonReader& group : entry.objects("parameter_groups"))
        run.optimizer.parameter_groups.push_back(ParameterGroup::from_json(group));
    }
    entry.finish();
  }
  if (reader.has("learning_rate_policy")) {
    JsonReader entry = reader.object("learning_rate_policy");
    read(entry, "name", run.learning_rate_policy.name);
    read(entry, "warmup_minibatches", run.learning_rate_policy.warmup_minibatches);
    read(entry, "gamma", run.learning_rate_policy.gamma);
    read(entry, "step_epochs", run.learning_rate_policy.step_epochs);
    read(entry, "step_minibatches", run.learning_rate_policy.step_minibatches);
    read(entry, "power", run.learning_rate_policy.power);
    read(entry, "every", run.learning_rate_policy.every);
    entry.finish();
  }
  read(reader, "learning_rate_scaling", run.learning_rate_scaling);
  read(reader, "gradient_clipping_norm", run.gradient_clipping_norm);
  read(reader, "gradient_accumulation", run.gradient_accumulation);
  read(reader, "precision", run.precision);
  read(reader, "nan_guard", run.nan_guard);
  read(reader, "gradient_bucket_bytes", run.gradient_bucket_bytes);
  read(reader, "initial_weights", run.initial_weights);
  if (reader.has("checkpoint")) {
    JsonReader entry = reader.object("checkpoint");
    read(entry, "every_minibatches", run.checkpoint.every_minibatches);
    read(entry, "every_epochs", run.checkpoint.every_epochs);
    read(entry, "keep", run.checkpoint.keep);
    read(entry, "on_signal", run.checkpoint.on_signal);
    read(entry, "versions", run.checkpoint.versions);
    entry.finish();
  }
  read(reader, "no_save", run.no_save);
  read(reader, "resume", run.resume);
  read(reader, "seed", run.seed);
  read(reader, "device", run.device);
  read(reader, "cuda_graphs", run.cuda_graphs);
  read(reader, "threads", run.threads);
  read(reader, "transport", run.transport);
  read(reader, "timeout_seconds", run.timeout_seconds);
  read(reader, "start_timeout_seconds", run.start_timeout_seconds);
  read(reader, "trace_minibatches", run.trace_minibatches);
  read(reader, "output", run.output);
  return run;
}

Json Run::to_json() const {
  Json json;
  json["model"] = model;
  json["plan"] = plan;
  json["adapt"] = adapt;
  json["world_size"] = world_size;
  json["data"] = data;
  json["evaluation_data"] = evaluation_data;
  json["evaluate_every_minibatches"] = evaluate_every_minibatches;
  json["batch_size"] = batch_size;
  json["epochs"] = epochs;
  json["minibatches"] = minibatches;
  json["optimizer"] = {{"name", optimizer.name},
                       {"learning_rate", optimizer.learning_rate},
                       {"momentum", optimizer.momentum},
                       {"nesterov", optimizer.nesterov},
                       {"weight_decay", optimizer.weight_decay},
                       {"beta1", optimizer.beta1},
                       {"beta2", optimizer.beta2},
                       {"epsilon", optimizer.epsilon},
                       {"no_decay", optimizer.no_decay},
                       {"parameter_groups", Json::array()}};
  for (const ParameterGroup& group : optimizer.parameter_groups)
    json["optimizer"]["parameter_groups"].push_back(group.to_json());
  json["learning_rate_policy"] = {{"name", learning_rate_policy.name},
                                  {"warmup_minibatches", learning_rate_policy.warmup_minibatches},
                                  {"gamma", learning_rate_policy.gamma},
                                  {"step_epochs", learning_rate_policy.step_epochs},
                                  {"step_minibatches", learning_rate_policy.step_minibatches},
                                  {"power", learning_rate_policy.power},
                                  {"every", learning_rate_policy.every}};
  json["learning_rate_scaling"] = learning_rate_scaling;
  json["gradient_clipping_norm"] = gradient_clipping_norm;
  json["gradient_accumulation"] = gradient_accumulation;
  json["precision"] = precision;
  json["nan_guard"] = nan_guard;
  json["gradient_bucket_bytes"] = gradient_bucket_bytes;
  json["initial_weights"] = initial_weights;
  json["checkpoint"] = {{"every_minibatches", checkpoint.every_minibatches},
                        {"every_epochs", checkpoint.every_epochs},
                        {"keep", checkpoint.keep},
                        {"on_signal", checkpoint.on_signal},
                        {"versions", checkpoint.versions}};
  json["no_save"] = no_save;
  json["resume"] = resume;
  json["seed"] = seed;
  json["device"] = device;
  json["cuda_graphs"] = cuda_graphs;
  json["threads"] = threads;
  json["transport"] = transport;
  json["timeout_seconds"] = timeout_seconds;
  json["start_timeout_seconds"] = start_timeout_seconds;
  json["trace_minibatches"] = trace_minibatches;
  json["output"] = output;
  return json;
}

void Run::validate(const std::string& where) const {
  if (model.empty()) fail_document(where, "model", "empty; expected a model, such as \"mlp\"");
  if (data.empty()) fail_document(where, "data", "empty; expected a data set, such as \"fashion-mnist\"");
  if (adapt.empty()) fail_document(where, "adapt", "empty; expected a policy, such as \"none\"");
  check_range(where, "world_size", world_size, 0, kMostRanks);
  check_range(where, "batch_size", batch_size, 1, kMostCount);
  check_range(where, "epochs", epochs, 1, kMostCount);
  check_range(where, "minibatches", minibatches, 0, kMostCount);
  check_range(where, "evaluate_every_minibatches", evaluate_every_minibatches, 0, kMostCount);
  if (evaluate_every_minibatches > 0 && evaluation_data.empty()) {
    fail_document(where, "evaluate_every_minibatches", "there is nothing to evaluate",
                  "give --evaluation-data SPEC, or leave this key out");
  }

  check_name(where, "optimizer.name", optimizer.name, {"sgd", "adam", "adamw"});
  check_range(where, "optimizer.learning_rate", optimizer.learning_rate, 0.0, 1e6);
  check_range(where, "optimizer.momentum", optimizer.momentum, 0.0, 1.0);
  check_range(where, "optimizer.weight_decay", optimizer.weight_decay, 0.0, 1e6);
  const double below_one = std::nextafter(1.0, 0.0);  // the bias correction divides by 1 - beta^t
  if (optimizer.beta1 == 1) fail_document(where, "optimizer.beta1", "1.0 is not below 1");
  if (optimizer.beta2 == 1) fail_document(where, "optimizer.beta2", "1.0 is not below 1");
  check_range(where, "optimizer.beta1", optimizer.beta1, 0.0, below_one);
  check_range(where, "optimizer.beta2", optimizer.beta2, 0.0, below_one);
  check_range(where, "optimizer.epsilon", optimizer.epsilon, 0.0, 1.0);
  validate_parameter_groups(optimizer, where);
  if (optimizer.nesterov && optimizer.momentum == 0) {
    fail_document(where, "optimizer.nesterov", "needs a momentum above 0");
  }

  check_name(where, "learning_rate_policy.name", learning_rate_policy.name,
             {"constant", "step", "polynomial", "exponential", "cosine"});
  check_range(where, "learning_rate_policy.warmup_minibatches", learning_rate_policy.warmup_minibatches, 0,
              kMostCount);
  check_range(where, "learning_rate_policy.gamma", learning_rate_policy.gamma, 0.0, 1e6);
  check_range(where, "learning_rate_policy.step_epochs", learning_rate_policy.step_epochs, 1e-9, 1e9);
  check_range(where, "learning_rate_policy.step_minibatches", learning_rate_policy.step_minibatches, 0,
              kMostCount);
  check_range(where, "learning_rate_policy.power", learning_rate_policy.power, 0.0, 1e3);
  check_name(where, "learning_rate_policy.every", learning_rate_policy.every, {"minibatch", "epoch"});
  check_name(where, "learning_rate_scaling", learning_rate_scaling, {"none", "pipedream"});

  check_range(where, "gradient_clipping_norm", gradient_clipping_norm, 0.0, 1e12);
  check_range(where, "gradient_accumulation", gradient_accumulation, 1, kMostCount);
  check_name(where, "precision", precision, {"float32", "bfloat16"});
  check_name(where, "transport", transport, {"auto", "gloo", "nccl", "shm"});
  check_range(where, "gradient_bucket_bytes", gradient_bucket_bytes, 1, kMostBytes);
  check_range(where, "checkpoint.every_minibatches", checkpoint.every_minibatches, 0, kMostCount);
  check_range(where, "checkpoint.every_epochs", checkpoint.every_epochs, 0, kMostCount);
  check_range(where, "checkpoint.keep", checkpoint.keep, 1, kMostCount);
  check_name(where, "checkpoint.versions", checkpoint.versions, {"exact", "latest"});

  check_range(where, "seed", seed, 0, kMaxInt);
  device_name(device, where + ": device");
  check_range(where, "threads", threads, 1, int64_t{4096});
  check_range(where, "timeout_seconds", timeout_seconds, 1e-3, kMostSeconds);
  check_range(where, "start_timeout_seconds", start_timeout_seconds, 1e-3, kMostSeconds);
  check_range(where, "trace_minibatches", trace_minibatches, 0, kMostCount);
  if (output.empty()) fail_document(where, "output", "empty; expected a folder");
}

}  // namespace pipewright
