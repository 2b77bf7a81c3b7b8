#include "runtime/control/fault_points.h"

#include <csignal>
#include <cstdlib>
#include <sstream>

#include "graph/error.h"
#include "runtime/control/attempt_number.h"

namespace pipewright {

FaultPoints::FaultPoints(int64_t rank) {
  const char* text = std::getenv("PIPEWRIGHT_TEST_FAULT");
  if (!text) return;
  int64_t of = 0, at = 0, attempt = 0;
  char colon = 0;
  std::string fault;
  if (!(std::istringstream(text) >> of >> colon >> at >> colon >> fault) || of != rank) return;
  if (const size_t behind = fault.find(':'); behind != std::string::npos) {
    attempt = std::atoll(fault.c_str() + behind + 1);
    fault.resize(behind);
  }
  if (attempt != attempt_of_process()) return;
  at_ = at;
  fault_ = fault;
}

bool FaultPoints::next() {
  if (next_++ != at_) return false;
  if (fault_ == "throw") throw RunError("a fault at point " + std::to_string(at_) + ", as a test asked for");
  if (fault_ == "check") PW_CHECK_EQ(at_, -1);
  std::raise(std::atoi(fault_.c_str()));
  return true;
}

}  // namespace pipewright
