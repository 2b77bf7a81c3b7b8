// Interference on purpose: processes that take a core or a GPU, as another job on the host would.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pipewright {

/// Processes of one kind on one core, or on one GPU. How many is how intense: each has the priority of any
/// other process.
struct HogOrder {
  std::string kind;  ///< of hog_kinds()
  int64_t core = 0;  ///< not read where there is a device
  int64_t processes = 1;
  std::string device = "";  ///< "cuda:0"; "": they take the core

  static constexpr int64_t kMostProcesses = 16;
  /// InputError: `where` says who asks.
  void check(const std::string& where) const;
};

/// Makes what a round needs and returns the round, as HogKind::make.
using HogMaker = std::function<std::function<void()>()>;

/// Burns the core with child processes until SIGTERM or SIGINT comes, then ends them. Prints "running" when
/// they run, and at the end one line of JSON: kind, core or device, processes, "seconds" and "cpu_seconds":
/// how long, and how much of a core its processes had together. Ends when the process that started it does.
/// What a child throws before it runs is thrown here; RunError when one ends by itself later. InputError: no
/// such kind, or this process may not use the core.
void run_hogs(const HogOrder& order);
/// Of a device: each child calls `make` for itself, after the fork, since CUDA serves no process that was
/// forked from one which had begun with it. So the caller must not have.
void run_hogs(const HogOrder& order, const HogMaker& make);

/// The same beside this process, while it does something else.
class Hogs {
 public:
  /// `command`: the words of one that calls run_hogs(). Returns when they run. RunError if it ends instead;
  /// why, it says itself on standard error.
  explicit Hogs(std::vector<std::string> command);
  ~Hogs();
  Hogs(const Hogs&) = delete;
  Hogs& operator=(const Hogs&) = delete;

  /// Ends them. How many seconds of the core they have had.
  double end();

 private:
  pid_t process_ = -1;
  int output_ = -1;
};

}  // namespace pipewright
