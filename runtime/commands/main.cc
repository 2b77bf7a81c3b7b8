// pipewright-runtime: trains a partitioned model, one process per rank.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/file_watch.h"
#include "graph/plan_as_run.h"
#include "graph/rows.h"
#include "graph/summary.h"
#include "graph/transport_rules.h"
#include "graph/units.h"
#include "graph/update_rules.h"
#include "models/device/device.h"
#include "pages/page.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/commands/batches_command.h"
#include "runtime/commands/checkpoint_commands.h"
#include "runtime/commands/doctor_command.h"
#include "runtime/commands/evaluate_command.h"
#include "runtime/commands/join_command.h"
#include "runtime/commands/launch_options.h"
#include "runtime/commands/report_command.h"
#include "runtime/commands/resume_settings.h"
#include "runtime/commands/run_options.h"
#include "runtime/commands/run_page.h"
#include "runtime/commands/run_report.h"
#include "runtime/commands/verify_command.h"
#include "runtime/commands/watch_command.h"
#include "runtime/control/control.h"
#include "runtime/control/signals.h"
#include "runtime/job/attempt.h"
#include "runtime/job/recovery_policy.h"
#include "runtime/journal/plan_verdicts.h"
#include "runtime/journal/slowness.h"
#include "runtime/journal/throughput.h"
#include "runtime/launch/cores.h"
#include "runtime/launch/launch.h"
#include "runtime/launch/recovered_state.h"
#include "runtime/probe/probe.h"
#include "runtime/train/training.h"
#include "runtime/transport/open_files.h"
#include "runtime/watch/run_watch.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

void print_settings(const po::variables_map& options, const ResumedRun& resumed) {
  const std::vector<Setting> settings = settings_of(options, resumed.run, resumed.base);
  if (options["json"].as<bool>()) {
    std::cout << json_text(settings_json(settings));
    return;
  }
  for (const Setting& setting : settings) {
    std::cout << "--" << setting.name << "  " << setting.value << "  (" << setting.source << ")\n";
  }
}

void print_taken(const po::variables_map& options, const ResumedRun& resumed) {
  const std::string taken = resumed.taken(options);
  if (!taken.empty()) std::cerr << "as in the " << resumed.base->from << ": " << taken << "\n";
}

// Measured: docs/semantics.md#precision.
void warn_of_bfloat16(const Run& run) {
  if (run.device != "cpu" || run.precision != "bfloat16") return;
  std::cerr
      << "warning: on a CPU most models train slower in bfloat16 than in float32, some several times: it "
         "is for GPUs, or to see what they will compute\n";
}

// A plan that was made for an optimizer that keeps less needs more memory than it says.
void warn_of_optimizer_memory(const Job& job) {
  if (!job.plan.predicted || job.plan.frozen_layers > 0) return;
  double weights = 0, counted = 0;
  for (const Parameter& parameter : job.model.graph.parameters)
    if (parameter.trainable) weights += static_cast<double>(parameter.type.bytes());
  for (const StagePrediction& stage : job.plan.predicted->stages)
    counted += static_cast<double>(stage.memory.optimizer_bytes);
  const size_t slots = slot_names(job.run.optimizer).size();
  if (!(weights > 0) || counted >= (static_cast<double>(slots) - 0.5) * weights) return;
  const std::string& correction = job.run.optimizer.delay_correction;
  std::cerr << "warning: " << job.run.optimizer.name << (correction == "none" ? "" : " with " + correction)
            << " keeps " << slots << (slots == 1 ? " value" : " values") << " for each parameter, "
            << format_bytes(static_cast<double>(slots) * weights) << "; the plan's memory counts "
            << format_bytes(counted) << ": plan with pipewright-optimizer --optimizer "
            << job.run.optimizer.name << (correction == "none" ? "" : " --delay-correction " + correction)
            << "\n";
}

void warn_of_crowding(int64_t ranks, const Job& job) {
  if (job.run.device != "cpu") return;
  const std::string text = crowding_text(ranks, job.run.threads, host_cores(), job.plan);
  if (!text.empty()) std::cerr << "warning: " << text << "\n";
}

