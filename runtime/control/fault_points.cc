#include "runtime/control/fault_points.h"

#include <csignal>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "graph/error.h"
#include "runtime/control/attempt_number.h"

namespace pipewright {

FaultPoints::FaultPoints(int64_t rank) {
  const char* text = std::getenv("PIPEWRIGHT_TEST_FAULT");
  std::istringstream all(text ? text : "");
  for (std::string one; std::getline(all, one, ';');) {
    std::istringstream words(one);
    std::vector<std::string> word;
    for (std::string part; std::getline(words, part, ':');) word.push_back(part);
    if (word.size() < 3 || std::atoll(word[0].c_str()) != rank) continue;
    const std::string attempt = word.size() > 3 ? word[3] : "0";
    if (attempt == "*" || std::atoll(attempt.c_str()) == attempt_of_process())
      faults_[std::atoll(word[1].c_str())] = word[2];
  }
}

bool FaultPoints::next() {
  const auto found = faults_.find(next_++);
  if (found == faults_.end()) return false;
  const std::string& fault = found->second;
  if (fault == "throw")
    throw RunError("a fault at point " + std::to_string(found->first) + ", as a test asked for");
  if (fault == "check") PW_CHECK_EQ(found->first, -1);
  std::raise(std::atoi(fault.c_str()));
  return true;
}

}  // namespace pipewright
