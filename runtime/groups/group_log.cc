#include "runtime/groups/group_log.h"

#include <string>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/limits.h"
#include "runtime/groups/group_messages.h"

namespace pipewright {

namespace {

// The lines of what was trained before a minibatch, of a file that says that all had drained there; else
// none. What comes from a file that was cut is as good as none.
class LinesBefore {
 public:
  LinesBefore(const std::filesystem::path& file, int64_t minibatch) : minibatch_(minibatch) {
    std::ifstream stream(file);
    std::vector<std::pair<std::string, Json>> all;
    for (std::string line; std::getline(stream, line);) {
      try {
        all.emplace_back(line, parse_json(line, file.string()));
      } catch (const Error&) {
        break;  // it was being written
      }
    }
    for (const auto& [line, json] : all) find(json);
    if (spans_ == 0) return;
    for (const auto& [line, json] : all)
      if (is_before(json)) text_ += line + "\n";
  }
  const std::string& text() const { return text_; }

 private:
  // The drain before the minibatch: the last of its generation so far, by number.
  void find(const Json& json) {
    if (!json.contains("drained")) return;
    const auto generation = json.at("generation").get<int64_t>();
    const int64_t number = ++drains_[generation];
    if (json.at("drained").get<int64_t>() != minibatch_) return;
    generation_ = generation;
    spans_ = number;
  }

  bool is_before(const Json& json) {
    if (!json.contains("generation")) return true;
    const auto generation = json.at("generation").get<int64_t>();
    if (generation != generation_) return generation < generation_;
    if (json.contains("drained")) return json.at("drained").get<int64_t>() <= minibatch_;
    if (json.contains("span")) return json.at("span").get<int64_t>() < minibatch_;
    int64_t& left = left_[json.at("stage").get<int64_t>()];
    const bool before = left < spans_;
    if (json.contains("left")) ++left;
    return before;
  }

  const int64_t minibatch_;
  int64_t generation_ = 0, spans_ = 0;
  std::map<int64_t, int64_t> drains_;  // by generation
  std::map<int64_t, int64_t> left_;    // by stage, of the generation
  std::string text_;
};

}  // namespace

GroupLog::GroupLog(std::filesystem::path file, int64_t first_minibatch, bool goes_on)
    : file_(std::move(file)) {
  const std::string before = goes_on ? LinesBefore(file_, first_minibatch).text() : std::string();
  if (!before.empty()) write_file(file_, before);  // a further loss finds it as it was, or as it is
  stream_.open(file_, before.empty() ? std::ios::trunc : std::ios::app);
  if (before.empty()) write_line(Json{{"first_minibatch", first_minibatch}}.dump());
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

void GroupLog::write_left(int64_t generation, int64_t stage) {
  write_line(Json{{"generation", generation}, {"stage", stage}, {"left", true}}.dump());
}

void GroupLog::write_drained(int64_t generation, int64_t minibatch) {
  write_line(Json{{"generation", generation}, {"drained", minibatch}}.dump());
}

void GroupLog::write_line(const std::string& line) {
  const std::lock_guard lock(mutex_);
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
  if (json.contains("left") || json.contains("drained")) return;
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
