#include "runtime/commands/verify_command.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "graph/command_line.h"
#include "graph/device_name.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/regular_file.h"
#include "graph/verified.h"
#include "pages/page.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/commands/launch_options.h"
#include "runtime/commands/resume_settings.h"
#include "runtime/commands/run_options.h"
#include "runtime/commands/run_page.h"
#include "runtime/commands/verify_page.h"
#include "runtime/generation/training_data.h"
#include "runtime/train/run_results.h"
#include "runtime/verify/retraining.h"
#include "runtime/verify/verify.h"
#include "runtime/verify/verify_report.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

void demand_processor(const Run& run) {
  if (!device_name(run.device, "device").cuda) return;
  throw InputError(
      "verify compares bits, and the sums of device '" + run.device + "' have an order of their own",
      "Give --device cpu. What a device trains is compared with the CPU by scripts/check_gpu.");
}

constexpr int64_t kMinibatches = 32;
CommandHelp verify_help() {
  return {
      "pipewright-runtime verify --config run.json [options]\n"
      "       pipewright-runtime verify --run FOLDER [--resume CHECKPOINT] [--against FILE ...]",
      "pipewright-runtime verify --run runs/two",
      {"run", "model", "plan", "data", "minibatches", "against", "report"}};
}

using Paths = std::vector<std::string>;

double tolerance_from(const po::variables_map& options) {
  if (!options.count("tolerance")) return kTolerance;
  const auto tolerance = options["tolerance"].as<double>();
  if (!(tolerance >= 0))
    throw InputError("--tolerance " + std::to_string(tolerance) + ": expected 0 or more");
  return tolerance;
}

Paths against_from(const po::variables_map& options) {
  return options.count("against") ? options["against"].as<Paths>() : Paths();
}

void report(const Verification& verification, const Plan& plan, const fs::path& folder,
            const po::variables_map& options) {
  const bool json = options["json"].as<bool>();
  if (json) {
    std::cout << json_text(verification_json(verification));
  } else {
    std::cout << verification_table(verification, plan, output_width(options));
  }
  std::cout << std::flush;
  const std::string equal = std::string("the ranks have computed what one process computes") +
                            (verification.against ? ", and the other training has" : "") + "\n";
  const auto page = [&](const std::string& verdict) {
    if (options.count("report"))
      write_page(options["report"].as<std::string>(), verify_page(verification, plan, folder, verdict));
  };
  try {
    demand(verification, folder);
  } catch (const NumericalError& error) {
    page(error.what() + ("\n" + error.remedy()));
    throw;
  }
  if (!json) std::cout << equal;
  page(equal);
}

// Trains as the run says, but for a short while.
void verify_new_run(const po::variables_map& options) {
  Run run = resumed_run(options).run;
  const double tolerance = tolerance_from(options);
  if (const auto resume = find_resume(run, /*every_byte=*/true)) run.resume = fs::absolute(resume->folder);
  std::optional<ScratchFolder> scratch;
  LaunchSettings settings = launch_settings_from(options);
  if (!options.count("output")) {
    if (!settings.hosts.empty())
      throw InputError("verify --hosts: --output is missing", "give a new folder that all hosts share");
    scratch.emplace("verify");
    run.output = scratch->path();
  }
  // Changes nothing, and takes its time; but for evaluations within epochs, where the pipeline drains.
  if (run.evaluate_every_minibatches == 0) run.evaluation_data.clear();
  run.trace_minibatches = 0;
  run.no_save = true;
  demand_processor(run);
  Job job = prepare_job(run, ranks_from(options));
  if (!options.count("minibatches")) {
    const TrainingData whole(job);
    const int64_t last_change = job.changes.empty() ? 0 : job.changes.back().minibatch;
    run.minibatches =
        std::min(whole.length().minibatches, std::max(whole.first_minibatch(), last_change) + kMinibatches);
  }
  CheckpointSettings& checkpoint = run.checkpoint;
  // One at the end, which cuts no span.
  if (checkpoint.every_minibatches == 0 && checkpoint.every_epochs == 0) checkpoint.every_epochs = run.epochs;
  job.run = run;

  const fs::path folder = run.output;
  fs::create_directories(folder);
  const fs::path document = folder / "verify.json";
  write_document(document, run);
  settings.arguments = {"--config", document.string()};
  settings.results = false;
  launch(job, settings);

  if (job.decides && file_exists(folder / kChangesName)) {
    job.changes = changes_of_file(folder / kChangesName, "recorded");
    settle_changes(job);
  }
  const int64_t end = TrainingData(job).length().minibatches;
  const Checkpoint written = open_checkpoint(checkpoints_of(folder) / checkpoint_name(end));
  const Verification verification = verify(job, folder, written, tolerance, against_from(options));
  report(verification, job.plan_of(job.generation_at(end - 1)), folder, options);
}

