// The process of a rank, on this host, or the remote shell that runs it on another.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

/// What is started, and with what beside our own environment.
struct RankStart {
  int64_t rank = 0;
  std::string host;                    ///< "": this one
  std::string command;                 ///< of pipewright-runtime
  std::vector<std::string> arguments;  ///< of the command
  std::vector<std::string> variables;  ///< NAME=VALUE
  std::string secret;                  ///< of the job; never in a command line
  std::string remote_shell;            ///< split at blanks; for another host
  bool results = true;                 ///< rank 0 has our standard output
};

struct RankProcess {
  pid_t pid = -1;
  int output = -1;  ///< reading end of what it writes; whoever gets it closes it
};

/// Leads a process group of its own: a Ctrl-C at the terminal reaches the launcher, which passes it on once.
/// RunError if it cannot be started.
RankProcess start_rank(const RankStart& start);

/// Runs `words` on another host through the remote shell, and waits `patience` at most. Whether it ended
/// well. `output`, if given, gets what it writes on its standard output.
bool run_elsewhere(const std::string& remote_shell, const std::string& host,
                   const std::vector<std::string>& words, std::chrono::milliseconds patience,
                   std::string* output = nullptr);

/// This program, as a command line on another host names it.
std::string program_on_other_hosts();

/// What the ranks of a job have in common that others must not know is in this variable.
inline constexpr const char* kSecretVariable = "PIPEWRIGHT_JOB_SECRET";

}  // namespace pipewright
