// What a host has for the ranks of a job, and whether ranks can meet on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/doctor/finding.h"

namespace pipewright {

/// Something that was tried.
struct Trial {
  double seconds = 0;   ///< it took; of a transport, a message each way
  std::string failure;  ///< empty: it worked
};

struct Machine {
  std::string name;          ///< the host's
  std::string program;       ///< lines: Pipewright's version, and what it is built of
  double clock_seconds = 0;  ///< since 1970, when it was looked at

  int64_t cores = 0;          ///< that this process may use
  int64_t cores_of_all = 0;   ///< that the machine has
  double cores_of_quota = 0;  ///< what a container's limit allows at a time; 0: none
  bool binds = false;         ///< a thread could be bound to a core
  double load = 0;            ///< processes that computed in the last minute

  int64_t memory_bytes = 0, free_memory_bytes = 0;                ///< of what this process may use
  int64_t shared_memory_bytes = 0, free_shared_memory_bytes = 0;  ///< of /dev/shm; 0: there is none
  Trial shared_memory;                                            ///< a file of a MiB, written there
  std::string temporary_folder;
  Trial temporary_file;    ///< the same there
  int64_t open_files = 0;  ///< that a process may have

  double clock_read_seconds = 0;
  std::string clock_source;            ///< empty: the system does not tell
  std::vector<std::string> addresses;  ///< that its name means; numeric

  std::string arithmetic;        ///< "AVX2": what LibTorch computes with on this CPU
  std::vector<std::string> gpu;  ///< lines: devices and versions, or why there is none

  Trial store, gloo, shm;  ///< two ranks of this process meet over it
};

/// `program`: its versions. Takes a second or two; in that time 2 threads and a few sockets on loopback. The
/// caller has no thread bound.
Machine look_at_machine(const std::string& program);

/// One for each thing, in a fixed order, whatever was found.
std::vector<Finding> findings_of(const Machine& machine);

}  // namespace pipewright
