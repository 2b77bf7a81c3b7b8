#include "runtime/commands/run_options.h"

#include <algorithm>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/limits.h"
#include "graph/units.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

enum class Kind { kText, kInteger, kNumber, kFlag, kBoolean, kSeconds, kBytes, kGroups };

// The document's keys under their option names. `group` is the object that holds the key, or "".
struct Row {
  const char* option;
  const char* group;
  const char* key;
  Kind kind;
  const char* help;
};

constexpr Row kRows[] = {
    {"model", "", "model", Kind::kText, "SPEC: of the zoo, e.g. convnet:classes=10, or FILE.pt2"},
    {"plan", "", "plan", Kind::kText, "plan file; without one, the whole model on every rank"},
    {"adapt", "", "adapt", Kind::kText,
     "SPEC: how the plan changes while the run trains: none, or manual:file=CHANGES.json"},
    {"data", "", "data", Kind::kText, "SPEC of the training data, e.g. fashion-mnist"},
    {"evaluation-data", "", "evaluation_data", Kind::kText,
     "SPEC of the data for the evaluation at epoch ends"},
    {"evaluate-every-minibatches", "", "evaluate_every_minibatches", Kind::kInteger,
     "evaluate after so many, too; the pipeline drains there; 0 = at epoch ends only"},
    {"batch-size", "", "batch_size", Kind::kInteger, "samples of a minibatch"},
    {"epochs", "", "epochs", Kind::kInteger, "passes over the data"},
    {"minibatches", "", "minibatches", Kind::kInteger, "stop after so many; 0 = as the epochs say"},
    {"optimizer", "optimizer", "name", Kind::kText, "sgd, adam, adamw"},
    {"learning-rate", "optimizer", "learning_rate", Kind::kNumber, "of the optimizer, before any policy"},
    {"momentum", "optimizer", "momentum", Kind::kNumber, "of sgd"},
    {"nesterov", "optimizer", "nesterov", Kind::kFlag, "momentum looks ahead"},
    {"weight-decay", "optimizer", "weight_decay", Kind::kNumber, "pulls weights to 0"},
    {"beta1", "optimizer", "beta1", Kind::kNumber, "of adam: decay of the first moment"},
    {"beta2", "optimizer", "beta2", Kind::kNumber, "of adam: decay of the second moment"},
    {"epsilon", "optimizer", "epsilon", Kind::kNumber, "of adam: added to the divisor"},
    {"no-decay", "optimizer", "no_decay", Kind::kText,
     "regular expression: parameters without decay, e.g. 'bias|norm'"},
    {"parameter-group", "optimizer", "parameter_groups", Kind::kGroups,
     "parameters of another rate or decay, e.g. 'head:learning_rate_scale=10,weight_decay=0'; may be given "
     "several times"},
    {"learning-rate-policy", "learning_rate_policy", "name", Kind::kText,
     "constant, step, polynomial, exponential, cosine"},
    {"warmup-minibatches", "learning_rate_policy", "warmup_minibatches", Kind::kInteger, "linear warm-up"},
    {"gamma", "learning_rate_policy", "gamma", Kind::kNumber, "factor of step and exponential"},
    {"step-epochs", "learning_rate_policy", "step_epochs", Kind::kNumber, "epochs between two steps"},
    {"step-minibatches", "learning_rate_policy", "step_minibatches", Kind::kInteger,
     "minibatches between two steps, instead of epochs"},
    {"power", "learning_rate_policy", "power", Kind::kNumber, "exponent of polynomial"},
    {"learning-rate-every", "learning_rate_policy", "every", Kind::kText,
     "rate changes every minibatch or epoch"},
    {"learning-rate-scaling", "", "learning_rate_scaling", Kind::kText, "none, pipedream"},
    {"gradient-clipping-norm", "", "gradient_clipping_norm", Kind::kNumber,
     "largest norm of a gradient; 0 = any"},
    {"gradient-accumulation", "", "gradient_accumulation", Kind::kInteger, "rounds that make one update"},
    {"precision", "", "precision", Kind::kText, "float32, bfloat16 (autocast)"},
    {"nan-guard", "", "nan_guard", Kind::kBoolean, "stop at the first value that is not finite"},
    {"gradient-bucket-bytes", "", "gradient_bucket_bytes", Kind::kBytes,
     "gradients averaged at a time, e.g. 25MiB"},
    {"initial-weights", "", "initial_weights", Kind::kText, ".safetensors file or index to start from"},
    {"checkpoint-every-minibatches", "checkpoint", "every_minibatches", Kind::kInteger, "0 = none"},
    {"checkpoint-every-epochs", "checkpoint", "every_epochs", Kind::kInteger, "0 = none"},
    {"checkpoint-keep", "checkpoint", "keep", Kind::kInteger, "the last so many checkpoints stay"},
    {"checkpoint-versions", "checkpoint", "versions", Kind::kText,
     "exact: with the weights that minibatches in flight read; latest: without"},
    {"checkpoint-on-signal", "checkpoint", "on_signal", Kind::kBoolean, "SIGINT and SIGTERM leave one"},
    {"no-save", "", "no_save", Kind::kFlag, "do not write the final weights into the run folder"},
    {"resume", "", "resume", Kind::kText, "latest, or a checkpoint's folder"},
    {"seed", "", "seed", Kind::kInteger, "of first weights, order of samples, dropout"},
    {"device", "", "device", Kind::kText, "cpu, cuda (ranks of a host take turns) or cuda:K"},
    {"cuda-graphs", "", "cuda_graphs", Kind::kFlag,
     "start forwards and backwards with one call each, where that can be"},
    {"threads", "", "threads", Kind::kInteger, "compute threads of one rank"},
    {"transport", "", "transport", Kind::kText, "auto, gloo, nccl, shm"},
    {"timeout", "", "timeout_seconds", Kind::kSeconds, "a rank silent for longer is lost, e.g. 30s"},
    {"start-timeout", "", "start_timeout_seconds", Kind::kSeconds,
     "ranks that have not all met by then end, e.g. 5min"},
    {"trace-minibatches", "", "trace_minibatches", Kind::kInteger, "minibatches in trace.json; 0 = none"},
    {"output", "", "output", Kind::kText, "run folder"},
};

