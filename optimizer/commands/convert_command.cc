// convert: between Pipewright's documents and those of other programs. What the input is says its content;
// what the output is, the input and the output's suffix, or --to.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/dynpipe_partition.h"
#include "graph/error.h"
#include "graph/limits.h"
#include "graph/pipedream.h"
#include "graph/pipedream_configuration.h"
#include "graph/rows.h"
#include "graph/stage_modules.h"
#include "optimizer/baselines/dnn_partitioning.h"
#include "optimizer/baselines/piper.h"
#include "optimizer/commands/commands.h"
#include "optimizer/commands/options.h"
#include "runtime/schedule/schedule.h"
#include "runtime/schedule/torch_csv.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

enum class Kind {
  kProfile,
  kGraphText,
  kPlan,
  kConfiguration,
  kPartition,
  kDnnPartitioning,
  kPiper,
  kTorchCsv
};

Kind kind_of_document(const std::string& text, const std::string& file) {
  if (looks_like_pipedream_profile(text)) return Kind::kGraphText;
  if (looks_like_pipedream_configuration(text)) return Kind::kConfiguration;
  if (looks_like_dynpipe_partition(text)) return Kind::kPartition;
  if (looks_like_dnn_partitioning(text)) return Kind::kDnnPartitioning;
  if (looks_like_piper(text)) return Kind::kPiper;
  const bool is_csv = std::filesystem::path(file).extension() == ".csv";
  if (is_csv && text.find_first_not_of(", \t\r\n") == std::string::npos)
    throw InputError(file + ": empty; expected a line for each rank, such as 0F0,0F1,,0B0,,0B1",
                     "It is a schedule of PyTorch's runtime: STAGE KIND MICROBATCH in each cell, as "
                     "_dump_csv or convert --to torch-csv writes it.");
  // So that of one with a slip in its first cell it is said which cell.
  if (is_csv || looks_like_torch_csv(text)) return Kind::kTorchCsv;
  const Json json = parse_json(text, file);
  const std::string schema =
      json.is_object() && json.contains("schema") && json["schema"].is_string() ? json["schema"] : "";
  if (schema == Profile::kSchema) return Kind::kProfile;
  if (schema == Plan::kSchema) return Kind::kPlan;
  throw InputError(file + ": " + (schema.empty() ? "no schema" : "schema " + in_quotes(schema)) +
                       "; convert takes profile.json, a plan, PipeDream's graph.txt or its configuration, "
                       "DynPipe's partition, a schedule in PyTorch's CSV",
                   "A configuration has the key module_to_stage_map.");
}

/// What --to makes of a plan.
struct Target {
  const char* name;
  const char* suffix;  ///< of --output
  const char* summary;
  bool with_profile;  ///< whose nodes it names by their modules: --profile
  std::string (*text)(const Plan& plan, const Profile& profile);
};
const std::vector<Target>& targets() {
  static const std::vector<Target> rows = {
      {"torch-csv", ".csv", "the schedule of PyTorch's runtime", false,
       [](const Plan& plan, const Profile&) { return torch_csv_text(plan); }},
      {"torchtitan", ".json", "the modules of each stage; needs --profile", true, torchtitan_modules_text},
      {"deepspeed", ".json", "the layers of each stage; needs --profile", true, deepspeed_partition_text},
  };
  return rows;
}

/// Profile and the module of each node, from the --profile that modules and stages refer to.
struct Modules {
  Profile profile;
  std::map<std::string, int64_t> module_of;
};

Modules modules_from(const std::string& file) {
  const std::string text = read_file(file);
  Modules modules{read_profile(file), {}};
  if (looks_like_pipedream_profile(text)) modules.module_of = parse_pipedream_stages(text, file);
  return modules;
}

/// Where a file names no depths: those that PipeDream's runtime takes.
void default_depths(Plan* plan) {
  std::vector<int64_t> replicas;
  for (const Stage& stage : plan->stages) replicas.push_back(static_cast<int64_t>(stage.ranks.size()));
  const std::vector<int64_t> depths = pipedream_in_flight(replicas);
  for (size_t s = 0; s < depths.size(); ++s) plan->stages[s].in_flight = depths[s];
}

