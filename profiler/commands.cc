#include "profiler/commands.h"

#include <algorithm>
#include <boost/program_options.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <limits>
#include <optional>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/graph.h"
#include "graph/json.h"
#include "graph/profile.h"
#include "graph/units.h"
#include "graph/update_rules.h"
#include "interference/core_features.h"
#include "models/definition/variances.h"
#include "models/device/device.h"
#include "models/load.h"
#include "models/run/autocast.h"
#include "models/run/device_passes.h"
#include "models/zoo/registry.h"
#include "pages/page.h"
#include "profiler/data_inputs.h"
#include "profiler/graph_listing.h"
#include "profiler/layers.h"
#include "profiler/measure.h"
#include "profiler/option_values.h"
#include "profiler/progress_line.h"
#include "profiler/repeats.h"
#include "profiler/report.h"
#include "profiler/synthetic_inputs.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;
namespace fs = std::filesystem;

constexpr const char* kModelRemedy = "The built-in models: pipewright-profiler models";

void warn(const std::string& what, const std::string& remedy) {
  std::cerr << "pipewright-profiler: warning: " << what << "\n  " << remedy << "\n";
}

std::string percent_text(const char* format, double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, format, 100 * fraction);
  return text;
}

/// Where the nodes of a part, or of the whole model, do not add up to it.
void warn_of_sum(const MeasuredPart& part, bool launches) {
  const double ratio = part.whole_seconds > 0 ? part.nodes_seconds / part.whole_seconds : 1;
  if (std::abs(ratio - 1) <= kTolerableDeviation) return;
  const std::string what = part.parts == 1 ? std::string("the whole model's")
                                           : "that of part " + std::to_string(part.number) + " of " +
                                                 std::to_string(part.parts) + " ('" + part.first_node +
                                                 "' to '" + part.last_node + "')";
  warn("the nodes' times add up to " + percent_text("%.0f %%", ratio) + " of " + what +
           ", measured in one piece; expected 100 % within 15",
       launches ? "Likely cause: launch-bound layers, which the look at each node delays. Next: a larger "
                  "--batch-size, or more --repeats."
                : "Likely cause: another program uses the CPU. Next: measure again when the machine is "
                  "quiet, or with more --repeats.");
}

/// What other programs did meanwhile, as far as it cannot be told apart.
void warn_of_load(const Profile& profile) {
  constexpr double kMuch = 0.2;  // cores: of less caches and memory hardly tell
  for (const auto& [key, value] : profile.provenance) {
    if (key != kOtherCoresEntry || std::stod(value) < kMuch) continue;
    warn("other programs used " + value + " cores while it was measured",
         profile.threads == 1
             ? "Waits for a core are not counted; what those programs took of caches and memory is in the "
               "times. Next: measure again when the machine is quiet, or combine profiles of several moments."
             : "With several --threads waits for a core cannot be told from computing, so the times may be "
               "too "
               "long. Next: measure again when the machine is quiet.");
  }
  const auto& crowd = profile.whole.crowd;
  if (crowd && !crowd->doubt().empty())
    warn("how much ranks of a host slow each other is not known well: " + crowd->doubt(),
         "Plans that use it will say so; --ignore-crowd of pipewright-optimizer plans without it. Next: "
         "measure "
         "again when the machine is quiet.");
}

/// On standard error: why the profile may not be what training will see.
void warn_of_doubts(const Profile& profile, const std::vector<MeasuredPart>& parts, bool exact_repeats) {
  for (const auto& [key, value] : profile.provenance) {
    if (key == "clocks" && value == kNotSettled)
      warn("the device's times have not settled while it was warmed up",
           "Likely cause: another program uses the device, or its clocks are cut for heat or power. Next: "
           "measure again, or with more --repeats.");
  }
  warn_of_load(profile);
  const std::optional<double> known = profile.whole.known_within;
  if (!exact_repeats && known.value_or(1) > RepeatRule().aim)
    warn("the sum of the nodes' times is known " +
             (known ? percent_text("within %.1f %%", *known) : "of too few repeats") + "; the aim is 1 %",
         "Likely cause: another program uses the machine, or a repeat takes seconds. Next: measure again "
         "when the machine is quiet, or with more --repeats.");
  for (const MeasuredPart& part : parts) warn_of_sum(part, profile.whole.forward_launch_seconds.has_value());
}

