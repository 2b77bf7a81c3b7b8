#include "runtime/groups/group_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <map>
#include <optional>
#include <thread>

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/groups/group_messages.h"

namespace pipewright {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenChecks{50};

class GroupClient : public Groups {
 public:
  explicit GroupClient(GroupClientSettings settings) : settings_(std::move(settings)) {
    connect();
    GroupRequest hello;
    hello.kind = GroupRequest::Kind::kHello;
    hello.secret = settings_.server.secret;
    hello.generation = settings_.generation;
    hello.stages = settings_.stages;
    hello.pipelines = settings_.pipelines;
    send(hello);
  }

  void ask(int64_t stage, int64_t pipeline, std::chrono::nanoseconds wait) override {
    GroupRequest request;
    request.stage = stage;
    request.pipeline = pipeline;
    request.wait = wait;
    send(request);
  }

  std::vector<int64_t> await(int64_t stage) override {
    std::vector<int64_t> group = reply_of(stage).pipelines;
    PW_CHECK(!group.empty(), "no group of stage " << stage);
    return group;
  }

  void leave(int64_t stage, int64_t pipeline) override {
    GroupRequest request;
    request.kind = GroupRequest::Kind::kLeave;
    request.stage = stage;
    request.pipeline = pipeline;
    send(request);
  }

  void await_left(int64_t stage) override {
    PW_CHECK(reply_of(stage).pipelines.empty(), "a group of stage " << stage << ", which has been left");
  }

 private:
  // Rank 0 serves before anyone knows the port, but its queue of connections may be full for a moment.
  void connect() {
    const auto deadline = Clock::now() + settings_.timeout;
    while (true) {
      error_code error;
      asio::ip::tcp::resolver resolver(context_);
      const auto found = resolver.resolve(settings_.host, std::to_string(settings_.server.port), error);
      if (!error) asio::connect(socket_, found, error);
      if (!error) break;
      if (Clock::now() > deadline) fail(error);
      if (settings_.check) settings_.check();
      std::this_thread::sleep_for(kBetweenChecks);
    }
    socket_.set_option(asio::ip::tcp::no_delay(true));
  }

  void send(const GroupRequest& request) {
    error_code error;
    asio::write(socket_, asio::buffer(to_line(request)), error);
    if (error) fail(error);
  }

  GroupReply reply_of(int64_t stage) {
    while (true) {
      if (const auto found = replies_.find(stage); found != replies_.end()) {
        GroupReply reply = std::move(found->second);
        replies_.erase(found);
        return reply;
      }
      GroupReply reply = parse_group_reply(next_line());
      replies_.emplace(reply.stage, std::move(reply));
    }
  }

  std::string next_line() {
    std::optional<error_code> ended;
    size_t length = 0;
    asio::async_read_until(socket_, asio::dynamic_buffer(received_), '\n',
                           [&](error_code error, size_t bytes) {
                             ended = error;
                             length = bytes;
                           });
    try {
      while (!ended) {
        context_.restart();
        context_.run_one_for(kBetweenChecks);
        if (!ended && settings_.check) settings_.check();
      }
    } catch (...) {  // the read borrows what is on this stack
      error_code ignored;
      socket_.close(ignored);
      context_.restart();
      context_.run();
      throw;
    }
    if (*ended) fail(*ended);
    std::string line = received_.substr(0, length);
    received_.erase(0, length);
    return line;
  }

  // Closed, as a read behind an end of file would wait for ever.
  [[noreturn]] void fail(const error_code& error) {
    error_code ignored;
    socket_.close(ignored);
    throw PeerError("rank 0: the scheduler of groups at " + settings_.host + ":" +
                        std::to_string(settings_.server.port) + ": " + error.message(),
                    "See rank 0's last lines.");
  }

  const GroupClientSettings settings_;
  asio::io_context context_;
  asio::ip::tcp::socket socket_{context_};
  std::string received_;
  std::map<int64_t, GroupReply> replies_;  // by stage, that nobody has awaited yet
};

}  // namespace

std::string to_text(const GroupServerAddress& address) {
  return Json{{"port", address.port}, {"secret", address.secret}}.dump();
}

GroupServerAddress parse_group_server_address(const std::string& text) {
  const Json json = parse_json(text, kGroupsKey);
  return {json.at("port").get<int64_t>(), json.at("secret").get<std::string>()};
}

std::unique_ptr<Groups> connect_groups(GroupClientSettings settings) {
  return std::make_unique<GroupClient>(std::move(settings));
}

}  // namespace pipewright
