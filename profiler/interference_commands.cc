// pipewright-profiler interference, train-predictor, hog.
#include <sched.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdint>
#include <filesystem>
#include <iostream>

#include "graph/command_line.h"
#include "graph/device_name.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/units.h"
#include "interference/core_features.h"
#include "interference/hog_work.h"
#include "interference/hogs.h"
#include "interference/predictor.h"
#include "models/definition/variances.h"
#include "models/device/device.h"
#include "models/load.h"
#include "profiler/commands.h"
#include "profiler/gpu_hogs.h"
#include "profiler/interference.h"
#include "profiler/machine.h"
#include "profiler/measure.h"
#include "profiler/option_values.h"
#include "profiler/predictor_report.h"
#include "profiler/progress_line.h"
#include "profiler/synthetic_inputs.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

constexpr size_t kMostOtherCores = 7;  // that are kept busy, as other ranks do

bool is_for_gpu(const po::variables_map& options) {
  return device_name(options["device"].as<std::string>(), "--device").cuda;
}

// All of them where none are asked for.
std::vector<std::string> kinds_from(const po::variables_map& options) {
  const bool gpu = is_for_gpu(options);
  std::vector<std::string> kinds;
  if (!options.count("hogs")) {
    for (const HogKind& kind : hog_kinds()) kinds.emplace_back(kind.name);
    return gpu ? gpu_hog_kinds() : kinds;
  }
  const std::string list = options["hogs"].as<std::string>();
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    kinds.emplace_back(hog_kind(list.substr(begin, end - begin), "--hogs").name);
    if (gpu) check_gpu_hog(kinds.back(), "--hogs");
    begin = end + 1;
  }
  return kinds;
}

std::string core_list() {
  std::vector<std::string> cores;
  for (const int64_t core : cores_of_process()) cores.push_back(std::to_string(core));
  return join(cores, ", ");
}

// The last one unless another is wanted: the first has most of the host's own work.
int64_t core_from(const po::variables_map& options) {
  const std::vector<int64_t> cores = cores_of_process();
  if (!options.count("core")) {
    PW_CHECK(!cores.empty(), "a process without a core");
    return cores.back();
  }
  const int64_t core = options["core"].as<int64_t>();
  if (std::find(cores.begin(), cores.end(), core) == cores.end())
    throw InputError("--core: this process may not run on core " + std::to_string(core) + "; it may on " +
                     core_list());
  return core;
}

void bind_this_thread(int64_t core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0)
    throw RunError("interference: this process cannot be bound to core " + std::to_string(core));
}

po::options_description interference_options() {
  po::options_description description("Options");
  description.add_options()  //
      ("model", po::value<std::vector<std::string>>()->value_name("SPEC"),
       "model: NAME[:option=value,...]; may be given several times")                     //
      ("batch-size", po::value<int64_t>()->value_name("N"), "samples of one minibatch")  //
      ("device", po::value<std::string>()->default_value("cpu")->value_name("DEVICE"),
       "where it is measured, and what the hogs take: cpu (a core of it), cuda or cuda:K")  //
      ("core", po::value<int64_t>()->value_name("N"),
       "core on which it is measured; without: the last one that may be used")  //
      ("hogs", po::value<std::string>()->value_name("KINDS"),
       "kinds of hogs; without: matrix,copy,loopback, on a GPU matrix,copy")  //
      ("most", po::value<int64_t>()->default_value(3)->value_name("N"),
       "each kind with 1, 2, ... N processes")                                                          //
      ("repeats", po::value<int64_t>()->default_value(8)->value_name("N"), "windows for each of them")  //
      ("window", po::value<std::string>()->default_value("250ms")->value_name("TIME"),
       "length of a window, as of the samples while training")  //
      ("segments", po::value<int64_t>()->default_value(4)->value_name("N"),
       "parts of a model that are looked at on their own")  //
      ("seed", po::value<int64_t>()->default_value(1)->value_name("N"),
       "seed of weights, synthetic data and dropout")  //
      ("output", po::value<std::string>()->default_value("interference.jsonl")->value_name("FILE"),
       "the data set")  //
      ("print-config", po::bool_switch(), "print all settings and where they come from, and stop");
  return description;
}