template <typename Number>
Number parse_number(const std::string& text, const char* option, const char* expected) {
  try {
    return boost::lexical_cast<Number>(text);
  } catch (const boost::bad_lexical_cast&) {
    throw InputError(std::string("--") + option + " '" + text + "': expected " + expected);
  }
}

Json value_of(const Row& row, const po::variables_map& options) {
  if (row.kind == Kind::kFlag) return true;
  if (row.kind == Kind::kGroups) {
    Json list = Json::array();
    for (const std::string& text : options[row.option].as<std::vector<std::string>>())
      list.push_back(parse_parameter_group(text).to_json());
    return list;
  }
  const auto text = options[row.option].as<std::string>();
  switch (row.kind) {
    case Kind::kInteger:
      return parse_number<int64_t>(text, row.option, "a whole number");
    case Kind::kNumber:
      return parse_number<double>(text, row.option, "a number");
    case Kind::kSeconds:
      return parse_seconds(text, std::string("--") + row.option);
    case Kind::kBytes:
      return parse_bytes(text, std::string("--") + row.option);
    case Kind::kBoolean:
      if (text == "true" || text == "false") return text == "true";
      throw InputError(std::string("--") + row.option + " '" + text + "': expected true or false");
    case Kind::kFlag:
    case Kind::kGroups:
    case Kind::kText:
      break;
  }
  return text;
}

// The document of --config as JSON, or an empty one.
Json document_of(const po::variables_map& options) {
  if (!options.count("config")) return Json::object();
  const std::string file = options["config"].as<std::string>();
  return read_json_file(file);
}

bool holds(const Json& json, const Row& row) {
  if (!*row.group) return json.contains(row.key);
  return json.contains(row.group) && json.at(row.group).is_object() && json.at(row.group).contains(row.key);
}

// A key's value of a document, by the row.
const Json& value_in(const Json& document, const Row& row) {
  return (*row.group ? document.at(row.group) : document).at(row.key);
}

// What the option is worth when nobody gives it, as one would write it; "" for none.
std::string default_text(const Row& row) {
  static const Json defaults = Run{}.to_json();
  const Json& value = value_in(defaults, row);
  switch (row.kind) {
    case Kind::kSeconds:
      return format_seconds(value.get<double>());
    case Kind::kBytes:
      return format_bytes(static_cast<double>(value.get<int64_t>()));
    case Kind::kText:
      return value.get<std::string>();
    default:
      return value.dump();
  }
}

bool is_given(const po::variables_map& options, const Row& row) {
  if (!options.count(row.option)) return false;
  return row.kind != Kind::kFlag || options[row.option].as<bool>();
}

}  // namespace

