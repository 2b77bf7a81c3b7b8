#include "runtime/commands/run_options.h"

#include <algorithm>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/limits.h"
#include "graph/run_fields.h"
#include "graph/units.h"
#include "runtime/job/recovery_policy.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

template <typename Number>
Number parse_number(const std::string& text, const char* option, const char* expected) {
  try {
    return boost::lexical_cast<Number>(text);
  } catch (const boost::bad_lexical_cast&) {
    throw InputError(std::string("--") + option + " '" + text + "': expected " + expected);
  }
}

bool is_flag(const RunField& field) { return field.form == FieldForm::kFlag; }
bool is_list(const RunField& field) {
  static const Run any;
  const ConstFieldValue value = field.of(any);
  return std::holds_alternative<const std::vector<ParameterGroup>*>(value) ||
         std::holds_alternative<const std::vector<std::string>*>(value);
}

// From the words of the command line to the document's value, by the type of the field.
struct FromText {
  const RunField& field;
  const std::string& text;
  std::string option() const { return std::string("--") + field.option; }

  Json operator()(const std::string*) const { return text; }
  Json operator()(const int64_t*) const {
    if (field.form == FieldForm::kBytes) return parse_bytes(text, option());
    return parse_number<int64_t>(text, field.option, "a whole number");
  }
  Json operator()(const double*) const {
    if (field.form == FieldForm::kSeconds) return parse_seconds(text, option());
    return parse_number<double>(text, field.option, "a number");
  }
  Json operator()(const bool*) const {
    if (text == "true" || text == "false") return text == "true";
    throw InputError(option() + " '" + text + "': expected true or false");
  }
  Json operator()(const std::vector<std::string>*) const { return text; }
  Json operator()(const std::vector<ParameterGroup>*) const { return parse_parameter_group(text).to_json(); }
};

Json value_of(const RunField& field, const po::variables_map& options) {
  if (is_flag(field)) return true;
  static const Run any;
  const auto parsed = [&](const std::string& text) {
    return std::visit(FromText{field, text}, field.of(any));
  };
  if (!is_list(field)) return parsed(options[field.option].as<std::string>());
  Json list = Json::array();
  for (const std::string& text : options[field.option].as<std::vector<std::string>>())
    list.push_back(parsed(text));
  return list;
}

// The document of --config as JSON, or an empty one.
Json document_of(const po::variables_map& options) {
  if (!options.count("config")) return Json::object();
  const std::string file = options["config"].as<std::string>();
  return read_json_file(file);
}

bool holds(const Json& json, const RunField& row) {
  if (!*row.group) return json.contains(row.key);
  return json.contains(row.group) && json.at(row.group).is_object() && json.at(row.group).contains(row.key);
}

// A key's value of a document, by the row.
const Json& value_in(const Json& document, const RunField& row) {
  return (*row.group ? document.at(row.group) : document).at(row.key);
}

// What the option is worth when nobody gives it, as one would write it; "" for none.
std::string default_text(const RunField& row) {
  static const Run run;
  const ConstFieldValue value = row.of(run);
  if (row.form == FieldForm::kSeconds) return format_seconds(*std::get<const double*>(value));
  if (row.form == FieldForm::kBytes)
    return format_bytes(static_cast<double>(*std::get<const int64_t*>(value)));
  if (const auto* text = std::get_if<const std::string*>(&value)) return **text;
  static const Json defaults = run.to_json();
  return value_in(defaults, row).dump();
}

// Of the help, with the first field below each.
constexpr struct {
  const char* option;
  const char* caption;
} kHeadings[] = {{"model", "What is trained, and how long"},
                 {"optimizer", "Optimizer and learning rate"},
                 {"sync", "How it is computed"},
                 {"initial-weights", "Where it begins, and what it keeps"},
                 {"device", "Devices, links and patience"},
                 {"trace-minibatches", "Run folder"}};

void add_option(po::options_description& description, const RunField& row) {
  if (is_flag(row)) {
    description.add_options()(row.option, po::bool_switch(), row.help.c_str());
  } else if (is_list(row)) {
    description.add_options()(row.option, po::value<std::vector<std::string>>()->value_name("X")->composing(),
                              row.help.c_str());
  } else {
    std::string usual = default_text(row);
    usual.erase(std::remove(usual.begin(), usual.end(), ' '), usual.end());  // "25MiB", as it is given
    const std::string shown = usual.empty() ? "X" : "X (=" + usual + ")";
    description.add_options()(row.option, po::value<std::string>()->value_name(shown), row.help.c_str());
  }
}