constexpr int64_t kMostSamples = 1 << 20;
constexpr int64_t kMostBeside = 7;  // unless more are asked for

po::options_description profile_options() {
  po::options_description description("Options");
  description.add_options()                                                                      //
      ("model", po::value<std::string>()->value_name("SPEC"), "model: NAME[:option=value,...]")  //
      ("batch-size", po::value<int64_t>()->value_name("N"), "samples of one minibatch")          //
      ("data", po::value<std::string>()->value_name("SPEC"),
       "data set whose minibatches are used and timed; without one, synthetic data")  //
      ("device", po::value<std::string>()->default_value("cpu")->value_name("DEVICE"),
       "where to measure: cpu, cuda or cuda:K")  //
      ("threads", po::value<int64_t>()->default_value(1)->value_name("N"),
       "threads that compute; as a rank will have")  //
      ("beside", po::value<int64_t>()->value_name("N"),
       "measure too what is slower while N others train the same model, as ranks of one host do; without: on "
       "a CPU "
       "as many as cores are left, at most 7; 0: not measured")  //
      ("memory", po::value<std::string>()->value_name("SIZE"),
       "most memory for tensors, 4GiB: a model that needs more is measured part by part; without: most of "
       "what the device has free")  //
      ("optimizer", po::value<std::string>()->default_value("sgd")->value_name("NAME"),
       "rule of the update that is measured: sgd stands for all but muon and adafactor")  //
      ("parameter-group", po::value<std::vector<std::string>>()->value_name("GROUP"),
       "of muon, what is no matrix, as for the runtime: 'embedding|head:matrix=no'; may be given several "
       "times")  //
      ("warmup", po::value<int64_t>()->default_value(1)->value_name("N"),
       "passes thrown away first; on a device further ones until its times have settled")  //
      ("precision", po::value<std::string>()->default_value("float32")->value_name("NAME"),
       "float32; tf32: a GPU multiplies with ten bits; bfloat16: autocast with float32 weights")  //
      ("device-passes", po::value<std::string>()->default_value("auto")->value_name("NAMES"),
       "operators run in another way on a GPU, as for the runtime: auto, none, or names")  //
      ("repeats", po::value<int64_t>()->default_value(0)->value_name("N"),
       "passes that count; 0: until the sum of the nodes is known to 1 %, at least 3, for 20 s or 1000 "
       "passes "
       "at most")  //
      ("seed", po::value<int64_t>()->default_value(1)->value_name("N"),
       "seed of weights, synthetic data and dropout")  //
      ("output", po::value<std::string>()->default_value("profile.json")->value_name("FILE"),
       "the profile")  //
      ("report", po::value<std::string>()->value_name("FILE"),
       "file.html: a page, as pipewright-profiler report makes it; without: none")  //
      ("json", po::bool_switch(), "print the profile instead of the table")         //
      ("print-config", po::bool_switch(), "print all settings and where they come from, and stop");
  add_wide_option(&description);
  return description;
}

