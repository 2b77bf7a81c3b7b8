// What `doctor` has to say of one thing that a job's ranks need.
#pragma once

#include <string>

namespace pipewright {

enum class Verdict {
  kOk,
  kNote,   ///< works, but is slower or smaller than it could be, or will matter to some jobs
  kWrong,  ///< jobs will fail of it
};

struct Finding {
  std::string what;  ///< "cores", "/dev/shm", "store"
  Verdict verdict = Verdict::kOk;
  std::string found;   ///< one line
  std::string remedy;  ///< what it means, and the next command; empty where all is well
};

}  // namespace pipewright
