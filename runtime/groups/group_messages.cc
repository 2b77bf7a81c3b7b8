#include "runtime/groups/group_messages.h"

#include "graph/error.h"
#include "graph/limits.h"
#include "runtime/messages/message_codec.h"

namespace pipewright {
namespace {

constexpr const char* kWhat = "group message";

Json write_span(const Span& span) { return {span.first, span.count}; }

Span read_span(const Json& json) {
  const Span span{json.at(0).get<int64_t>(), json.at(1).get<int64_t>()};
  if (json.size() != 2 || span.first < 0 || span.count < 0 || span.first > kMostCount ||
      span.count > kMostCount)
    throw InputError(std::string(kWhat) + ": minibatches " + json.dump());
  return span;
}

std::chrono::nanoseconds read_duration(const Json& json) {
  const std::chrono::nanoseconds duration(json.get<int64_t>());
  if (duration < std::chrono::nanoseconds(0) || duration > std::chrono::hours(24 * 365))
    throw InputError(std::string(kWhat) + ": a time of " + json.dump() + " ns");
  return duration;
}

Json write_hello(const GroupHello& hello) {
  return {hello.secret, hello.generation, hello.stages, hello.pipelines};
}
GroupHello read_hello(const Json& json) {
  return {json.at(0).get<std::string>(), json.at(1), json.at(2), json.at(3)};
}

Json write_expected(const UpdateExpected& update) {
  return {update.stage, update.pipeline, update.ready_in.count()};
}
UpdateExpected read_expected(const Json& json) { return {json.at(0), json.at(1), read_duration(json.at(2))}; }

Json write_made(const UpdateMade& update) {
  return {update.stage, update.pipeline, update.patience.wait.count(), update.patience.update.count()};
}
UpdateMade read_made(const Json& json) {
  return {json.at(0), json.at(1), {read_duration(json.at(2)), read_duration(json.at(3))}};
}

Json write_left(const StageLeft& left) { return {left.stage, left.pipeline}; }
StageLeft read_left(const Json& json) { return {json.at(0), json.at(1)}; }

Json write_wanted(const MinibatchesWanted& wanted) {
  return {write_span(wanted.span), wanted.interval, wanted.pipeline, wanted.part};
}
MinibatchesWanted read_wanted(const Json& json) {
  return {read_span(json.at(0)), json.at(1), json.at(2), json.at(3)};
}

Json write_met(const PipelinesMet& met) { return {met.stage, met.span, to_json(met.meeting)}; }
PipelinesMet read_met(const Json& json) { return {json.at(0), json.at(1), meeting_of(json.at(2), kWhat)}; }

Json write_formed(const GroupFormed& formed) { return {formed.stage, formed.pipelines}; }
GroupFormed read_formed(const Json& json) { return {json.at(0), json.at(1).get<std::vector<int64_t>>()}; }

Json write_left_by_all(const StageLeftByAll& left) { return left.stage; }
StageLeftByAll read_left_by_all(const Json& json) { return {json.get<int64_t>()}; }

Json write_given(const MinibatchesGiven& given) { return write_span(given.minibatches); }
MinibatchesGiven read_given(const Json& json) { return {read_span(json)}; }

const std::tuple kRequestKinds = {
    MessageKind<GroupHello>{"hello", write_hello, read_hello},
    MessageKind<UpdateExpected>{"update expected", write_expected, read_expected},
    MessageKind<UpdateMade>{"update made", write_made, read_made},
    MessageKind<StageLeft>{"stage left", write_left, read_left},
    MessageKind<MinibatchesWanted>{"minibatches wanted", write_wanted, read_wanted},
    MessageKind<PipelinesMet>{"pipelines met", write_met, read_met},
};

const std::tuple kReplyKinds = {
    MessageKind<GroupFormed>{"group formed", write_formed, read_formed},
    MessageKind<StageLeftByAll>{"stage left by all", write_left_by_all, read_left_by_all},
    MessageKind<MinibatchesGiven>{"minibatches given", write_given, read_given},
};

}  // namespace

std::string text_of(const GroupRequest& request) { return encoded(request, kRequestKinds); }
std::string text_of(const GroupReply& reply) { return encoded(reply, kReplyKinds); }

GroupRequest group_request_of(const std::string& text) { return decoded<GroupRequest>(text, kRequestKinds); }
GroupReply group_reply_of(const std::string& text) { return decoded<GroupReply>(text, kReplyKinds); }

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

}  // namespace pipewright