// All of it checked, the device opened.
MeasureOptions measure_options_from(const po::variables_map& options) {
  if (!options.count("batch-size"))
    throw InputError("option --batch-size is missing",
                     "Likely: --batch-size 32. Times are for one minibatch of it.");
  MeasureOptions measuring;
  measuring.batch_size = integer_option(options, "batch-size", 1, kMostSamples);
  measuring.threads = integer_option(options, "threads", 1, 1024);
  measuring.warmup = integer_option(options, "warmup", 0, 100000);
  measuring.repeats = integer_option(options, "repeats", 0, 100000);
  measuring.seed =
      static_cast<uint64_t>(integer_option(options, "seed", 0, std::numeric_limits<int64_t>::max()));
  measuring.device = open_device(options["device"].as<std::string>(), "--device");
  if (options.count("memory")) {
    measuring.memory_bytes = parse_bytes(options["memory"].as<std::string>(), "--memory");
    if (*measuring.memory_bytes == 0) throw InputError("--memory: nothing fits 0 bytes");
  }
  measuring.optimizer.name = update_rule_facts(options["optimizer"].as<std::string>()).name;
  if (options.count("parameter-group")) {
    for (const std::string& group : options["parameter-group"].as<std::vector<std::string>>())
      measuring.optimizer.parameter_groups.push_back(parse_parameter_group(group));
    validate_parameter_groups(measuring.optimizer, "--parameter-group");
  }
  if (options.count("beside")) {
    measuring.beside = integer_option(options, "beside", 0, 1024);
    if (measuring.beside > 0 && !measuring.device.is_cpu())
      throw InputError("--beside: a GPU is measured alone", "Leave it out; ranks have a GPU each.");
  } else if (measuring.device.is_cpu()) {
    const auto cores = static_cast<int64_t>(cores_of_process().size());
    measuring.beside = std::clamp<int64_t>(cores / measuring.threads - 1, 0, kMostBeside);
  }
  return measuring;
}

// Minibatch to measure with, from --data or made up.
DataInputs inputs_from(const po::variables_map& options, const Graph& graph,
                       const MeasureOptions& measuring) {
  if (!options.count("data")) return {synthetic_inputs(graph, measuring.seed), 0};
  return data_inputs(options["data"].as<std::string>(), graph, measuring.batch_size, measuring.seed,
                     /*for_device=*/!measuring.device.is_cpu());
}

Profile measure_with_progress(const std::string& spec, const Model& model, const DataInputs& inputs,
                              MeasureOptions measuring, std::vector<MeasuredPart>* parts) {
  ProgressLine line;
  line.show("preparing " + spec);
  measuring.progress = [&line](double done, double left) { line.show("measuring", done, left); };
  measuring.measured_part = [parts](const MeasuredPart& part) { parts->push_back(part); };
  Profile profile = measure(model, inputs.tensors, measuring);
  profile.input_seconds = inputs.seconds;
  if (inputs.bytes > 0 && !measuring.device.is_cpu()) profile.whole.uploaded_bytes = inputs.bytes;
  return profile;
}

void print_profile(const Profile& profile, const fs::path& written, const po::variables_map& options) {
  if (options["json"].as<bool>()) {
    std::cout << document_text(profile);
    return;
  }
  const int64_t width = output_width(options);
  for (const auto& line : headlines(profile)) std::cout << wrapped(line, width, 2) << "\n";
  std::cout << "\n" << layer_text(profile, width) << "\nwritten: " << written.string() << "\n";
}

}  // namespace

void profile_command(const std::vector<std::string>& arguments) {
  const po::options_description description = profile_options();
  const auto options = parse_options(
      arguments, description,
      {"pipewright-profiler profile: measures each node of a model, forward and backward, on this machine's\n"
       "CPU or on a GPU.",
       "pipewright-profiler --model convnet --batch-size 64 --output profile.json",
       {"model", "batch-size", "data", "device", "threads", "output", "report"}});
  if (options["print-config"].as<bool>()) {
    print_config(options, description);
    return;
  }

  const std::string spec = required_option(options, "model", kModelRemedy);
  const MeasureOptions measuring = measure_options_from(options);
  const fs::path output = options["output"].as<std::string>();
  check_writable(output, "--output");
  const std::optional<fs::path> report =
      options.count("report") ? std::optional<fs::path>(options["report"].as<std::string>()) : std::nullopt;
  if (report) {
    check_page_name("--report", *report);
    check_writable(*report, "--report");
  }
  const std::string precision = options["precision"].as<std::string>();
  Model model = load_model(spec, measuring.batch_size);
  check_variances(model.graph);
  std::vector<std::string> trained;
  for (const Parameter& parameter : model.graph.parameters)
    if (parameter.trainable) trained.push_back(parameter.name);
  demand_parameters_of_groups(measuring.optimizer, trained);
  const std::string passes = options["device-passes"].as<std::string>();
  model.graph = with_device_passes(with_precision(model, precision, measuring.device), passes, precision,
                                   measuring.device);
  const DataInputs inputs = inputs_from(options, model.graph, measuring);

  std::vector<MeasuredPart> parts;
  Profile profile = measure_with_progress(spec, model, inputs, measuring, &parts);
  profile.provenance.emplace_back("data",
                                  options.count("data") ? options["data"].as<std::string>() : "synthetic");
  profile.provenance.emplace_back("precision", precision);
  const std::set<std::string>& chosen = model.graph.device_passes;
  profile.provenance.emplace_back(
      "device_passes",
      chosen.empty() ? "none" : join(std::vector<std::string>(chosen.begin(), chosen.end()), ","));
  profile.validate(output.string());
  write_document(output, profile);
  if (report) write_page(*report, report_text(profile, *report, output));
  print_profile(profile, output, options);
  warn_of_doubts(profile, parts, measuring.repeats > 0);
}

