// How far long work has come, on standard error.
#pragma once

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <string>

namespace pipewright {

/// "[ 45 %] measuring, about 12 s left" over itself, on a terminal only.
class ProgressLine {
 public:
  ProgressLine() : terminal_(isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& text) {
    if (!terminal_) return;
    shown_ = true;
    std::fprintf(stderr, "\r\033[K%s", text.c_str());
    std::fflush(stderr);
  }
  void show(const std::string& work, double done, double seconds_left) {
    char numbers[64];
    std::snprintf(numbers, sizeof numbers, ", about %.0f s left", std::ceil(seconds_left));
    char percent[16];
    std::snprintf(percent, sizeof percent, "[%3.0f %%] ", 100 * done);
    show(percent + work + numbers);
  }

 private:
  bool terminal_;
  bool shown_ = false;
};

}  // namespace pipewright
