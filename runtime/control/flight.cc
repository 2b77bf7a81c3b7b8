#include "runtime/control/flight.h"

#include <charconv>
#include <limits>
#include <map>
#include <system_error>
#include <utility>

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

namespace {

constexpr int64_t kNoMinibatch = std::numeric_limits<int64_t>::max();

int64_t minibatch_named_in(const std::string& error) {
  static const std::string kWord = "minibatch ";
  const size_t at = error.find(kWord);
  int64_t number = kNoMinibatch;
  if (at != std::string::npos)
    std::from_chars(error.data() + at + kWord.size(), error.data() + error.size(), number);
  return number;
}

}  // namespace

std::string error_of_flights(const std::filesystem::path& run_folder) {
  std::error_code ignored;
  // By the minibatch that the error names, and the rank: several ranks may fail each by itself.
  std::map<std::pair<int64_t, int64_t>, std::string> errors;
  for (const auto& entry : std::filesystem::directory_iterator(run_folder / "flight", ignored)) {
    try {
      const Json json = read_json_file(entry.path());
      const auto found = json.is_object() ? json.find("error") : json.end();
      if (!json.is_object() || found == json.end() || !found->is_string()) continue;
      const auto error = found->get<std::string>();
      const auto rank = json.find("rank");
      if (error.empty() || rank == json.end() || !rank->is_number_integer()) continue;
      const std::string cause = error.substr(0, error.find("; here: "));
      errors[{minibatch_named_in(cause), rank->get<int64_t>()}] = cause;
    } catch (const Error&) {
    }
  }
  return errors.empty() ? "" : errors.begin()->second;
}

}  // namespace pipewright
