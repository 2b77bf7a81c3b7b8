#include "runtime/groups/group_client.h"

#include <map>
#include <mutex>
#include <variant>

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
    connection_.send(UpdateExpected{stage, pipeline, ready_in});
  }
  void ask(int64_t stage, int64_t pipeline, GroupPatience patience) override {
    connection_.send(UpdateMade{stage, pipeline, patience});
  }
  std::vector<int64_t> await(int64_t stage) override { return await<GroupFormed>(stage).pipelines; }
  void tell(int64_t stage, int64_t span, const WeightMeeting& meeting) override {
    connection_.send(PipelinesMet{stage, span, meeting});
  }
  void leave(int64_t stage, int64_t pipeline) override { connection_.send(StageLeft{stage, pipeline}); }
  void await_left(int64_t stage) override { await<StageLeftByAll>(stage); }

 private:
  template <typename Reply>
  Reply await(int64_t stage) {
    while (replies_.count(stage) == 0) take(connection_.next());
    const GroupReply reply = std::move(replies_.extract(stage).mapped());
    const auto* awaited = std::get_if<Reply>(&reply);
    PW_CHECK(awaited != nullptr, "another answer about stage " << stage << ": " << text_of(reply));
    return *awaited;
  }

  void take(GroupReply reply) {
    const int64_t stage = std::visit(
        []<typename T>(const T& told) -> int64_t {
          if constexpr (requires { told.stage; }) return told.stage;
          return -1;
        },
        reply);
    PW_CHECK(replies_.emplace(stage, std::move(reply)).second, "two answers about stage " << stage);
  }

  GroupConnection connection_;
  std::map<int64_t, GroupReply> replies_;  // by stage, that nobody has awaited yet
};

// Whoever asks waits for the answer, which comes at once.
class MinibatchClient : public MinibatchSource {
 public:
  explicit MinibatchClient(GroupClientSettings settings) : connection_(std::move(settings)) {}

  Span part(Span span, int64_t interval, int64_t pipeline, int64_t number) override {
    const std::lock_guard lock(mutex_);
    connection_.send(MinibatchesWanted{span, interval, pipeline, number});
    const GroupReply reply = connection_.next();
    const auto* given = std::get_if<MinibatchesGiven>(&reply);
    PW_CHECK(given != nullptr, "another answer about minibatches: " << text_of(reply));
    return given->minibatches;
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
  const Json json = parse_json(text, "address of the group server");
  return {json.at("port").get<int64_t>(), json.at("secret").get<std::string>()};
}

std::unique_ptr<MinibatchSource> connect_minibatches(GroupClientSettings settings) {
  return std::make_unique<MinibatchClient>(std::move(settings));
}

std::unique_ptr<Groups> connect_groups(GroupClientSettings settings) {
  return std::make_unique<GroupClient>(std::move(settings));
}

}  // namespace pipewright
