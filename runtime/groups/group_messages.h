// What ranks ask of the group server and tell it, and what it answers: a type each, and the form in which
// they travel, as between ranks (runtime/messages/message_codec.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "graph/json.h"
#include "runtime/schedule/shape.h"
#include "runtime/side_by_side/group_patience.h"
#include "runtime/side_by_side/meetings.h"

namespace pipewright {

// From a rank.
/// The first of a connection.
struct GroupHello {
  std::string secret;
  int64_t generation = 0;             ///< of the plan
  int64_t stages = 0, pipelines = 0;  ///< the plan's
};
/// As GroupScheduler::announce.
struct UpdateExpected {
  int64_t stage = 0;
  int64_t pipeline = 0;
  std::chrono::nanoseconds ready_in{0};
};
/// As GroupScheduler::arrive; GroupFormed is the answer.
struct UpdateMade {
  int64_t stage = 0;
  int64_t pipeline = 0;
  GroupPatience patience;
};
/// As GroupScheduler::leave; StageLeftByAll is the answer.
struct StageLeft {
  int64_t stage = 0;
  int64_t pipeline = 0;
};
/// As MinibatchSource::part; MinibatchesGiven is the answer.
struct MinibatchesWanted {
  Span span;
  int64_t interval = 1;
  int64_t pipeline = 0;
  int64_t part = 0;
};
/// In the span that begins with the minibatch `span`.
struct PipelinesMet {
  int64_t stage = 0;
  int64_t span = 0;
  WeightMeeting meeting;
};
using GroupRequest =
    std::variant<GroupHello, UpdateExpected, UpdateMade, StageLeft, MinibatchesWanted, PipelinesMet>;

// To a rank.
struct GroupFormed {
  int64_t stage = 0;
  std::vector<int64_t> pipelines;
};
struct StageLeftByAll {
  int64_t stage = 0;
};
struct MinibatchesGiven {
  Span minibatches;
};
using GroupReply = std::variant<GroupFormed, StageLeftByAll, MinibatchesGiven>;

/// One line. Without a schema: ranks of a job are of one build.
std::string text_of(const GroupRequest& request);
std::string text_of(const GroupReply& reply);
/// InputError if it is none: what a stranger writes may be anything.
GroupRequest group_request_of(const std::string& text);
GroupReply group_reply_of(const std::string& text);

/// A meeting as it is written anywhere. InputError (`where`) or Json::exception if it is none.
Json to_json(const WeightMeeting& meeting);
WeightMeeting meeting_of(const Json& json, const std::string& where);

}  // namespace pipewright
