#include "runtime/groups/group_messages.h"

#include "graph/error.h"
#include "graph/json.h"
#include "graph/limits.h"

namespace pipewright {
namespace {

constexpr const char* kWhat = "group message";

std::string line_of(const Json& json) { return json.dump() + "\n"; }

// What a stranger writes may be anything.
template <typename Read>
auto read(const std::string& line, Read read) {
  try {
    return read(parse_json(line, kWhat));
  } catch (const Json::exception& error) {
    throw InputError(std::string(kWhat) + ": " + error.what());
  }
}

Json json_of(const Span& span) { return {span.first, span.count}; }

Span span_of(const Json& json) {
  const Span span{json.at(0).get<int64_t>(), json.at(1).get<int64_t>()};
  if (json.size() != 2 || span.first < 0 || span.count < 0 || span.first > kMostCount ||
      span.count > kMostCount)
    throw InputError(std::string(kWhat) + ": minibatches " + json.dump());
  return span;
}

std::chrono::nanoseconds duration_of(const Json& json) {
  const std::chrono::nanoseconds duration(json.get<int64_t>());
  if (duration < std::chrono::nanoseconds(0) || duration > std::chrono::hours(24 * 365))
    throw InputError(std::string(kWhat) + ": a time of " + json.dump() + " ns");
  return duration;
}

}  // namespace

Json to_json(const WeightMeeting& meeting) {
  Json json;
  json["meeting"] = {meeting.active, meeting.passive};
  json["published"] = meeting.published;
  json["added"] = meeting.added;
  json["met"] = meeting.met;
  json["turn"] = meeting.turn;
  return json;
}

WeightMeeting meeting_of(const Json& json, const std::string& where) {
  const Json& pipelines = json.at("meeting");
  const WeightMeeting meeting{pipelines.at(0).get<int64_t>(),      pipelines.at(1).get<int64_t>(),
                              json.at("published").get<int64_t>(), json.at("added").get<int64_t>(),
                              json.at("met").get<int64_t>(),       json.at("turn").get<int64_t>()};
  const auto count = [](int64_t number) { return 0 <= number && number <= kMostCount; };
  const auto pipeline = [](int64_t number) { return 0 <= number && number < kMostRanks; };
  if (pipelines.size() != 2 || !pipeline(meeting.active) || !pipeline(meeting.passive) ||
      !MeetingPartners::is_active(meeting.active) || MeetingPartners::is_active(meeting.passive) ||
      !count(meeting.published) || !count(meeting.added) || meeting.added <= meeting.published ||
      !count(meeting.met) || !count(meeting.turn))
    throw InputError(where + ": no meeting of two pipelines: " + json.dump());
  return meeting;
}

std::string to_line(const GroupRequest& request) {
  Json json;
  if (request.kind == GroupRequest::Kind::kHello) {
    json["secret"] = request.secret;
    json["generation"] = request.generation;
    json["stages"] = request.stages;
    json["pipelines"] = request.pipelines;
    return line_of(json);
  }
  json["pipeline"] = request.pipeline;
  if (request.kind == GroupRequest::Kind::kMinibatches) {
    json["span"] = json_of(request.span);
    json["interval"] = request.interval;
    json["part"] = request.part;
    return line_of(json);
  }
  json["stage"] = request.stage;
  if (request.kind == GroupRequest::Kind::kMet) {
    json.update(to_json(request.meeting));
    json["span"] = request.span.first;
    return line_of(json);
  }
  if (request.kind == GroupRequest::Kind::kAnnounce) json["ready_in_nanoseconds"] = request.ready_in.count();
  if (request.kind == GroupRequest::Kind::kAsk) {
    json["wait_nanoseconds"] = request.patience.wait.count();
    json["update_nanoseconds"] = request.patience.update.count();
  }
  return line_of(json);
}

std::string to_line(const Span& minibatches) { return line_of({{"minibatches", json_of(minibatches)}}); }

std::string to_line(const GroupReply& reply) {
  Json json;
  json["stage"] = reply.stage;
  if (!reply.pipelines.empty()) json["group"] = reply.pipelines;
  return line_of(json);
}

GroupRequest parse_group_request(const std::string& line) {
  return read(line, [](const Json& json) {
    GroupRequest request;
    if (json.contains("secret")) {
      request.kind = GroupRequest::Kind::kHello;
      request.secret = json.at("secret").get<std::string>();
      request.generation = json.at("generation").get<int64_t>();
      request.stages = json.at("stages").get<int64_t>();
      request.pipelines = json.at("pipelines").get<int64_t>();
      return request;
    }
    request.pipeline = json.at("pipeline").get<int64_t>();
    if (json.contains("part")) {
      request.kind = GroupRequest::Kind::kMinibatches;
      request.span = span_of(json.at("span"));
      request.interval = json.at("interval").get<int64_t>();
      request.part = json.at("part").get<int64_t>();
      return request;
    }
    request.stage = json.at("stage").get<int64_t>();
    if (json.contains("meeting")) {
      request.kind = GroupRequest::Kind::kMet;
      request.span.first = json.at("span").get<int64_t>();
      request.meeting = meeting_of(json, kWhat);
      return request;
    }
    request.kind = GroupRequest::Kind::kLeave;
    if (json.contains("ready_in_nanoseconds")) {
      request.kind = GroupRequest::Kind::kAnnounce;
      request.ready_in = duration_of(json.at("ready_in_nanoseconds"));
    } else if (json.contains("wait_nanoseconds")) {
      request.kind = GroupRequest::Kind::kAsk;
      request.patience = {duration_of(json.at("wait_nanoseconds")),
                          duration_of(json.at("update_nanoseconds"))};
    }
    return request;
  });
}

GroupReply parse_group_reply(const std::string& line) {
  return read(line, [](const Json& json) {
    GroupReply reply;
    reply.stage = json.at("stage").get<int64_t>();
    if (json.contains("group")) reply.pipelines = json.at("group").get<std::vector<int64_t>>();
    return reply;
  });
}

Span parse_minibatches(const std::string& line) {
  return read(line, [](const Json& json) { return span_of(json.at("minibatches")); });
}

}  // namespace pipewright