/// The plan of a graph.txt with stage ids, whose replicas only the command line knows.
Plan plan_of_stages(const std::string& text, const std::string& file, const StageConstraints& constraints) {
  const Profile profile = parse_pipedream_profile(text, file);
  const std::map<std::string, int64_t> stages = parse_pipedream_stages(text, file);
  PipedreamConfiguration configuration;
  int64_t count = 0;
  for (const auto& [node, stage] : stages) count = std::max(count, stage + 1);
  if (count == 0) throw InputError(file + ": has no stage ids, so it is a profile, not a plan");
  if (constraints.replicas.rbegin()->first >= count) {
    throw InputError("--replicas: names stage " + std::to_string(constraints.replicas.rbegin()->first) +
                     "; " + file + " has " + std::to_string(count) + " stages");
  }
  int64_t rank = 0;
  for (int64_t stage = 0; stage < count; ++stage) {
    configuration.module_to_stage.push_back(stage);
    const auto given = constraints.replicas.find(stage);
    std::vector<int64_t> ranks(given == constraints.replicas.end() ? 1 : static_cast<size_t>(given->second));
    for (int64_t& next : ranks) next = rank++;
    configuration.stage_to_ranks.push_back(std::move(ranks));
  }
  Plan plan = plan_of_configuration(configuration, profile, stages, file);
  default_depths(&plan);
  return plan;
}

std::string text_with_stages(const Plan& plan, const Profile& profile) {
  std::map<std::string, int64_t> stage_of;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    for (const std::string& node : plan.stages[s].nodes) stage_of[node] = static_cast<int64_t>(s);
  }
  std::vector<int64_t> stages;
  for (const ProfiledNode& node : profile.nodes) {
    const auto it = stage_of.find(node.name);
    if (it == stage_of.end()) {
      throw PlanError(
          "plan: no stage holds node '" + node.name + "' of the profile of '" + profile.model + "'",
          "Give the profile that the plan was made with.");
    }
    stages.push_back(it->second);
  }
  return pipedream_profile_text(profile, stages);
}

}  // namespace

