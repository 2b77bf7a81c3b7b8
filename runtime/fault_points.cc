#include "runtime/fault_points.h"

#include <csignal>
#include <cstdlib>
#include <sstream>
#include <string>

#include "graph/error.h"

namespace pipewright {

FaultPoints::FaultPoints(int64_t rank) {
  const char* text = std::getenv("PIPEWRIGHT_TEST_FAULT");
  if (!text) return;
  int64_t of = 0, at = 0;
  char colon = 0;
  std::string fault;
  if (!(std::istringstream(text) >> of >> colon >> at >> colon >> fault) || of != rank) return;
  at_ = at;
  signal_ = fault == "throw" ? 0 : std::atoi(fault.c_str());
}

bool FaultPoints::next() {
  if (next_++ != at_) return false;
  if (signal_ == 0) throw RunError("a fault at point " + std::to_string(at_) + ", as a test asked for");
  std::raise(signal_);
  return true;
}

}  // namespace pipewright
