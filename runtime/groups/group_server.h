// The group scheduler of a job as a server: one event loop, on a thread of rank 0's process. Who asks for a
// group has a parked reply, not a thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "graph/sync_rules.h"
#include "runtime/groups/group_scheduler.h"

namespace pipewright {

class GroupServer {
 public:
  struct Settings {
    std::string host = "127.0.0.1";  ///< where this host is found (bind_socket)
    std::string secret;              ///< connections that do not begin with it are closed
    PartialReduceRules rules;
    /// On the server's thread, before anyone hears of it: what the plan of this generation decided at a
    /// stage. In the order in which members of more than one group are in them.
    std::function<void(int64_t generation, const GroupDecision& decision)> decided;
  };
  /// Serves until the object dies, on a free port. RunError if there is none.
  explicit GroupServer(Settings settings);
  ~GroupServer();

  int64_t port() const;
  /// Of all generations that were served. Any thread.
  GroupStatistics statistics() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace pipewright
