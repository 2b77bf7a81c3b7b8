#include "runtime/transport/process_state.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "graph/error.h"
#include "graph/json.h"

namespace pipewright {
namespace {

struct Stat {
  char state = 0;
  int64_t start_ticks = 0;
};

// /proc/PID/stat: "PID (NAME) STATE ...", start time the 22nd word. NAME may hold blanks and brackets.
std::optional<Stat> stat_of(int64_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream words(text.substr(name_end + 1));
  Stat stat;
  words >> stat.state;
  std::string word;
  for (int i = 4; i < 22; ++i) words >> word;
  words >> stat.start_ticks;
  return stat;
}

ProcessState state_of(const Stat& stat) {
  switch (stat.state) {
    case 'T':
    case 't':
      return ProcessState::kStopped;
    case 'Z':
    case 'X':
      return ProcessState::kGone;
    default:
      return ProcessState::kRunning;
  }
}

std::string identity_of(const std::string& host) {
  char names[128] = {};  // containers of one machine do not see each other's processes
  const ssize_t length = readlink("/proc/self/ns/pid", names, sizeof names - 1);
  return host + "/" + machine_identity() + "/" +
         std::string(names, length > 0 ? static_cast<size_t>(length) : 0);
}

}  // namespace

std::string machine_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot;
}

std::string ProcessName::to_text() const {
  Json json;
  json["host"] = host;
  json["identity"] = identity;
  json["pid"] = pid;
  json["start_ticks"] = start_ticks;
  return json.dump();
}

ProcessName ProcessName::from_text(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    return {json.at("host").get<std::string>(), json.at("identity").get<std::string>(),
            json.at("pid").get<int64_t>(), json.at("start_ticks").get<int64_t>()};
  } catch (const Json::exception&) {
    throw PeerError("'" + text + "' is no name of a process", "do all ranks run the same version?");
  }
}

ProcessName this_process() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  const char* given = std::getenv("PIPEWRIGHT_HOST");
  ProcessName process;
  process.host = given && *given ? given : name;
  process.identity = identity_of(process.host);
  process.pid = getpid();
  if (const auto stat = stat_of(process.pid)) process.start_ticks = stat->start_ticks;
  return process;
}

int64_t bytes_to_disk() {
  std::ifstream in("/proc/self/io");
  std::string key;
  int64_t value = 0;
  while (in >> key >> value) {
    if (key == "write_bytes:") return value;
  }
  return 0;
}

ProcessState state_of_pid(int64_t pid) {
  const auto stat = stat_of(pid);
  return stat ? state_of(*stat) : ProcessState::kGone;
}

ProcessState state_of(const ProcessName& process) {
  static const std::string here = this_process().identity;
  if (process.identity != here) return ProcessState::kUnknown;
  const auto stat = stat_of(process.pid);
  if (!stat || stat->start_ticks != process.start_ticks) return ProcessState::kGone;
  return state_of(*stat);
}

}  // namespace pipewright
