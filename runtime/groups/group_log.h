// Which groups averaged their weights in a run: groups.jsonl in its folder (docs/formats.md). Who repeats the
// run needs it: groups depend on who was ready when.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "runtime/groups/group_scheduler.h"

namespace pipewright {

/// By stage: its groups, each the pipelines in it, in an order in which members of several are in them.
using GroupsByStage = std::vector<std::vector<std::vector<int64_t>>>;

inline constexpr const char* kGroupLogName = "groups.jsonl";

/// One thread.
class GroupLog {
 public:
  /// A new file, of what is trained from `first_minibatch` on. RunError if it cannot be written, here and
  /// later.
  GroupLog(std::filesystem::path file, int64_t first_minibatch);
  /// A line for what was decided for its own stage. It is in the file when this returns: a checkpoint may be
  /// written behind it.
  void write(int64_t generation, const GroupDecision& decision);

 private:
  const std::filesystem::path file_;
  std::ofstream stream_;
};

struct LoggedGroups {
  int64_t first_minibatch = 0;  ///< the groups are those of updates from there on
  std::map<int64_t, GroupsByStage> generations;
};
/// InputError with the line if the file is not one.
LoggedGroups read_group_log(const std::filesystem::path& file);

}  // namespace pipewright
