// All ranks of a job on this host, each a process of its own.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/kept_state.h"
#include "runtime/job/job.h"

namespace pipewright {

struct LaunchSettings {
  std::string command = "train";       ///< what each rank runs
  std::vector<std::string> arguments;  ///< of the command, without rank and rendezvous
  bool results = true;                 ///< what rank 0 prints as result goes to standard output
  bool pin = true;                     ///< one core a rank, where a host has enough cores
  /// A hosts file (runtime/launch/hosts.h); "": all ranks on this host.
  std::string hosts;
  /// Starts a command on another host: called as REMOTE_SHELL HOST COMMAND_LINE, split at blanks.
  std::string remote_shell = "ssh -o BatchMode=yes";
  /// Called many times a second by the launcher's thread; empty: not.
  std::function<void()> often;
  /// Gets what rank 0 prints, but for its errors and its progress, which it leaves out; empty: standard error
  /// gets it, with its progress.
  std::function<void(std::string_view text)> show;
  std::string master_address;  ///< of this host, for the others; "" = its name (127.0.0.1 without `hosts`)
};

/// Serves the job's store on a free port, starts one process per rank of the plan (rank K's output
/// goes to rank-K.log in the run folder, rank 0's also to standard error) and waits for all of them. On other
/// hosts ranks run in a folder of the same name, with the program of the same path. When one
/// fails or is killed the others are told and end; those that do not within the job's time-out are killed.
/// SIGINT and SIGTERM are passed on; to other hosts over the store. Throws what ended the first rank that
/// failed: its code, its message. Leaves no process behind.
void launch(const Job& job, const LaunchSettings& settings);

/// Through the remote shell, if there are hosts to ask; those that do not answer within 5 s are not.
OnHost on_host_of(const LaunchSettings& settings);

}  // namespace pipewright
