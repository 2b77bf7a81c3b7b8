// `doctor` on several hosts: each looks at itself, and this one at what they must have in common.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "runtime/doctor/machine.h"

namespace pipewright {

/// What one host says of itself.
struct Checkup {
  std::string host;
  std::string program;       ///< Machine::program
  double clock_seconds = 0;  ///< since 1970, while it was looked at
  std::vector<Finding> findings;
};

Checkup checkup_of(const Machine& machine);

/// "pipewright.doctor/1" and back. InputError that begins with `where` for what is none.
std::string text_of(const Checkup& checkup);
Checkup checkup_from(const std::string& text, const std::string& where);

/// One for each of `hosts`, in their order: its own findings, and whether it is reached through the remote
/// shell, has the program of `here` in this folder, sees this folder's files, and how its clock differs.
/// Takes `patience` at most for each; all at once. Writes a file into the current folder and removes it.
std::vector<Checkup> checkups_of_hosts(const Checkup& here, const std::vector<std::string>& hosts,
                                       const std::string& remote_shell, std::chrono::milliseconds patience);

}  // namespace pipewright