po::options_description run_option_descriptions() {
  po::options_description description("Run");
  description.add_options()("config", po::value<std::string>()->value_name("FILE"),
                            "run document; options win over it");
  for (const Row& row : kRows) {
    if (row.kind == Kind::kFlag) {
      description.add_options()(row.option, po::bool_switch(), row.help);
    } else if (row.kind == Kind::kGroups) {
      description.add_options()(
          row.option, po::value<std::vector<std::string>>()->value_name("X")->composing(), row.help);
    } else {
      std::string usual = default_text(row);
      usual.erase(std::remove(usual.begin(), usual.end(), ' '), usual.end());  // "25MiB", as it is given
      const std::string shown = usual.empty() ? "X" : "X (=" + usual + ")";
      description.add_options()(row.option, po::value<std::string>()->value_name(shown), row.help);
    }
  }
  return description;
}

Run run_from_options(const po::variables_map& options, const std::optional<Run>& base) {
  Json json = document_of(options);
  if (base) {
    Json over = base->to_json();
    over.merge_patch(json);
    json = std::move(over);
  }
  const std::string where =
      options.count("config") ? options["config"].as<std::string>() + " and options" : "options";
  if (!options.count("config")) json["schema"] = Run::kSchema;
  if (!json.is_object()) return parse_document<Run>(json.dump(), where);  // says what is wrong with it
  for (const Row& row : kRows) {
    if (!is_given(options, row)) continue;
    const Json value = value_of(row, options);
    // A group that is no object stays as it is: reading the document says what is wrong with it.
    if (*row.group && json.contains(row.group) && !json[row.group].is_object()) continue;
    (*row.group ? json[row.group] : json)[row.key] = value;
  }
  for (const char* ranks : {"world-size", "ranks"}) {  // out of range they are refused where they are used
    if (options.count(ranks))
      json["world_size"] = std::clamp<int64_t>(options[ranks].as<int64_t>(), 0, kMostRanks);
  }
  for (const char* needed : {"model", "data"}) {
    if (!json.contains(needed)) {
      throw InputError(
          std::string("--") + needed + " is missing",
          std::string("give --") + needed + ", or --config with a run document that has \"" + needed + "\"");
    }
  }
  return parse_document<Run>(json.dump(), where);
}

bool is_said(const po::variables_map& options, const std::string& option) {
  const Json document = document_of(options);
  for (const Row& row : kRows) {
    if (row.option == option) return is_given(options, row) || holds(document, row);
  }
  PW_CHECK(false, "no option " << option);
  return false;
}

std::vector<Setting> settings_of(const po::variables_map& options, const Run& run,
                                 const std::optional<RunBase>& base) {
  const Json document = document_of(options);
  const Json values = run.to_json();
  const Json defaults = Run{}.to_json();
  const Json under = base ? base->run.to_json() : defaults;
  std::vector<Setting> settings;
  for (const Row& row : kRows) {
    const std::string source = is_given(options, row) ? "option"
                               : holds(document, row) ? options["config"].as<std::string>()
                               : value_in(under, row) != value_in(defaults, row) ? base->from
                                                                                 : "default";
    settings.push_back({row.option, value_in(values, row).dump(), source});
  }
  // Of a command that starts ranks, or of one rank.
  const std::string ranks = options.count("world-size") ? "world-size" : "ranks";
  settings.push_back({ranks, std::to_string(run.world_size),
                      options.count(ranks)              ? "option"
                      : document.contains("world_size") ? options["config"].as<std::string>()
                                                        : "default"});
  return settings;
}

po::options_description place_option_descriptions() {
  po::options_description description(
      "Place in the world (default: RANK, WORLD_SIZE ..., Slurm, Open MPI, one process)");
  description.add_options()("rank", po::value<int64_t>()->value_name("R"), "this process, from 0")(
      "world-size", po::value<int64_t>()->value_name("N"), "how many there are")(
      "master-addr", po::value<std::string>()->value_name("H"), "host of rank 0")(
      "master-port", po::value<int64_t>()->value_name("P"), "port on which rank 0 is met");
  return description;
}

PlaceOptions place_options(const po::variables_map& options) {
  PlaceOptions place;
  if (options.count("rank")) place.rank = options["rank"].as<int64_t>();
  if (options.count("world-size")) place.world_size = options["world-size"].as<int64_t>();
  if (options.count("master-addr")) place.master_address = options["master-addr"].as<std::string>();
  if (options.count("master-port")) place.master_port = options["master-port"].as<int64_t>();
  return place;
}

}  // namespace pipewright
