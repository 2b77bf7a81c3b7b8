#include "runtime/control/flight.h"

#include <map>
#include <system_error>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/json.h"
#include "runtime/transport/process_state.h"

namespace pipewright {

std::filesystem::path flight_file(const std::filesystem::path& run_folder, int64_t rank) {
  return run_folder / "flight" / ("rank-" + std::to_string(rank) + ".json");
}

void write_flight(const std::filesystem::path& run_folder, int64_t rank, const std::string& error,
                  Progress& progress) {
  try {
    const ProgressNow now = progress.now();
    const ProcessName process = this_process();
    Json json;
    json["rank"] = rank;
    json["host"] = process.host;
    json["pid"] = process.pid;
    json["error"] = error;
    const std::string& operation = now.activity.operation;
    json["next"] = {{"operation", operation.empty() ? "between two operations" : operation},
                    {"peers", now.activity.peers},
                    {"seconds", now.seconds}};
    json["events"] = Json::array();
    for (const Progress::Event& event : progress.events()) {
      json["events"].push_back({{"operation", event.operation},
                                {"begun_seconds", event.begun_seconds},
                                {"lasted_seconds", event.lasted_seconds}});
    }
    std::filesystem::create_directory(run_folder /
                                      "flight");  // a run folder that has gone does not come back for it
    write_file(flight_file(run_folder, rank), json_text(json));
  } catch (const std::exception&) {
  }
}

std::string error_of_flights(const std::filesystem::path& run_folder) {
  std::error_code ignored;
  std::map<std::string, std::string> errors;  // by file
  for (const auto& entry : std::filesystem::directory_iterator(run_folder / "flight", ignored)) {
    try {
      const Json json = read_json_file(entry.path());
      const auto found = json.is_object() ? json.find("error") : json.end();
      if (!json.is_object() || found == json.end() || !found->is_string()) continue;
      const auto error = found->get<std::string>();
      if (!error.empty()) errors[entry.path().filename().string()] = error.substr(0, error.find("; here: "));
    } catch (const Error&) {
    }
  }
  return errors.empty() ? "" : errors.begin()->second;
}

}  // namespace pipewright