bool is_given(const po::variables_map& options, const RunField& row) {
  if (!*row.option || !options.count(row.option)) return false;
  return !is_flag(row) || options[row.option].as<bool>();
}

// What is wrong with an option is said with its name, not with that of its key.
Run parsed_as_said(const Json& json, const std::string& where, const po::variables_map& options) {
  try {
    return parse_document<Run>(json.dump(), where);
  } catch (const InputError& error) {
    const std::string what = error.what();
    for (const RunField& row : run_fields()) {
      const std::string begin = where + ": " + row.path() + ": ";
      if (!is_given(options, row) || what.rfind(begin, 0) != 0) continue;
      throw InputError("--" + std::string(row.option) + ": " + what.substr(begin.size()), error.remedy());
    }
    throw;
  }
}

// A document's own settings of recovery do not count where --on-loss is given: that says what becomes of
// them.
void check_recovery(const Run& run, const po::variables_map& options) {
  static const Json defaults = Run{}.to_json();
  const Json document = document_of(options);
  const RunField& on_loss_row = run_field_of("on-loss");
  const bool said = is_given(options, on_loss_row);
  const auto in_document = [&](const RunField& row) {
    return options["config"].as<std::string>() + ": " + row.path();
  };
  const OnLoss on_loss =
      on_loss_of(run, said || !holds(document, on_loss_row) ? "--on-loss" : in_document(on_loss_row));
  for (const RunField& row : run_fields()) {
    if (row.group != std::string(on_loss_row.group) || row.key == std::string(on_loss_row.key)) continue;
    const bool given = is_given(options, row);
    const bool written = !said && holds(document, row) && value_in(document, row) != value_in(defaults, row);
    if (!given && !written) continue;
    const std::string name = given ? "--" + std::string(row.option) : in_document(row);
    if (row.key == std::string("fewest") && on_loss != OnLoss::kContinue)
      throw InputError(
          name + " is of use with --on-loss continue only, and here it is " + run.recovery.on_loss,
          "give --on-loss continue:profile=PROFILE.json (docs/recovery.md), or leave it out");
    if (on_loss == OnLoss::kEnd)
      throw InputError(
          name + " is of use after a loss only, and --on-loss " + run.recovery.on_loss + " ends the job then",
          "give --on-loss restart or continue (docs/recovery.md), or leave it out");
  }
}

}  // namespace

po::options_description run_option_descriptions() {
  po::options_description description;
  description.add_options()("config", po::value<std::string>()->value_name("FILE"),
                            "run document; options win over it");
  std::vector<po::options_description> groups;
  for (const RunField& row : run_fields()) {
    if (!*row.option) continue;
    for (const auto& heading : kHeadings)
      if (std::string(heading.option) == row.option) groups.emplace_back(heading.caption);
    PW_CHECK(!groups.empty(), "no heading above --" << row.option);
    add_option(groups.back(), row);
  }
  for (const po::options_description& group : groups) description.add(group);
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
  for (const RunField& row : run_fields()) {
    if (!is_given(options, row)) continue;
    const Json value = value_of(row, options);
    // A group that is no object stays as it is: reading the document says what is wrong with it.
    if (*row.group && json.contains(row.group) && !json[row.group].is_object()) continue;
    (*row.group ? json[row.group] : json)[row.key] = value;
  }
  if (options.count("emulate")) {
    if (options.count("plan"))
      throw InputError("--plan and --emulate: each names a plan", "give --emulate PLAN alone");
    json["plan"] = options["emulate"].as<std::string>();
    json["emulate"] = true;
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
  Run run = parsed_as_said(json, where, options);
  check_recovery(run, options);
  return run;
}

bool is_said(const po::variables_map& options, const std::string& option) {
  const Json document = document_of(options);
  for (const RunField& row : run_fields()) {
    if (*row.option && row.option == option) return is_given(options, row) || holds(document, row);
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
  for (const RunField& row : run_fields()) {
    if (!*row.option) continue;  // below
    const bool by_emulate = row.option == std::string("plan") && options.count("emulate");
    const std::string source = is_given(options, row) || by_emulate ? "option"
                               : holds(document, row)               ? options["config"].as<std::string>()
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
      "Place in the world (default: RANK, WORLD_SIZE ..., an MPI, Slurm, one process)");
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
