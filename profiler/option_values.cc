#include "profiler/option_values.h"

#include <unistd.h>

#include <iostream>

#include "graph/command_line.h"
#include "graph/error.h"
#include "graph/file_watch.h"
#include "graph/json.h"
#include "graph/settings.h"

namespace pipewright {

namespace po = boost::program_options;
namespace fs = std::filesystem;

std::string required_option(const po::variables_map& options, const std::string& name,
                            const std::string& remedy) {
  if (!options.count(name)) throw InputError("option --" + name + " is missing", remedy);
  return options[name].as<std::string>();
}

int64_t integer_option(const po::variables_map& options, const std::string& name, int64_t minimum,
                       int64_t maximum) {
  const int64_t value = options[name].as<int64_t>();
  if (value < minimum || value > maximum)
    throw InputError("--" + name + ": " + std::to_string(value) + " is not in " + std::to_string(minimum) +
                     ".." + std::to_string(maximum));
  return value;
}

void check_writable(const fs::path& file, const std::string& option) {
  const std::string what = option + ": cannot write '" + file.string() + "': ";
  if (file.empty() || !file.has_filename()) throw InputError(what + "it names no file");
  const FileWatch watch(file);
  if (fs::is_directory(file)) throw InputError(what + "it is a folder", "Next: give a file in it.");
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (!fs::is_directory(folder))
    throw InputError(what + "there is no folder '" + folder.string() + "'",
                     "Next: mkdir -p " + folder.string());
  if (access(folder.c_str(), W_OK) != 0 || (fs::exists(file) && access(file.c_str(), W_OK) != 0))
    throw InputError(what + "no permission");
}

void print_config(const po::variables_map& options, const po::options_description& description) {
  std::vector<Setting> settings;
  for (const auto& option : description.options()) {
    const std::string& name = option->long_name();
    if (name == "help" || name == "print-config") continue;
    std::string value, from = "command line";
    if (!options.count(name)) {
      from = "not set";
    } else {
      const po::variable_value& given = options[name];
      if (given.defaulted()) from = "default";
      if (const auto* number = boost::any_cast<int64_t>(&given.value())) value = std::to_string(*number);
      if (const auto* flag = boost::any_cast<bool>(&given.value())) value = *flag ? "true" : "false";
      if (const auto* text = boost::any_cast<std::string>(&given.value())) value = *text;
      if (const auto* texts = boost::any_cast<std::vector<std::string>>(&given.value()))
        value = join(*texts, " ");
    }
    settings.push_back({name, value, from});
  }
  const bool json = options.count("json") && options["json"].as<bool>();
  std::cout << (json ? json_text(settings_json(settings))
                     : settings_table(settings).text(width_of(STDOUT_FILENO)));
}

}  // namespace pipewright