std::string start_in(const fs::path& folder, const std::string& resume) {
  if (const std::optional<std::string> start = verified_from(folder, resume)) return *start;
  const bool is_there = resume == "latest" || file_exists(fs::path(resume) / kManifestName);
  throw InputError(
      folder.string() + ": the run went on from " +
          (resume == "latest" ? "a checkpoint of its own" : resume) +
          (is_there ? ", and no checkpoint that is there has nothing in flight, as verify begins with"
                    : ", which is not there (any more, or seen from here)"),
      "Of a run with --checkpoint-every-epochs 1 each has nothing in flight. One of its past that is "
      "elsewhere: --resume CHECKPOINT.");
}

// For the run's page. A folder that cannot be written to is verified all the same.
void remember(Verified verified, const fs::path& folder, const std::vector<std::string>& arguments) {
  verified.program = "Pipewright " + pipewright_version() + " and LibTorch " PIPEWRIGHT_TORCH_VERSION;
  verified.command = "pipewright-runtime verify " + join(arguments, " ");
  try {
    write_document(folder / kVerifiedName, verified);
  } catch (const RunError& error) {
    std::cerr << "note: " << error.what() << "; the run's page will not know that it was verified\n";
  }
}

void verify_finished_run(const fs::path& folder, const std::vector<std::string>& arguments,
                         const po::options_description& description) {
  for (const char* file : {"run.json", "plan.json"}) {
    if (!file_exists(folder / file))
      throw InputError(folder.string() + ": is no run folder: it has no " + file);
  }
  std::vector<std::string> words = arguments;
  words.insert(words.end(),
               {"--config", (folder / "run.json").string(), "--plan", (folder / "plan.json").string()});
  if (file_exists(folder / kChangesName)) {
    const auto policy = make_adapt_policy(read_document<Run>(folder / "run.json").adapt);
    words.insert(words.end(),
                 {"--adapt", "manual:file=" + (folder / kChangesName).string() +
                                 ",drain-every=" + std::to_string(policy->decides_every().value_or(0))});
  }
  const po::variables_map options = parse_options(words, description, verify_help());
  const auto checkpoints = list_checkpoints(folder);
  if (checkpoints.empty()) {
    throw InputError(folder.string() + ": has no checkpoint to compare with",
                     "Train with --checkpoint-every-epochs 1, or verify the plan without --run.");
  }
  Run run = run_from_options(options);
  run.output = folder;
  if (!options.count("resume")) run.resume = start_in(folder, run.resume);
  Checkpoint end = open_checkpoint(checkpoints.front());
  verify_checkpoint(end);
  find_resume(run, /*every_byte=*/true);
  demand_processor(run);
  const Job job = prepare_job(run, std::nullopt);
  const int64_t last = end.manifest.next_minibatch - 1;
  Verified verified;
  verified.minibatches = end.manifest.next_minibatch;
  try {
    if (file_exists(folder / "summary.json"))
      demand_equal_replicas(read_document<Summary>(folder / "summary.json"));
    const Verification verification =
        verify(job, folder, end, tolerance_from(options), against_from(options));
    verified.first_minibatch = verification.minibatches.first;
    verified.minibatches = verification.minibatches.count;
    verified.tensors = static_cast<int64_t>(verification.places.size());
    report(verification, job.plan_of(job.generation_at(last)), folder, options);
  } catch (const NumericalError& error) {
    verified.difference = error.what();
    remember(verified, folder, arguments);  // what was equal once may not be now
    throw;
  }
  remember(verified, folder, arguments);
}

}  // namespace

void run_verify(const std::vector<std::string>& arguments) {
  po::options_description description;
  description.add(run_option_descriptions()).add(launch_option_descriptions());
  description.add_options()("run", po::value<std::string>()->value_name("FOLDER"),
                            "compare what a finished run left, up to its last checkpoint")(
      "against", po::value<Paths>()->value_name("PATH")->composing(),
      "compare with another program's training of the same: losses (a list in .json, or metrics.jsonl), "
      "weights "
      "(.safetensors), or a folder of these; may be given several times")(
      "tolerance", po::value<double>()->value_name("X"),
      "distance that is allowed from one device's weights, or the other's, as a part of the way; 0.001 by "
      "default")("json", po::bool_switch(), "print the result as JSON")(
      "report", po::value<std::string>()->value_name("FILE"),
      "file.html: a page, also of a run that is not equal; default: none");
  add_wide_option(&description);
  const auto options = parse_options(arguments, description, verify_help());
  if (options.count("report"))
    check_page_place(options["report"].as<std::string>(),
                     options.count("output") ? options["output"].as<std::string>() : ".");
  if (!options.count("run")) return verify_new_run(options);
  for (const char* name : {"config", "plan", "adapt", "output", "ranks", "hosts", "minibatches", "epochs"}) {
    if (options.count(name))
      throw InputError(std::string("--") + name + " does not go with --run: the folder says it");
  }
  verify_finished_run(options["run"].as<std::string>(), arguments, description);
}

}  // namespace pipewright
