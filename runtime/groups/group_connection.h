// A rank's connection to the job's group server.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <string>

#include "runtime/groups/group_client.h"
#include "runtime/groups/group_messages.h"

namespace pipewright {

/// One thread at a time. PeerError from all calls if the server (rank 0) cannot be reached.
class GroupConnection {
 public:
  /// Connects and says hello.
  explicit GroupConnection(GroupClientSettings settings);
  void send(const GroupRequest& request);
  /// Waits for the next one, and throws what settings.check throws meanwhile.
  GroupReply next();

 private:
  void connect();
  std::string next_line();
  [[noreturn]] void fail(const boost::system::error_code& error);

  const GroupClientSettings settings_;
  boost::asio::io_context context_;
  boost::asio::ip::tcp::socket socket_{context_};
  std::string received_;
};

}  // namespace pipewright