// `ranks`: on this host; 0: not known.
void tell_before_training(int64_t ranks, const Job& job) {
  if (!job.run.plan.empty())
    if (const std::string text = outdated_text(job.run.plan); !text.empty())
      std::cerr << "note: " << text << "\n";
  const std::string buffers = own_buffers_text(job);
  if (!buffers.empty()) std::cerr << "warning: " << buffers << "\n";
  const std::string loss = loss_average_text(job);
  if (!loss.empty()) std::cerr << loss << "\n";
  warn_of_crowding(ranks, job);
  warn_of_bfloat16(job.run);
  warn_of_optimizer_memory(job);
}

void print_summary(const std::string& folder, bool json) {
  const auto summary = read_document<Summary>(folder + "/summary.json");
  if (json) {
    std::cout << document_text(summary);
    return;
  }
  std::cout << trained_text(summary) << " in " << format_seconds(summary.wall_seconds);
  if (const double speed = samples_over_wall_time(summary); speed > 0)
    std::cout << " (" << std::llround(speed) << " samples/s)";
  if (summary.minibatch_seconds > 0) {
    std::cout << ", steady " << format_seconds(summary.minibatch_seconds) << " a minibatch";
    if (summary.predicted_minibatch_seconds > 0)
      std::cout << " (predicted " << format_seconds(summary.predicted_minibatch_seconds) << ")";
  }
  if (summary.minibatches > 0) std::cout << ", loss of the last epoch " << summary.train_loss;
  if (summary.evaluation) {
    std::cout << ", evaluation loss " << summary.evaluation->loss;
    if (summary.evaluation->top1 == summary.evaluation->top1) {
      std::cout << ", top-1 " << 100 * summary.evaluation->top1 << " %";
    }
    if (summary.evaluation->top5 == summary.evaluation->top5) {
      std::cout << ", top-5 " << 100 * summary.evaluation->top5 << " %";
    }
  }
  const std::string how_true = how_true_text(summary, last_plan_of(folder, summary));
  if (!how_true.empty()) std::cout << "\n" << how_true;
  for (const std::string& verdict : plan_verdicts(summary)) std::cout << "\n" << verdict;
  std::cout << "\nrun folder: " << folder << "\n";
}

// A run that was trained without a plan by so many ranks is another one with more or fewer.
void demand_recorded_world(const Run& run, const Place& place, const std::string& document) {
  if (!run.plan.empty() || run.world_size == 0 || run.world_size == place.world_size || place.launched)
    return;
  const std::string ranks = std::to_string(run.world_size);
  throw PlanError(document + ": world_size: the run is one of " + ranks +
                      " ranks without a plan, the world has " + std::to_string(place.world_size),
                  "start " + ranks +
                      " ranks (pipewright-runtime launch does by itself), or take world_size out of " +
                      document + " for another run");
}

// Somebody must start the ranks anew.
void demand_launcher(const Run& run, const Place& place) {
  if (on_loss_of(run) == OnLoss::kEnd) return;
  throw InputError(
      "--on-loss " + run.recovery.on_loss + ": these ranks were started by " + place.source,
      "It needs pipewright-runtime launch, which starts ranks anew. With others give --on-loss end "
      "and checkpoints, and start the ranks anew with --resume latest.");
}

void run_train(const std::vector<std::string>& arguments) {
  po::options_description description;
  description.add(run_option_descriptions()).add(place_option_descriptions());
  description.add_options()("print-config", po::bool_switch(),
                            "print every setting and where it came from; then stop")(
      "json", po::bool_switch(), "print the summary, or the settings, as JSON")(
      "overwrite", po::bool_switch(),
      "remove what an earlier run left in the run folder; default: set it aside")(
      "emulate", po::value<std::string>()->value_name("PLAN"),
      "train in this process, on its one device, exactly what the ranks of the plan would");
  const auto options = parse_options(
      arguments, description,
      {"pipewright-runtime train --config run.json [options]",
       "pipewright-runtime train --model convnet --data synthetic-images:image=28 --minibatches 20 --output "
       "runs/one",
       {"model", "plan", "data", "batch-size", "epochs", "optimizer", "learning-rate", "output"}});
  if (options["print-config"].as<bool>()) return print_settings(options, resumed_run(options));
  const Place place = find_place(place_options(options));
  if (!place.launched && place.rank == 0) adopt_before_resume(options);
  const ResumedRun resumed = resumed_run(options);
  const Run& run = resumed.run;
  demand_recorded_world(run, place,
                        options.count("config") ? options["config"].as<std::string>() : "options");
  if (!place.launched && place.rank == 0) {  // else launch has
    find_resume(run, /*every_byte=*/true);
    print_taken(options, resumed);
  }
  if (!place.launched) demand_launcher(run, place);
  std::optional<Attempt> attempt = place.launched ? read_attempt(run.output) : std::nullopt;
  if (attempt && attempt->began) attempt->state = recovered_state(run, place);
  Job job = prepare_job(run, place.world_size, open_device(run.device, "device", place.local_rank), attempt);
  job.overwrite = options["overwrite"].as<bool>();
  if (!place.launched && place.rank == 0) tell_before_training(place.local_ranks, job);
  install_signal_handlers();
  train(job, place);
  if (place.rank == 0) print_summary(run.output, options["json"].as<bool>());
}