void graph_command(const std::vector<std::string>& arguments) {
  po::options_description description("Options");
  description.add_options()                                                                                //
      ("model", po::value<std::string>()->value_name("SPEC"), "model: NAME[:option=value,...]")            //
      ("batch-size", po::value<int64_t>()->default_value(1)->value_name("N"), "samples of one minibatch")  //
      ("output", po::value<std::string>()->value_name("FILE"), "write the graph (JSON)")                   //
      ("dot", po::value<std::string>()->value_name("FILE"), "write a drawing for Graphviz")                //
      ("json", po::bool_switch(), "print the graph as JSON instead of the table")                          //
      ("print-config", po::bool_switch(), "print all settings and where they come from, and stop");
  add_wide_option(&description);
  const auto options =
      parse_options(arguments, description,
                    "pipewright-profiler graph: a model's layers, operators, shapes and parameters.\n"
                    "Example: pipewright-profiler graph --model resnet18 --batch-size 32 --dot resnet18.dot");
  if (options["print-config"].as<bool>()) {
    print_config(options, description);
    return;
  }
  const std::string spec = required_option(options, "model", kModelRemedy);
  const int64_t batch_size = integer_option(options, "batch-size", 1, kMostSamples);
  for (const char* name : {"output", "dot"})
    if (options.count(name)) check_writable(options[name].as<std::string>(), std::string("--") + name);
  const Graph graph = load_model(spec, batch_size).graph;
  if (options.count("output")) write_document(options["output"].as<std::string>(), graph);
  if (options.count("dot")) write_file(options["dot"].as<std::string>(), graph_dot(graph));
  std::cout << (options["json"].as<bool>() ? document_text(graph)
                                           : graph_listing(graph, output_width(options)));
}

void models_command(const std::vector<std::string>& arguments) {
  po::options_description description("Options");
  description.add_options()("json", po::bool_switch(), "print JSON instead of the table");
  add_wide_option(&description);
  const auto options = parse_options(
      arguments, description, "pipewright-profiler models: the built-in models, their options and sizes.");
  const auto left = TableColumn::Side::kLeft;
  TextTable table({{"model", left},
                   {"parameters"},
                   {"options, with their defaults", left, 0, 20},
                   {"what it is", left, 1}});
  Json models = Json::array();
  for (const ModelRow& row : model_rows()) {
    // Of two samples: with one, a batch norm may have a single value for each channel, and refuse it.
    const int64_t count = parameter_count(build_model(row.name, 2).graph);
    table.add({row.name, with_thousands(count), row.options, row.summary});
    models.push_back(
        {{"name", row.name}, {"parameters", count}, {"options", row.options}, {"summary", row.summary}});
  }
  if (options["json"].as<bool>())
    std::cout << json_text(models);
  else
    std::cout << table.text(output_width(options)) << "\n"
              << wrapped(
                     "A model is given as NAME or NAME:option=value,option=value: vgg16:classes=10,image=64",
                     output_width(options))
              << "\n";
}

}  // namespace pipewright