InterferenceSettings interference_settings(const po::variables_map& options) {
  InterferenceSettings settings;
  settings.kinds = kinds_from(options);
  settings.most_processes = integer_option(options, "most", 1, HogOrder::kMostProcesses);
  settings.repeats = integer_option(options, "repeats", 1, 100000);
  settings.segments = integer_option(options, "segments", 1, 1000);
  settings.window_seconds = parse_seconds(options["window"].as<std::string>(), "--window");
  if (settings.window_seconds < 0.05)
    throw InputError("--window: got " + options["window"].as<std::string>() + ", expected 50ms or more",
                     "The host counts a core's time in steps of 10 ms.");
  settings.device = open_device(options["device"].as<std::string>(), "--device");
  settings.seed = static_cast<uint64_t>(integer_option(options, "seed", 0, INT64_MAX));
  settings.core = core_from(options);
  for (const int64_t core : cores_of_process())
    if (core != settings.core && settings.other_cores.size() < kMostOtherCores)
      settings.other_cores.push_back(core);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  settings.hog_command = [self](const HogOrder& order) {
    const bool core = order.device.empty();
    return std::vector<std::string>{self,
                                    "hog",
                                    "--kind",
                                    order.kind,
                                    "--processes",
                                    std::to_string(order.processes),
                                    core ? "--core" : "--device",
                                    core ? std::to_string(order.core) : order.device};
  };
  return settings;
}

InterferenceData measure_model(const std::string& spec, int64_t batch_size, InterferenceSettings settings) {
  ProgressLine line;
  line.show("preparing " + spec);
  const Model model = load_model(spec, batch_size);
  check_variances(model.graph);
  const auto inputs = synthetic_inputs(model.graph, settings.seed);
  MeasureOptions measuring;
  measuring.batch_size = batch_size;
  measuring.device = settings.device;
  measuring.seed = settings.seed;
  measuring.repeats = 3;
  const Profile profile = measure(model, inputs, measuring);
  settings.progress = [&](double done, double left) { line.show("measuring " + spec, done, left); };
  return measure_interference(model, inputs, profile, settings);
}

void add_rows(const InterferenceData& more, const std::string& where, InterferenceData* data) {
  if (data->features.empty()) data->features = more.features;
  if (data->features != more.features)
    throw InputError(where + ": its features are others: " + join(more.features, ", ") + "; expected " +
                     join(data->features, ", "));
  if (data->provenance.empty()) data->provenance = more.provenance;
  data->rows.insert(data->rows.end(), more.rows.begin(), more.rows.end());
}

}  // namespace

void interference_command(const std::vector<std::string>& arguments) {
  const po::options_description description = interference_options();
  const auto options = parse_options(
      arguments, description,
      {"pipewright-profiler interference: a model on one core or GPU beside hogs that take it, window by\n"
       "window: what the host says of it, and how many times as long parts of the model took.",
       "pipewright-profiler interference --model vgg11:small=yes --batch-size 4 --output data.jsonl",
       {"model", "batch-size", "hogs", "device", "output"}});
  if (options["print-config"].as<bool>()) return print_config(options, description);
  if (!options.count("model"))
    throw InputError("option --model is missing", "The built-in models: pipewright-profiler models");
  if (!options.count("batch-size"))
    throw InputError("option --batch-size is missing", "Likely: --batch-size 4, as a rank will have.");
  const int64_t batch_size = integer_option(options, "batch-size", 1, 1 << 20);
  const InterferenceSettings settings = interference_settings(options);
  const std::string output = options["output"].as<std::string>();
  check_writable(output, "--output");
  bind_this_thread(settings.core);
  InterferenceData data;
  for (const std::string& spec : options["model"].as<std::vector<std::string>>())
    add_rows(measure_model(spec, batch_size, settings), spec, &data);
  data.provenance = {{"pipewright", PIPEWRIGHT_VERSION},
                     {"processor", processor_name()},
                     {"device", device_text(settings.device)},
                     {"date", utc_date()},
                     {"window", options["window"].as<std::string>()},
                     {"models", join(options["model"].as<std::vector<std::string>>(), " ")}};
  write_file(output, data.text());
  std::cout << data.rows.size() << " rows\nwritten: " << output << "\n";
}

