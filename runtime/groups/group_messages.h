// What ranks and the group server write to each other: a JSON document a line.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/json.h"
#include "runtime/schedule/shape.h"
#include "runtime/side_by_side/group_patience.h"
#include "runtime/side_by_side/meetings.h"

namespace pipewright {

/// From a rank. The first of a connection is kHello.
struct GroupRequest {
  enum class Kind { kHello, kAnnounce, kAsk, kLeave, kMinibatches, kMet };
  Kind kind = Kind::kAsk;
  std::string secret;                    ///< of a hello
  int64_t generation = 0;                ///< of a hello: of the plan
  int64_t stages = 0, pipelines = 0;     ///< of a hello: the plan's
  int64_t stage = 0;                     ///< of kAnnounce, kAsk, kLeave, kMet
  int64_t pipeline = 0;                  ///< of all but a hello
  std::chrono::nanoseconds ready_in{0};  ///< of kAnnounce
  GroupPatience patience;                ///< of kAsk
  Span span;  ///< of kMinibatches, as the following: MinibatchQueue; of kMet: its begin
  int64_t interval = 1, part = 0;
  WeightMeeting meeting;  ///< of kMet
};
/// To a rank, about one of its stages.
struct GroupReply {
  int64_t stage = 0;
  std::vector<int64_t> pipelines;  ///< the group asked for; none: the stage has been left
};

/// A meeting as it is written anywhere. InputError (`where`) or Json::exception if it is none.
Json to_json(const WeightMeeting& meeting);
WeightMeeting meeting_of(const Json& json, const std::string& where);

/// With a newline at the end.
std::string to_line(const GroupRequest& request);
std::string to_line(const GroupReply& reply);
/// The answer to kMinibatches.
std::string to_line(const Span& minibatches);
/// InputError if it is none.
GroupRequest parse_group_request(const std::string& line);
GroupReply parse_group_reply(const std::string& line);
Span parse_minibatches(const std::string& line);

}  // namespace pipewright
