// The built-in hogs as a small program of their own, which starts in a millisecond.
//
//   interference_hog KIND CORE PROCESSES
//
// Ended by SIGTERM, or with the program that started it; what it prints: interference/hogs.h.
#include <cstdio>
#include <cstdlib>

#include "graph/error.h"
#include "interference/hogs.h"

namespace {

int64_t number_of(const char* text, const char* what) {
  char* end = nullptr;
  const int64_t value = std::strtoll(text, &end, 10);
  if (*text == '\0' || *end != '\0')
    throw pipewright::InputError(std::string("interference_hog: ") + what + " '" + text +
                                 "': expected a number");
  return value;
}

}  // namespace

int main(int count, char** words) {
  try {
    if (count != 4)
      throw pipewright::InputError(
          "interference_hog: expected KIND CORE PROCESSES",
          "interference_hog matrix 1 2: two processes on core 1. Kinds: matrix, copy, loopback.");
    pipewright::run_hogs({words[1], number_of(words[2], "core"), number_of(words[3], "processes")});
    return 0;
  } catch (const pipewright::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    if (!error.remedy().empty()) std::fprintf(stderr, "  %s\n", error.remedy().c_str());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
