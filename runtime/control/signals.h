// SIGINT and SIGTERM, as the processes of a job hear them.
#pragma once

#include <atomic>
#include <string>

#include "graph/error.h"

namespace pipewright {

/// Set by the handlers that install_signal_handlers() installs: the signal's number, or 0.
extern std::atomic<int> received_signal;

/// The launcher says its process to the ranks that it starts on its host: in this variable.
inline constexpr const char* kLauncherVariable = "PIPEWRIGHT_LAUNCHER_PID";

/// SIGINT and SIGTERM set received_signal; a second one of them ends the process at once. Whoever ends a job
/// may send the signal to each of its processes and to those that pass it on, so copies are no second signal:
/// what comes within a second of the first, and what the launcher passes on however late. SIGXFSZ is ignored:
/// a file that may not grow is an error of the write.
void install_signal_handlers();

/// From here on SIGHUP, of a terminal that was closed, is as SIGTERM, unless it is ignored (nohup).
void terminate_at_hangup();

/// Until install_signal_handlers() SIGINT and SIGTERM end the process at once, with their exit code and a
/// line on standard error, "NAME: error: terminated (SIGTERM): nothing had been trained". From the first
/// instructions of the program on: nothing of it need be there yet.
void say_when_ended_early(const char* name) noexcept;

/// From here on a file whose server does not answer ends the process (graph/file_watch.h): two seconds after
/// `timeout_seconds`, so that a rank's watchdog, which tells the other ranks, comes first; or a few seconds
/// behind a signal that the handlers took.
void await_files_for(double timeout_seconds);

/// Of SIGINT, SIGTERM: how a process that they end says so.
ExitCode exit_code_of_signal(int signal);
bool is_interruption(ExitCode code);      ///< such a code
std::string words_of_signal(int signal);  ///< "interrupted (SIGINT)", "terminated (SIGTERM)"

}  // namespace pipewright
