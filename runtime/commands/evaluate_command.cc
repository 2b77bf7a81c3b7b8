#include "runtime/commands/evaluate_command.h"

#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/regular_file.h"
#include "models/device/device.h"
#include "runtime/checkpoint/model_file.h"
#include "runtime/commands/launch_options.h"
#include "runtime/commands/run_options.h"
#include "runtime/control/control.h"
#include "runtime/evaluate/evaluate.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

void print(const EvaluationResult& evaluation, const PredictionFiles& files, bool json) {
  if (json) {
    std::cout << json_text(Json{{"loss", finite_or_null(evaluation.loss)},
                                {"top1", finite_or_null(evaluation.top1)},
                                {"top5", finite_or_null(evaluation.top5)},
                                {"perplexity", finite_or_null(evaluation.perplexity)},
                                {"bleu", finite_or_null(evaluation.bleu)},
                                {"exact_match", finite_or_null(evaluation.exact_match)},
                                {"f1", finite_or_null(evaluation.f1)},
                                {"samples", evaluation.samples}});
    return;
  }
  std::cout << "evaluation loss " << evaluation.loss;
  if (!std::isnan(evaluation.top1)) std::cout << ", top-1 " << 100 * evaluation.top1 << " %";
  if (!std::isnan(evaluation.top5)) std::cout << ", top-5 " << 100 * evaluation.top5 << " %";
  if (!std::isnan(evaluation.perplexity)) std::cout << ", perplexity " << evaluation.perplexity;
  if (!std::isnan(evaluation.bleu)) std::cout << ", BLEU " << 100 * evaluation.bleu;
  std::cout << evaluation.answers_text() << ", " << evaluation.samples << " samples\n";
  for (const std::string& file : {files.scores, files.classes})
    if (!file.empty()) std::cout << "predictions: " << file << "\n";
}

// A checkpoint says itself what model it is of, and under which plan it was trained.
Run run_of(const po::variables_map& options, const fs::path& folder) {
  if (options.count("config")) return run_from_options(options);
  if (options.count("model")) {
    if (options.count("data") || !options.count("evaluation-data")) return run_from_options(options);
    Run base;
    base.data = options["evaluation-data"].as<std::string>();  // a run has some; nothing is read from it
    return run_from_options(options, base);
  }
  if (!options.count("resume")) return run_from_options(options);
  Run asked;
  asked.model = asked.data = "none";  // which checkpoint is all that is asked of it
  asked = run_from_options(options, asked);
  const auto checkpoint = find_resume(asked, /*every_byte=*/false);
  const fs::path run_folder = asked.output;
  // Final weights are of the run in their folder.
  const bool final_weights = file_exists(run_folder / kModelFileName) && file_exists(run_folder / "run.json");
  if (!checkpoint && !final_weights) fail_without_checkpoint(run_folder);
  Run run = run_from_options(
      options, checkpoint ? checkpoint->manifest.run : read_document<Run>(run_folder / "run.json"));
  run.output = run_folder;
  if (!options.count("plan")) {
    run.plan = folder / "checkpoint-plan.json";
    write_document(run.plan,
                   checkpoint ? checkpoint->manifest.plan : read_document<Plan>(run_folder / "plan.json"));
  }
  return run;
}

// What --resume says by its full name, as ranks run elsewhere. "latest" is what the run folder has that was
// trained longest: a checkpoint, or the final weights.
void name_weights(Run& run, bool every_byte) {
  const fs::path final_model = fs::path(run.output) / kModelFileName;
  const auto trained = run.resume == "latest" ? minibatches_of_model_file(final_model) : std::nullopt;
  const bool no_checkpoint = trained && list_checkpoints(run.output).empty();
  const auto resume = no_checkpoint ? std::nullopt : find_resume(run, every_byte);
  if (trained && (!resume || *trained > resume->manifest.next_minibatch)) {
    run.resume.clear();
    run.initial_weights = fs::absolute(final_model);
  } else if (resume) {
    run.resume = fs::absolute(resume->folder);
  } else if (run.resume == "latest") {
    fail_without_checkpoint(run.output);
  }
}

