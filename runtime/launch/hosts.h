// Which hosts run the ranks of a job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

/// A rank's host, and its place among the ranks there.
struct HostPlace {
  std::string host;
  int64_t local_rank = 0;
  int64_t local_ranks = 1;
};

struct HostSlots {
  std::string host;
  int64_t slots = 1;
};

/// A hosts file: a line each, "HOST" or "HOST slots=N" (default 1), as Open MPI's; "#" begins a comment.
/// InputError for a file that cannot be read, a line of another form, or a host that is there twice.
std::vector<HostSlots> read_hosts(const std::string& file);

/// Ranks fill the hosts of the file in order. InputError also for fewer slots than ranks.
std::vector<HostPlace> place_ranks_on_hosts(const std::string& file, int64_t ranks);

/// `words` as one line that a POSIX shell splits into the same words.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace pipewright