// In a terminal what rank 0 says stands above what is seen of the run, and its results behind it.
void launch_watched(const Job& job, LaunchSettings settings, bool json) {
  RunWatch watch(job.run.output);
  settings.often = [&watch] { watch.look(); };
  if (watch.on_terminal()) {
    settings.show = [&watch](std::string_view text) { watch.print_above(text); };
    settings.results = false;
  }
  try {
    launch(job, settings);
  } catch (const Error&) {
    if (watch.has_shown()) watch.finish();  // else what is there may be an earlier run's
    throw;
  }
  watch.finish();
  if (watch.on_terminal()) print_summary(job.run.output, json);
}

// When the run in the folder has ended; nothing where none has.
std::optional<std::filesystem::file_time_type> time_of_summary(const std::filesystem::path& run_folder) {
  const std::filesystem::path file = run_folder / "summary.json";
  const FileWatch watch(file);
  std::error_code error;
  const auto time = std::filesystem::last_write_time(file, error);
  return error ? std::nullopt : std::optional(time);
}

void run_launch(const std::vector<std::string>& arguments) {
  po::options_description description;
  description.add(run_option_descriptions()).add(launch_option_descriptions());
  description.add_options()("print-config", po::bool_switch(),
                            "print every setting and where it came from; then stop")(
      "json", po::bool_switch(), "print the summary, or the settings, as JSON")(
      "overwrite", po::bool_switch(),
      "remove what an earlier run left in the run folder; default: set it aside")(
      "watch", po::bool_switch(),
      "show what the ranks do, as pipewright-runtime watch; default: the progress of rank 0")(
      "report", po::value<std::string>()->value_name("FILE"),
      "file.html: the run's page, as pipewright-runtime report; default: none");
  const auto options = parse_options(
      arguments, description,
      {"pipewright-runtime launch --config run.json [options]",
       "pipewright-runtime launch --model convnet --plan plans/gpus=2.json --data synthetic-images:image=28 "
       "--minibatches 20 --checkpoint-every-epochs 1 --output runs/two",
       {"model", "plan", "data", "batch-size", "epochs", "optimizer", "learning-rate", "output", "watch",
        "report"}});
  if (options["print-config"].as<bool>()) return print_settings(options, resumed_run(options));
  adopt_before_resume(options, on_host_of(launch_settings_from(options)));
  const ResumedRun resumed = resumed_run(options);
  const Run& run = resumed.run;
  if (options.count("report")) check_page_place(options["report"].as<std::string>(), run.output);
  find_resume(run, /*every_byte=*/true);  // a damaged checkpoint is refused before anything starts
  print_taken(options, resumed);
  Job job = prepare_job(run, ranks_from(options));
  job.overwrite = options["overwrite"].as<bool>();
  tell_before_training(launch_settings_from(options).hosts.empty() ? job.world_size() : 0, job);
  // Ranks of other hosts have devices of their own.
  if (launch_settings_from(options).hosts.empty()) open_device(run.device, "device");

  LaunchSettings settings = launch_settings_from(options);
  settings.arguments = without_launch_options(arguments);
  const bool reports = options.count("report") > 0;
  const auto earlier = reports ? time_of_summary(run.output) : std::nullopt;
  const auto report = [&] {
    const auto file = options["report"].as<std::string>();
    write_page(file, run_page({finished_run(run.output)}, std::nullopt, file));
  };
  try {
    if (options["watch"].as<bool>())
      launch_watched(job, settings, options["json"].as<bool>());
    else
      launch(job, settings);
  } catch (const Error& failed) {
    try {
      if (reports && time_of_summary(run.output) != earlier)
        report();
      else if (reports && failed.code() == ExitCode::kPeerLost)  // what is there is an earlier run's
        std::cerr << "warning: --report: no page, for the run ended without a summary: rank 0 writes it\n";
    } catch (const Error& error) {
      std::cerr << "warning: --report: " << error.what() << "\n";
    }
    throw;
  }
  if (reports) report();
}

