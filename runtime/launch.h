// All ranks of a job on this host, each a process of its own.
#pragma once

#include <string>
#include <vector>

#include "runtime/job.h"

namespace pipewright {

struct LaunchSettings {
  std::vector<std::string> train_arguments;  ///< as given to `train`, without rank and rendezvous
  bool pin = true;                           ///< one core a rank, if there are enough cores
};

/// Serves the job's store on a free port, starts one `train` process per rank of the plan (rank K's output
/// goes to rank-K.log in the run folder, rank 0's also to standard error) and waits for all of them. When one
/// fails or is killed the others are told and end; those that do not within the job's time-out are killed.
/// SIGINT and SIGTERM are passed on. Throws what ended the first rank that failed: its code, its message.
/// Leaves no process behind.
void launch(const Job& job, const LaunchSettings& settings);

/// Cores that the processes of this job may use on this host: all of them, also for a rank that is bound to
/// one.
int64_t host_cores();

/// Binds this process to the cores that the launcher chose for it, if one did. Called before any thread
/// starts.
void take_cores_from_launcher();

}  // namespace pipewright
