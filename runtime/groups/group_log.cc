#include "runtime/groups/group_log.h"

#include <string>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/limits.h"
#include "runtime/groups/group_messages.h"

namespace pipewright {

GroupLog::GroupLog(std::filesystem::path file, int64_t first_minibatch)
    : file_(std::move(file)), stream_(file_, std::ios::trunc) {
  if (!stream_)
    throw RunError(file_.string() + ": cannot be written", "Is the disk full, or the folder gone?");
  stream_ << Json{{"first_minibatch", first_minibatch}}.dump() << std::endl;
}

void GroupLog::write(int64_t generation, const GroupDecision& decision) {
  if (decision.passed_on) return;
  Json json;
  json["generation"] = generation;
  json["stage"] = decision.stage;
  json["group"] = decision.pipelines;
  write_line(json.dump());
}

void GroupLog::write(int64_t generation, const Span& span, int64_t pipeline, const Span& part) {
  Json json;
  json["generation"] = generation;
  json["span"] = span.first;
  json["pipeline"] = pipeline;
  json["minibatches"] = {part.first, part.count};
  write_line(json.dump());
}

void GroupLog::write(int64_t generation, int64_t stage, int64_t span, const WeightMeeting& meeting) {
  Json json = to_json(meeting);
  json["generation"] = generation;
  json["span"] = span;
  json["stage"] = stage;
  write_line(json.dump());
}

void GroupLog::write_line(const std::string& line) {
  stream_ << line << std::endl;
  if (!stream_)
    throw RunError(file_.string() + ": cannot be written", "Is the disk full, or the folder gone?");
}

namespace {

template <typename Kind>
std::vector<Kind>& of_stage(std::vector<std::vector<Kind>>& stages, const Json& json,
                            const std::string& where) {
  const auto stage = json.at("stage").get<int64_t>();
  if (stage < 0 || stage >= kMostRanks) throw InputError(where + ": stage " + std::to_string(stage));
  if (static_cast<int64_t>(stages.size()) <= stage) stages.resize(static_cast<size_t>(stage) + 1);
  return stages[static_cast<size_t>(stage)];
}

void read_line(const Json& json, const std::string& where, LoggedGroups& logged) {
  const auto generation = json.at("generation").get<int64_t>();
  if (json.contains("meeting")) {
    auto& stages = logged.meetings[generation][json.at("span").get<int64_t>()];
    of_stage(stages, json, where).push_back(meeting_of(json, where));
  } else if (json.contains("span")) {
    const auto& part = json.at("minibatches");
    logged.parts[generation][json.at("span").get<int64_t>()][json.at("pipeline").get<int64_t>()].push_back(
        {part.at(0).get<int64_t>(), part.at(1).get<int64_t>()});
  } else {
    of_stage(logged.generations[generation], json, where)
        .push_back(json.at("group").get<std::vector<int64_t>>());
  }
}

}  // namespace

LoggedGroups read_group_log(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) {
    throw InputError(file.string() + ": cannot be read",
                     "It is written by runs whose --sync makes groups; without it they cannot be repeated.");
  }
  LoggedGroups logged;
  int64_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    const std::string where = file.string() + " line " + std::to_string(++number);
    try {
      const Json json = parse_json(line, where);
      if (number == 1) {
        logged.first_minibatch = json.at("first_minibatch").get<int64_t>();
        continue;
      }
      read_line(json, where, logged);
    } catch (const Json::exception& error) {
      throw InputError(where + ": " + error.what(), "Was it cut, or does it belong to another run?");
    }
  }
  return logged;
}

}  // namespace pipewright