// What is measured is tensors of the CPU.
std::vector<TransportFacts> probed_transports() {
  std::vector<TransportFacts> rows = transport_rules();
  std::erase_if(rows, [](const TransportFacts& row) { return row.needs_gpus(); });
  return rows;
}

// Started by a launcher: one rank. Otherwise starts all of them.
void run_probe(const std::vector<std::string>& arguments) {
  po::options_description description("Probe");
  description.add(launch_option_descriptions());
  description.add_options()("transport", po::value<std::string>()->default_value("auto"),
                            help_of(probed_transports()).c_str())(
      "output", po::value<std::string>()->default_value("topology.json"), "where the topology goes")(
      "start-timeout", po::value<std::string>()->default_value("5min"), "how long ranks wait for each other");
  const auto options =
      parse_options(arguments, description, "pipewright-runtime probe --ranks N [--output topology.json]");
  ProbeSettings settings;
  settings.transport = options["transport"].as<std::string>();
  settings.output = options["output"].as<std::string>();
  settings.start_timeout_seconds =
      parse_seconds(options["start-timeout"].as<std::string>(), "--start-timeout");
  row_named(probed_transports(), "--transport", settings.transport);
  const Place place = find_place({});
  install_signal_handlers();
  if (place.world_size > 1) return probe(place, settings);

  if (!options.count("ranks")) throw InputError("probe: --ranks is missing", "give --ranks N, at least 2");
  Job job;
  job.plan.world_size = *ranks_from(options, 2);
  const ScratchFolder folder("probe");
  job.run.output = folder.path();
  LaunchSettings launch_settings = launch_settings_from(options);
  launch_settings.command = "probe";
  launch_settings.arguments = without_launch_options(arguments);
  launch(job, launch_settings);
}

// LibTorch's libraries take tenths of a second before main() begins: this runs before their initialisers.
void before_libraries(int argc, char** argv, char**) {
  if (argc > 1 && std::strcmp(argv[1], "launch") == 0) say_when_ended_early("pipewright-runtime");
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const install_before_libraries)(int, char**, char**) = before_libraries;

std::string versions() {
  return "LibTorch " PIPEWRIGHT_TORCH_VERSION "\n" + join(cuda_versions(), "\n") + "\n";
}

}  // namespace
}  // namespace pipewright

int main(int argc, char** argv) {
  using namespace pipewright;
  take_cores_from_launcher();
  raise_open_file_limit();
  const int code = run_program(
      {"pipewright-runtime",
       "Trains a partitioned model, one process per rank.",
       "pipewright-runtime launch --model convnet --data fashion-mnist --plan gpus=4.json --epochs 1",
       {{"train", "one rank (default)", run_train},
        {"launch", "all ranks of a job", run_launch},
        {"evaluate", "the loss and the hits of trained weights, forward only", run_evaluate},
        {"predict", "the scores of every sample, into a file", run_predict},
        {"join", "places for further ranks, for a job that runs", run_join},
        {"verify", "a plan, or a finished run, against one process or another program's training",
         run_verify},
        {"batches", "the minibatches of a run as a file, for another program", run_batches},
        {"doctor", "is this machine, are these hosts, ready for a job", run_doctor},
        {"probe", "measure the links between ranks, write topology.json", run_probe},
        {"watch", "what a run is doing, until it ends", run_watch_command},
        {"checkpoint", "inspect, merge or export one", run_checkpoint},
        {"report", "finished runs side by side, as tables or a page", run_report_command}},
       versions},
      argc, argv);
  std::cout.flush();
  std::cerr.flush();
  // After a failure threads of the transport may still wait for peers that are gone: nothing is left to be
  // saved, so we do not wait for them.
  if (code != 0) std::_Exit(code);
  return code;
}
