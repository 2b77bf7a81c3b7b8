#include "runtime/groups/group_client.h"

#include <map>
#include <mutex>

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/groups/group_connection.h"
#include "runtime/groups/group_messages.h"

namespace pipewright {
namespace {

class GroupClient : public Groups {
 public:
  explicit GroupClient(GroupClientSettings settings) : connection_(std::move(settings)) {}

  void announce(int64_t stage, int64_t pipeline, std::chrono::nanoseconds ready_in) override {
    GroupRequest request;
    request.kind = GroupRequest::Kind::kAnnounce;
    request.stage = stage;
    request.pipeline = pipeline;
    request.ready_in = ready_in;
    connection_.send(request);
  }

  void ask(int64_t stage, int64_t pipeline, GroupPatience patience) override {
    GroupRequest request;
    request.stage = stage;
    request.pipeline = pipeline;
    request.patience = patience;
    connection_.send(request);
  }

  std::vector<int64_t> await(int64_t stage) override {
    std::vector<int64_t> group = reply_of(stage).pipelines;
    PW_CHECK(!group.empty(), "no group of stage " << stage);
    return group;
  }

  void tell(int64_t stage, int64_t span, const WeightMeeting& meeting) override {
    GroupRequest request;
    request.kind = GroupRequest::Kind::kMet;
    request.stage = stage;
    request.pipeline = meeting.active;
    request.span.first = span;
    request.meeting = meeting;
    connection_.send(request);
  }

  void leave(int64_t stage, int64_t pipeline) override {
    GroupRequest request;
    request.kind = GroupRequest::Kind::kLeave;
    request.stage = stage;
    request.pipeline = pipeline;
    connection_.send(request);
  }

  void await_left(int64_t stage) override {
    PW_CHECK(reply_of(stage).pipelines.empty(), "a group of stage " << stage << ", which has been left");
  }

 private:
  GroupReply reply_of(int64_t stage) {
    while (true) {
      if (const auto found = replies_.find(stage); found != replies_.end()) {
        GroupReply reply = std::move(found->second);
        replies_.erase(found);
        return reply;
      }
      GroupReply reply = parse_group_reply(connection_.next_line());
      replies_.emplace(reply.stage, std::move(reply));
    }
  }

  GroupConnection connection_;
  std::map<int64_t, GroupReply> replies_;  // by stage, that nobody has awaited yet
};

// Whoever asks waits for the answer, which comes at once.
class MinibatchClient : public MinibatchSource {
 public:
  explicit MinibatchClient(GroupClientSettings settings) : connection_(std::move(settings)) {}

  Span part(Span span, int64_t interval, int64_t pipeline, int64_t number) override {
    GroupRequest request;
    request.kind = GroupRequest::Kind::kMinibatches;
    request.pipeline = pipeline;
    request.span = span;
    request.interval = interval;
    request.part = number;
    const std::lock_guard lock(mutex_);
    connection_.send(request);
    return parse_minibatches(connection_.next_line());
  }

 private:
  std::mutex mutex_;
  GroupConnection connection_;
};

}  // namespace

std::string to_text(const GroupServerAddress& address) {
  return Json{{"port", address.port}, {"secret", address.secret}}.dump();
}

GroupServerAddress parse_group_server_address(const std::string& text) {
  const Json json = parse_json(text, kGroupsKey);
  return {json.at("port").get<int64_t>(), json.at("secret").get<std::string>()};
}

std::unique_ptr<MinibatchSource> connect_minibatches(GroupClientSettings settings) {
  return std::make_unique<MinibatchClient>(std::move(settings));
}

std::unique_ptr<Groups> connect_groups(GroupClientSettings settings) {
  return std::make_unique<GroupClient>(std::move(settings));
}

}  // namespace pipewright