void run_convert(const Arguments& arguments) {
  po::options_description options("Options");
  options.add_options()  //
      ("input", po::value<std::string>(),
       "profile.json, a plan, PipeDream's graph.txt (with or without stages) or its configuration.json, "
       "DynPipe's partition.json, a schedule in PyTorch's CSV, an input file of dnn-partitioning or Piper")  //
      ("output", po::value<std::string>(),
       "profile -> graph.txt and back; plan -> graph.txt with stages (.txt) or configuration (.json) and "
       "back; PyTorch's schedule -> plan")  //
      ("to", po::value<std::string>(),
       ("a plan as another program takes it: " + help_of(targets()) + "; without: as --output says")
           .c_str())                                                                                     //
      ("plan", po::value<std::string>(), "of PyTorch's schedule: whose stages it runs")                  //
      ("profile", po::value<std::string>(), "of the model; for a configuration: graph.txt with stages")  //
      ("replicas", po::value<std::string>(), "of a graph.txt with stages, to make it a plan: 0:3,1:1")   //
      ("batch-size", po::value<int64_t>(),
       "samples of a minibatch: a plan becomes DynPipe's partition; without: PipeDream's configuration");
  const po::variables_map values =
      parse_options(arguments, options,
                    {"pipewright-optimizer convert --input FILE --output FILE [--to PROGRAM] [--profile "
                     "FILE] [--plan FILE] "
                     "[--replicas ...] [--batch-size N]",
                     "pipewright-optimizer convert --input profile.json --output graph.txt",
                     {"input", "output", "to", "plan", "profile"}});
  const std::string input = required(values, "input");
  const std::string output = required(values, "output");
  const std::string suffix = std::filesystem::path(output).extension().string();
  const Target* const target =
      values.count("to") == 0 ? nullptr : &row_named(targets(), "--to", values["to"].as<std::string>());
  if (target && target->with_profile && values.count("profile") == 0) {
    throw InputError(std::string("--to ") + target->name + ": needs --profile FILE",
                     "Its modules have names that a profile knows, not a plan: give the one that the plan "
                     "was made with.");
  }
  const std::vector<std::string> suffixes =
      target ? std::vector<std::string>{target->suffix} : std::vector<std::string>{".json", ".txt"};
  if (std::find(suffixes.begin(), suffixes.end(), suffix) == suffixes.end()) {
    throw InputError("--output: got " + in_quotes(output) + "; expected a name that ends in " +
                     join(suffixes, " or "));
  }
  const bool to_json = suffix == ".json";
  const std::string text = read_file(input);
  const Kind kind = kind_of_document(text, input);
  if (target && kind != Kind::kPlan) throw InputError("--to: goes with a plan, and " + input + " is none");
  if (values.count("plan") != 0 && kind != Kind::kTorchCsv)
    throw InputError("--plan: goes with a schedule in PyTorch's CSV, and " + input + " is none");
  std::vector<Setting> settings;
  StageConstraints constraints;
  if (values.count("replicas") != 0) {
    if (kind != Kind::kGraphText)
      throw InputError("--replicas: only for a graph.txt with stages; " + input + " is none");
    constraints = replicas_from(values, &settings);
  }
  const auto same = [&] {
    throw InputError("--output: " + in_quotes(output) + " is the format that " + in_quotes(input) +
                     " already has");
  };

  std::string converted;
  switch (kind) {
    case Kind::kProfile:
      if (to_json) same();
      converted = pipedream_profile_text(parse_document<Profile>(text, input));
      break;
    case Kind::kGraphText:
      if (!to_json) same();
      converted = constraints.any() ? document_text(plan_of_stages(text, input, constraints))
                                    : document_text(parse_pipedream_profile(text, input));
      break;
    case Kind::kDnnPartitioning:
    case Kind::kPiper: {
      const Profile profile =
          kind == Kind::kPiper ? piper_profile(text, input) : dnn_partitioning_profile(text, input);
      converted = to_json ? document_text(profile) : pipedream_profile_text(profile);
      break;
    }
    case Kind::kPlan: {
      const auto plan = parse_document<Plan>(text, input);
      if (target) {
        const Profile profile = target->with_profile ? read_profile(required(values, "profile")) : Profile();
        converted = target->text(plan, profile);
        break;
      }
      if (to_json && values.count("batch-size") != 0) {
        converted = dynpipe_partition_text(partition_of(plan, read_profile(required(values, "profile")),
                                                        in_range(values, "batch-size", 1, kMostCount)));
        break;
      }
      converted = to_json ? pipedream_configuration_text(configuration_of(plan))
                          : text_with_stages(plan, read_profile(required(values, "profile")));
      break;
    }
    case Kind::kTorchCsv: {
      if (!to_json) throw InputError("--output: a schedule becomes a plan: expected a name in .json");
      const Plan stages = read_document<Plan>(required(values, "plan"));
      converted = document_text(plan_of_torch_csv(text, input, stages));
      if (std::any_of(stages.stages.begin(), stages.stages.end(),
                      [](const Stage& stage) { return stage.ranks.size() > 1; }))
        std::cerr << "warning: the schedule is of one pipeline: its plan has one rank of each stage, " +
                         stages.shape_text() + " has more, and its updates are of so many fewer samples\n";
      break;
    }
    case Kind::kPartition: {
      if (!to_json) throw InputError("--output: a partition becomes a plan: expected a name in .json");
      const DynPipePartition partition = parse_dynpipe_partition(text, input);
      Plan plan = plan_of_partition(partition, read_profile(required(values, "profile")), input);
      default_depths(&plan);
      converted = document_text(plan);
      break;
    }
    case Kind::kConfiguration: {
      if (!to_json) throw InputError("--output: a configuration becomes a plan: expected a name in .json");
      const PipedreamConfiguration configuration = parse_pipedream_configuration(text, input);
      const Modules modules = modules_from(required(values, "profile"));
      Plan plan = plan_of_configuration(configuration, modules.profile, modules.module_of, input);
      if (configuration.stage_to_depth.empty()) default_depths(&plan);
      converted = document_text(plan);
      break;
    }
  }
  write_file(output, converted);
  std::cerr << "wrote " << output << "\n";
}

}  // namespace pipewright
