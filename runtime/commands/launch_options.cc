#include "runtime/commands/launch_options.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include "graph/error.h"
#include "runtime/control/control.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

constexpr const char* kFlags[] = {"no-pin", "watch"};
constexpr const char* kWithValue[] = {"ranks", "hosts", "rsh", "master-addr", "report"};

}  // namespace

void add_host_options(po::options_description* description) {
  description->add_options()("hosts", po::value<std::string>()->value_name("FILE"),
                             "ranks on other hosts too: lines HOST or HOST slots=N")(
      "rsh", po::value<std::string>()->value_name("COMMAND"),
      "starts a command on another host, as COMMAND HOST LINE; default: ssh -o BatchMode=yes");
}

std::string remote_shell_from(const po::variables_map& options) {
  if (!options.count("rsh")) return LaunchSettings().remote_shell;
  if (!options.count("hosts")) throw InputError("--rsh goes with --hosts", "give --hosts FILE");
  const auto shell = options["rsh"].as<std::string>();
  if (shell.find_first_not_of(' ') == std::string::npos) throw InputError("--rsh is empty");
  return shell;
}

po::options_description launch_option_descriptions() {
  po::options_description description("Ranks");
  description.add_options()("ranks", po::value<int64_t>()->value_name("N"),
                            "processes to start; default: as many as the plan says")(
      "no-pin", po::bool_switch(), "do not bind ranks to cores");
  add_host_options(&description);
  description.add_options()("master-addr", po::value<std::string>()->value_name("H"),
                            "with --hosts: this host's address for the others; default: its name");
  return description;
}

LaunchSettings launch_settings_from(const po::variables_map& options) {
  LaunchSettings settings;
  settings.pin = !options["no-pin"].as<bool>();
  if (options.count("hosts")) settings.hosts = options["hosts"].as<std::string>();
  settings.remote_shell = remote_shell_from(options);
  if (options.count("master-addr")) settings.master_address = options["master-addr"].as<std::string>();
  if (settings.hosts.empty() && options.count("master-addr")) {
    throw InputError("--master-addr goes with --hosts", "give --hosts FILE");
  }
  return settings;
}

std::optional<int64_t> ranks_from(const po::variables_map& options, int64_t least) {
  if (!options.count("ranks")) return std::nullopt;
  const auto ranks = options["ranks"].as<int64_t>();
  constexpr int64_t kMost = 1 << 20;
  if (ranks < least || ranks > kMost) {
    throw InputError("--ranks " + std::to_string(ranks) + " is not in " + std::to_string(least) + ".." +
                     std::to_string(kMost));
  }
  return ranks;
}

std::vector<std::string> without_launch_options(const std::vector<std::string>& words) {
  std::vector<std::string> rest;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto is = [&](const std::string& name) { return words[i] == "--" + name; };
    const auto has = [&](const std::string& name) { return words[i].rfind("--" + name + "=", 0) == 0; };
    if (std::any_of(std::begin(kFlags), std::end(kFlags), is) ||
        std::any_of(std::begin(kWithValue), std::end(kWithValue), has))
      continue;
    if (std::any_of(std::begin(kWithValue), std::end(kWithValue), is)) {
      ++i;
      continue;
    }
    rest.push_back(words[i]);
  }
  return rest;
}

ScratchFolder::ScratchFolder(const std::string& command) {
  std::string name =
      (std::filesystem::temp_directory_path() / ("pipewright-" + command + "-XXXXXX")).string();
  if (!mkdtemp(name.data())) throw RunError(name + ": cannot be made: " + std::strerror(errno));
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (std::uncaught_exceptions() > 0 && received_signal == 0)
    std::filesystem::remove(path_, ignored);  // unless it has something that tells more of the error
  else
    std::filesystem::remove_all(path_, ignored);
}

}  // namespace pipewright
