// Groups and minibatches, asked of the job's group server.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/groups/groups.h"
#include "runtime/schedule/pipeline_span.h"

namespace pipewright {

/// What rank 0 tells the others (Topic::kGroupServer).
struct GroupServerAddress {
  int64_t port = 0;  ///< of rank 0's host
  std::string secret;
};
std::string to_text(const GroupServerAddress& address);
GroupServerAddress parse_group_server_address(const std::string& text);

struct GroupClientSettings {
  std::string host;
  GroupServerAddress server;
  int64_t generation = 0;                    ///< of the plan that groups are asked for
  int64_t stages = 1, pipelines = 2;         ///< of that plan
  std::chrono::milliseconds timeout{30000};  ///< to connect
  /// Called several times a second while this waits; may throw, which ends the wait.
  std::function<void()> check;
};

/// PeerError here and from all calls if the server (rank 0) cannot be reached.
std::unique_ptr<Groups> connect_groups(GroupClientSettings settings);
std::unique_ptr<MinibatchSource> connect_minibatches(GroupClientSettings settings);

}  // namespace pipewright
