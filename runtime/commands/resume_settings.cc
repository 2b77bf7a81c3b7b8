#include "runtime/commands/resume_settings.h"

#include "graph/document.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/run_folder.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

// A run's keys that a checkpoint does not pass on.
constexpr const char* kOfTheStart[] = {"plan",
                                       "emulate",
                                       "adapt",
                                       "world_size",
                                       "initial_weights",
                                       "resume",
                                       "device",
                                       "cuda_graphs",
                                       "threads",
                                       "data_workers",
                                       "transport",
                                       "timeout_seconds",
                                       "start_timeout_seconds",
                                       "gradient_bucket_bytes",
                                       "trace_minibatches",
                                       "recovery",
                                       "output"};

// Which checkpoint the options mean; of the rest they need say nothing yet.
std::optional<Checkpoint> checkpoint_of(const po::variables_map& options) {
  Run any;
  any.model = any.data = "none";
  return find_resume(run_from_options(options, any), /*every_byte=*/false);
}

}  // namespace

std::string ResumedRun::taken(const po::variables_map& options) const {
  std::string text;
  if (!base) return text;
  for (const Setting& setting : settings_of(options, run, base)) {
    if (setting.source != base->from) continue;
    const Json value = parse_json(setting.value, setting.name);
    text += (text.empty() ? "--" : ", --") + setting.name + " " +
            (value.is_string() ? value.get<std::string>() : setting.value);
  }
  return text;
}

void adopt_before_resume(const po::variables_map& options, const OnHost& on_host) {
  Run any;
  any.model = any.data = "none";
  const Run run = run_from_options(options, any);
  if (run.resume == "latest") adopt_kept_state(run.output, on_host);
}

ResumedRun resumed_run(const po::variables_map& options) {
  if (!is_said(options, "resume")) return {run_from_options(options), {}};
  const std::optional<Checkpoint> checkpoint = checkpoint_of(options);
  if (!checkpoint) return {run_from_options(options), {}};
  Json json = checkpoint->manifest.run.to_json();
  const Json defaults = Run{}.to_json();
  for (const char* key : kOfTheStart) {
    json.erase(key);
    if (defaults.contains(key)) json[key] = defaults.at(key);
  }
  json["schema"] = Run::kSchema;  // a manifest holds its run without
  const std::string from = "checkpoint " + checkpoint->folder.string();
  RunBase base{parse_document<Run>(json.dump(), from), from};
  if (is_said(options, "epochs")) base.run.minibatches = 0;
  if (is_said(options, "step-epochs")) base.run.learning_rate_policy.step_minibatches = 0;
  return {run_from_options(options, base.run), base};
}

}  // namespace pipewright
