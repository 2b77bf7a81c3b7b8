// The processes of one attempt of a job, as its launcher has them: what they are told, what they print, their
// signals and their ends. What follows from an end is the launcher's business (launch.cc).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/coordinator/attempts.h"
#include "runtime/launch/launch.h"
#include "runtime/launch/rank_output.h"
#include "runtime/transport/store.h"

namespace pipewright {

/// One rank's process, or the remote shell that runs it.
struct Child {
  Slot slot = 0;
  int64_t rank = 0;
  std::string host;  ///< "" = this one
  pid_t pid = -1;
  int output = -1;  ///< reading end of its pipe; -1 when the rank has closed it
  std::ofstream log;
  bool running = false;
  int status = 0;  ///< as waitpid gives it

  bool exited_with(int code) const;
};

/// Where the ranks of an attempt are, and what they all are told.
struct RankPlaces {
  int64_t attempt = 0;
  std::vector<Slot> slots;         ///< by rank
  std::vector<std::string> hosts;  ///< by rank; "" = this one
  std::string address;             ///< of the store
  int64_t port = 0;
  int64_t threads = 1;  ///< of a rank
  bool pin = true;
  bool tells_progress = true;  ///< rank 0, on standard error
};
/// NAME=VALUE: what a rank's environment has beside ours.
std::vector<std::string> variables_of(const RankPlaces& places, int64_t rank);

class RankProcesses {
 public:
  /// Borrows the settings. `folder`: of the logs; `hidden`: until show_logs() they are .rank-K.log, as
  /// rank-K.log may be an earlier run's.
  RankProcesses(const LaunchSettings& settings, std::string secret, std::filesystem::path folder,
                bool hidden);

  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses() { end(); }

  /// Forgets those of the attempt before, all of which have ended, and starts the ranks. Logs go on, but in
  /// the first attempt. RunError.
  void start(const RankPlaces& places);
  const std::vector<Child>& all() const { return children_; }

  /// Waits for output, 50 ms at most, and takes what is there: into the logs, and of rank 0 to standard
  /// error, but for its errors.
  void take_output();
  /// Of a rank that has ended.
  void take_last_output(size_t child);
  /// Of ranks that have all ended; `wait`: for a second, as a process that they have left may still write.
  void drain_output(bool wait);
  /// What was held back of rank 0's since the last call.
  std::string errors_of_rank_0() { return shown_.held(); }

  /// Their numbers in all().
  std::vector<size_t> newly_ended();
  bool all_done() const;  ///< with exit code 0
  /// To the processes of this host; SIGKILL to remote shells too.
  void signal_all(int signal) const;
  /// On another host too: the remote shell's own end would leave the rank there.
  void signal_rank(const Child& child, int signal, Store& store) const;
  /// SIGKILL to all, and waits for their ends.
  void end();

  std::filesystem::path log_of(int64_t rank) const;
  bool logs_are_hidden() const { return hidden_; }
  const std::filesystem::path& logs() const { return folder_; }
  /// As rank-K.log of this folder. The streams go on writing into the files.
  void show_logs(const std::filesystem::path& folder);

 private:
  void read_output(Child& child);

  const LaunchSettings& settings_;
  const std::string secret_;
  std::filesystem::path folder_;
  bool hidden_ = false;
  WithoutErrors shown_;  // of rank 0
  std::vector<Child> children_;
};

}  // namespace pipewright
