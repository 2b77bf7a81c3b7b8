// Lines that renew themselves in a terminal. The only place that knows its escape sequences.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/watch/view_lines.h"

namespace pipewright {

/// Changes no mode of the terminal (no other screen, no hidden cursor, no raw input): however the process
/// ends, there is nothing to restore, and the last lines stay.
class Terminal {
 public:
  /// Of this descriptor; `colour`: lines are emphasised.
  explicit Terminal(int descriptor, bool colour) : descriptor_(descriptor), colour_(colour) {}

  /// Whether the descriptor is a terminal that moves its cursor: TERM says so.
  static bool is_one(int descriptor);
  /// Unless NO_COLOR is set, to anything but nothing (no-color.org).
  static bool wants_colour();

  /// Characters of a line, and lines; 80 and 24 where it does not say.
  int64_t width() const;
  int64_t height() const;

  /// In the place of those drawn before. False: nobody reads any more.
  bool draw(const std::vector<ViewLine>& lines);
  /// Text of somebody else, above the lines; what has no end of line yet waits for it.
  bool print_above(std::string_view text);

 private:
  std::string back() const;
  std::string drawn() const;
  bool write(const std::string& bytes) const;

  const int descriptor_;
  const bool colour_;
  std::vector<ViewLine> lines_;
  std::string waiting_;
};

}  // namespace pipewright