void train_predictor_command(const std::vector<std::string>& arguments) {
  po::options_description description("Options");
  description.add_options()  //
      ("data", po::value<std::vector<std::string>>()->value_name("FILE"),
       "data set of pipewright-profiler interference, or DynPipe's; may be given several times")  //
      ("trees", po::value<int64_t>()->default_value(ForestSettings().trees)->value_name("N"),
       "trees of the forest")                                                                 //
      ("seed", po::value<int64_t>()->default_value(1)->value_name("N"), "seed of the trees")  //
      ("output", po::value<std::string>()->default_value("predictor.json")->value_name("FILE"),
       "the predictor")  //
      ("print-config", po::bool_switch(), "print all settings and where they come from, and stop");
  add_wide_option(&description);
  const auto options = parse_options(
      arguments, description,
      "pipewright-profiler train-predictor: a forest that predicts how many times as long work takes on a\n"
      "core; says how well it does on each kind of hogs when trained on the others.\n"
      "Example: pipewright-profiler train-predictor --data interference.jsonl --output predictor.json");
  if (options["print-config"].as<bool>()) return print_config(options, description);
  if (!options.count("data"))
    throw InputError("option --data is missing", "Next: pipewright-profiler interference makes a data set.");
  ForestSettings settings;
  settings.trees = integer_option(options, "trees", 1, ForestSettings::kMostTrees);
  settings.seed = static_cast<uint64_t>(integer_option(options, "seed", 0, INT32_MAX));
  const std::string output = options["output"].as<std::string>();
  check_writable(output, "--output");
  InterferenceData data;
  for (const std::string& file : options["data"].as<std::vector<std::string>>())
    add_rows(read_interference_data(file), file, &data);
  data = data.without(features_of_ranks_too(data.features));
  Predictor predictor = Predictor::train(data, settings);
  predictor.set_report(cross_validate(data, settings));
  write_document(output, predictor);
  std::cout << predictor_text(predictor, static_cast<int64_t>(data.rows.size()), output_width(options))
            << "\nwritten: " << output << "\n";
  for (const std::string& doubt : doubts_of(predictor))
    std::cerr << "pipewright-profiler: warning: " << doubt << "\n";
}

void hog_command(const std::vector<std::string>& arguments) {
  po::options_description description("Options");
  description.add_options()  //
      ("kind", po::value<std::string>()->default_value("matrix")->value_name("KIND"),
       "matrix, copy or loopback; of a GPU matrix or copy")  //
      ("device", po::value<std::string>()->default_value("cpu")->value_name("DEVICE"),
       "what it takes: cpu (a core of it), cuda or cuda:K")  //
      ("core", po::value<int64_t>()->value_name("N"),
       "the core that it takes; without: the last one that may be used")  //
      ("processes", po::value<int64_t>()->default_value(1)->value_name("N"), "so many of them");
  const auto options = parse_options(
      arguments, description,
      "pipewright-profiler hog: takes a core or a GPU, as another job on the host would, until\n"
      "Ctrl-C.\n"
      "Example: pipewright-profiler hog --kind copy --core 1 --processes 2");
  HogOrder order;
  order.kind = options["kind"].as<std::string>();
  order.processes = integer_option(options, "processes", 1, HogOrder::kMostProcesses);
  if (!is_for_gpu(options)) {
    order.core = core_from(options);
    return run_hogs(order);
  }
  order.device = options["device"].as<std::string>();
  check_gpu_hog(order.kind, "--kind");
  if (options.count("core"))
    throw InputError("--core: with --device " + order.device + " the hogs take the GPU, no core",
                     "Next: leave --core out.");
  // In each process for itself: see run_hogs().
  run_hogs(order, [&] { return gpu_hog_round(order.kind, open_device(order.device, "--device")); });
}

}  // namespace pipewright
