#include "runtime/groups/group_connection.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <optional>
#include <thread>

#include "graph/error.h"

namespace pipewright {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenChecks{50};

}  // namespace

GroupConnection::GroupConnection(GroupClientSettings settings) : settings_(std::move(settings)) {
  connect();
  send(GroupHello{settings_.server.secret, settings_.generation, settings_.stages, settings_.pipelines});
}

// Rank 0 serves before anyone knows the port, but its queue of connections may be full for a moment.
void GroupConnection::connect() {
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

void GroupConnection::send(const GroupRequest& request) {
  error_code error;
  asio::write(socket_, asio::buffer(text_of(request) + "\n"), error);
  if (error) fail(error);
}

GroupReply GroupConnection::next() { return group_reply_of(next_line()); }

std::string GroupConnection::next_line() {
  std::optional<error_code> ended;
  size_t length = 0;
  asio::async_read_until(socket_, asio::dynamic_buffer(received_), '\n', [&](error_code error, size_t bytes) {
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
void GroupConnection::fail(const error_code& error) {
  error_code ignored;
  socket_.close(ignored);
  throw PeerError("rank 0: the scheduler of groups at " + settings_.host + ":" +
                      std::to_string(settings_.server.port) + ": " + error.message(),
                  "See rank 0's last lines.");
}

}  // namespace pipewright
