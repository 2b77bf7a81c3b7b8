// Processes of a job by name, and what the kernel says of one on the same host: a rank that died and one that
// was stopped look alike from afar.
#pragma once

#include <cstdint>
#include <string>

namespace pipewright {

struct ProcessName {
  std::string host;      ///< for people
  std::string identity;  ///< equal for processes that can share memory and see each other in /proc
  int64_t pid = 0;
  int64_t start_ticks = 0;  ///< since boot: tells a process from a later one with the same pid

  std::string to_text() const;
  /// The inverse; PeerError for anything else.
  static ProcessName from_text(const std::string& text);
};

/// PIPEWRIGHT_HOST in the environment stands for the host's name, and keeps processes of one machine apart
/// that are to be on different hosts.
ProcessName this_process();

/// Equal for all processes of one machine, in whatever containers; "" where the system does not tell.
std::string machine_identity();

enum class ProcessState {
  kRunning,
  kStopped,  ///< by SIGSTOP, a terminal or a debugger
  kGone,     ///< ended, also if nobody has collected its exit code yet
  kUnknown,  ///< on another host
};
ProcessState state_of(const ProcessName& process);
/// state_of on this host, by number alone.
ProcessState state_of_pid(int64_t pid);

/// Bytes that this process has so far given to files on a disk; 0 where the system does not tell.
int64_t bytes_to_disk();

}  // namespace pipewright