void run_forward(const std::string& command, const po::variables_map& options, const PredictionFiles& files) {
  const Place place = find_place(place_options(options));
  const bool alone = place.world_size == 1 && !place.store_is_served;
  std::unique_ptr<ScratchFolder> scratch;
  if (alone || !options.count("config")) scratch = std::make_unique<ScratchFolder>(command);
  Run run = run_of(options, scratch ? scratch->path() : fs::path());
  run.emulate = false;  // how it was trained
  name_weights(run, /*every_byte=*/alone || place.rank == 0);
  const bool json = options["json"].as<bool>();
  if (alone && !options.count("output")) run.output = scratch->path();
  const Job job = prepare_evaluation(run, alone ? ranks_from(options) : place.world_size,
                                     open_device(run.device, "device", place.local_rank));
  check_predictions(job.model.graph, files);
  install_signal_handlers();
  if (job.plan.world_size == place.world_size) {
    const EvaluationResult evaluation = evaluate(job, place, files);
    if (place.rank == 0) print(evaluation, files, json);
    return;
  }

  LaunchSettings settings = launch_settings_from(options);
  if (!settings.hosts.empty() && !options.count("output"))
    throw InputError(command + " --hosts: --output is missing", "give a folder that all hosts share");
  fs::create_directories(run.output);
  const fs::path document = fs::path(run.output) / (command + ".json");
  write_document(document, run);
  settings.command = command;
  settings.arguments = {"--config", document.string()};
  if (!files.scores.empty())
    settings.arguments.insert(settings.arguments.end(), {"--predictions", files.scores});
  if (!files.classes.empty())
    settings.arguments.insert(settings.arguments.end(), {"--classes", files.classes});
  if (json) settings.arguments.emplace_back("--json");
  launch(job, settings);
}

po::options_description descriptions() {
  po::options_description description;
  description.add(run_option_descriptions()).add(launch_option_descriptions());
  description.add_options()("rank", po::value<int64_t>()->value_name("R"), "this process is one rank")(
      "world-size", po::value<int64_t>()->value_name("N"), "how many there are")(
      "master-port", po::value<int64_t>()->value_name("P"), "port on which rank 0 is met")(
      "json", po::bool_switch(), "print the result as JSON");
  return description;
}

}  // namespace

void run_evaluate(const std::vector<std::string>& arguments) {
  const auto options = parse_options(
      arguments, descriptions(),
      {"pipewright-runtime evaluate --config runs/a/run.json --resume latest [--evaluation-data SPEC]\n"
       "       pipewright-runtime evaluate --resume CHECKPOINT [--plan FILE] [--evaluation-data SPEC]",
       "pipewright-runtime evaluate --resume runs/two/checkpoints/minibatch-20 --evaluation-data "
       "synthetic-images:image=28",
       {"resume", "config", "plan", "evaluation-data", "batch-size"}});
  run_forward("evaluate", options, {});
}

void run_predict(const std::vector<std::string>& arguments) {
  po::options_description description = descriptions();
  description.add_options()("predictions", po::value<std::string>()->value_name("FILE"),
                            "scores of every sample: a .safetensors file")(
      "classes", po::value<std::string>()->value_name("FILE"),
      "the best class of every sample: a .jsonl file, a line each");
  const auto options = parse_options(arguments, description,
                                     {"pipewright-runtime predict --resume CHECKPOINT --predictions "
                                      "FILE.safetensors [--evaluation-data SPEC]",
                                      "pipewright-runtime predict --resume runs/two/checkpoints/minibatch-20 "
                                      "--evaluation-data synthetic-images:image=28 --classes classes.jsonl",
                                      {"resume", "evaluation-data", "predictions", "classes", "batch-size"}});
  PredictionFiles files;
  if (options.count("predictions")) files.scores = options["predictions"].as<std::string>();
  if (options.count("classes")) files.classes = options["classes"].as<std::string>();
  if (!files.any()) {
    throw InputError("predict: neither --predictions nor --classes is given",
                     "pipewright-runtime predict --resume CHECKPOINT --predictions scores.safetensors");
  }
  run_forward("predict", options, files);
}

}  // namespace pipewright
